"""Requests a dump of one rank's flight recorder through its pipe, and reads the file that the rank writes.

The heartbeat monitor of a rank reads its pipe once a second (TORCH_NCCL_COORD_CHECK_MILSEC) and answers any bytes
with a dump; the training continues. Sources: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp (HeartbeatMonitor),
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
"""Parse one dump at a time: one may need 50 MiB, and each rank of the node may have one."""
Mark = rank_files.FileIdentity
"""Identity of one version of a file, to detect that it was rewritten; None if the file does not exist."""


class RequestError(Exception):
    """The dump cannot be obtained; the message says why."""


@dataclass(frozen=True, slots=True)
class RankRecorder:
    """The pipe of one rank and the file that it writes."""

    pid: Pid
    rank: int
    start_ns: int
    """Start of the process (boottime), because its number may be reused."""
    pipe: str
    file: str | None
    """Path of the dump; None if the rank's environment does not set it."""


def recorder_of(
    pid: Pid, rank: int | None, start_ns: int, environ: Mapping[str, str]
) -> RankRecorder | None:
    """Pipe and file of a rank; None if it opens no pipe or has no rank number."""
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
    """Requests and reads dumps. Calls may block; used by several threads."""

    def request(self, recorder: RankRecorder) -> Mark:
        """Request a dump by one byte; returns the mark of the previous file. Raises `RequestError`."""
        ...

    def fetch(self, recorder: RankRecorder, known_mark: Mark) -> tuple[Mark, RankRecord | str]:
        """The record in a file newer than `known_mark`, with the mark of that file.

        While there is none, a text says what is wrong with the file so far; an empty text means that there is no
        newer file. Raises `RequestError` if waiting is pointless.
        """
        ...


class RecordersHere:
    """A `RecorderSource` that reads in this process."""

    def request(self, recorder: RankRecorder) -> Mark:
        """Request a dump; see `RecorderSource`."""
        return request(recorder)

    def fetch(self, recorder: RankRecorder, known_mark: Mark) -> tuple[Mark, RankRecord | str]:
        """The record in a newer file; see `RecorderSource`."""
        return fetch(recorder, known_mark)


def request(recorder: RankRecorder) -> Mark:
    """Request a dump; see `RecorderSource`."""
    if recorder.file is None:
        raise RequestError(f"{RECORDER_FILES[0]} is not set, so the path of the dump is unknown")
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


def fetch(recorder: RankRecorder, known_mark: Mark) -> tuple[Mark, RankRecord | str]:
    """The record in a newer file; see `RecorderSource`."""
    if recorder.file is None:
        raise RequestError("the path of the dump is unknown")
    _check(recorder)
    try:
        mark = _mark(recorder)
        if mark is None or mark == known_mark:
            return mark, ""
        if mark[-1] > MOST_BYTES:
            raise RequestError(f"{recorder.file} is larger than {MOST_BYTES >> 20} MiB")
        data = _read(recorder)
    except RankFileError as error:
        raise RequestError(str(error)) from None
    except OSError as error:
        return known_mark, f"{recorder.file}: {error.strerror}"
    with _PARSING:
        try:
            dump = recorder_dump.read(data)
        except DumpError as error:
            # the file may be incomplete
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
