"""One rank's recorder: ask for a dump by its pipe, and read the file that it writes.

The heartbeat monitor of a rank reads its pipe once a second (TORCH_NCCL_COORD_CHECK_MILSEC) and answers any bytes by
a dump; the training continues. Sources: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp (HeartbeatMonitor),
DumpPipe in ProcessGroupNCCL.hpp, DebugInfoWriter in FlightRecorder.cpp.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Mapping
from typing import Protocol

from kcover_ebpf.collectives.recorder import recorder_dump
from kcover_ebpf.collectives.recorder.pickle_machine import MOST_BYTES
from kcover_ebpf.collectives.recorder.recorder_dump import DumpError
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.diagnosis.membership.rank_numbers import RECORDER_FILES, RECORDER_PIPE
from kcover_ebpf.facts.recorders import RankRecord
from kcover_ebpf.host import procfs, rank_files
from kcover_ebpf.host.rank_files import RankFileError
from kcover_ebpf.ids import Pid

_PARSING = threading.Lock()
"""One dump at a time: what is built of one may take 50 MiB, and each rank of the node may have one."""
Mark = rank_files.FileIdentity
"""What distinguishes one version of a file from the next; None while there is none."""


class RequestError(Exception):
    """The dump cannot be had; the message says why."""


@dataclass(frozen=True, slots=True)
class RankRecorder:
    """Where one rank listens and where it writes."""

    pid: Pid
    rank: int
    start_ns: int
    """When the process began (boottime): its number may be another's by now."""
    pipe: str
    file: str | None
    """None where the rank does not say."""


def recorder_of(
    pid: Pid, rank: int | None, start_ns: int, environ: Mapping[str, str]
) -> RankRecorder | None:
    """None for a rank that listens to no pipe, or has no number."""
    prefix = environ.get(RECORDER_PIPE)
    if not prefix or rank is None:
        return None
    files = [
        environ[recorder_file] for recorder_file in RECORDER_FILES if environ.get(recorder_file)
    ]
    return RankRecorder(
        pid, rank, start_ns, f"{prefix}{rank}.pipe", f"{files[0]}{rank}" if files else None
    )


class RecorderSource(Protocol):
    """Who asks and reads. May block; used by several threads."""

    def request(self, recorder: RankRecorder) -> Mark:
        """Ask by one byte; the mark of the file that was there before. Raises `RequestError`."""
        ...

    def fetch(self, recorder: RankRecorder, before: Mark) -> tuple[Mark, RankRecord | str]:
        """The record in a file newer than `before`, or what is wrong with that file as yet; the mark of what was read.

        An empty text: there is no newer file. Raises `RequestError` where waiting is of no use.
        """
        ...


class RecordersHere:
    """Reads in this process."""

    def request(self, recorder: RankRecorder) -> Mark:
        """As `RecorderSource` says."""
        return request(recorder)

    def fetch(self, recorder: RankRecorder, before: Mark) -> tuple[Mark, RankRecord | str]:
        """As `RecorderSource` says."""
        return fetch(recorder, before)


def request(recorder: RankRecorder) -> Mark:
    """As a `RecorderSource` does."""
    if recorder.file is None:
        raise RequestError(f"{RECORDER_FILES[0]} is not set, so where it writes is not known")
    _check(recorder)
    try:
        before = _mark(recorder)
        pipe = rank_files.opened(recorder.pid, recorder.pipe, os.O_WRONLY, pipe=True)
    except RankFileError as error:
        raise RequestError(str(error)) from None
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise RequestError(f"no process reads {recorder.pipe}") from None
        raise RequestError(f"{recorder.pipe}: {error.strerror}") from None
    try:
        os.write(pipe, b"1")
    except OSError as error:
        raise RequestError(f"{recorder.pipe}: {error.strerror}") from None
    finally:
        os.close(pipe)
    return before


def fetch(recorder: RankRecorder, before: Mark) -> tuple[Mark, RankRecord | str]:
    """As a `RecorderSource` does."""
    if recorder.file is None:
        raise RequestError("where it writes is not known")
    _check(recorder)
    try:
        mark = _mark(recorder)
        if mark is None or mark == before:
            return mark, ""
        if mark[-1] > MOST_BYTES:
            raise RequestError(f"{recorder.file} is larger than {MOST_BYTES >> 20} MiB")
        data = _read(recorder)
    except RankFileError as error:
        raise RequestError(str(error)) from None
    except OSError as error:
        return before, f"{recorder.file}: {error.strerror}"
    with _PARSING:
        try:
            dump = recorder_dump.read(data)
        except DumpError as error:
            # it may be half written
            return mark, str(error)
        return mark, recorder_dump.record_of(dump, recorder.pid, recorder.rank)


def _check(recorder: RankRecorder) -> None:
    if procfs.start_ns(recorder.pid) != recorder.start_ns:
        raise RequestError("the rank has ended")


def _mark(recorder: RankRecorder) -> Mark:
    return rank_files.identity_of(recorder.pid, recorder.file or "")


def _read(recorder: RankRecorder) -> bytes:
    file = rank_files.opened(recorder.pid, recorder.file or "", os.O_RDONLY, pipe=False)
    with os.fdopen(file, "rb", buffering=0) as stream:
        data = bytearray()
        while len(data) <= MOST_BYTES and (chunk := stream.read(1 << 20)):
            data += chunk
    return bytes(data)
