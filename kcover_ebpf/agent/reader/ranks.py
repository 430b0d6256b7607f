"""The agent's side of the two readers of ranks: one reads threads, one answers (flight recorders, NCCL, ELF).

There are two, because an answer may take seconds of computing, while a thread whose reading does not return in a
second counts as unreadable.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from kcover_ebpf.agent.reader.program import decode, encode
from kcover_ebpf.api.json_values import WrongValue
from kcover_ebpf.collectives.ras import RasError, RasReport, client
from kcover_ebpf.collectives.ras.client import RasPatience, RasPlace
from kcover_ebpf.collectives.ras.netns import connect
from kcover_ebpf.collectives.recorder.dump_request import Mark, RankRecorder, RequestError
from kcover_ebpf.confined.helper import Confinement
from kcover_ebpf.errors import ReaderError
from kcover_ebpf.facts.host import CodeSeen, ReadingRequest, ThreadReading
from kcover_ebpf.facts.inspector import SlowCollective
from kcover_ebpf.facts.recorders import RankRecord
from kcover_ebpf.host import open_files
from kcover_ebpf.host.capabilities import Capability
from kcover_ebpf.host.elf_functions import ElfError
from kcover_ebpf.ids import Pid
from kcover_ebpf.tunables.agent import (
    ELF_READ_S,
    INSPECTOR_READ_S,
    OPEN_FILES_S,
    RANK_READ_S,
    READER_CPU_S,
    THREAD_READ_S,
)

if TYPE_CHECKING:
    from kcover_ebpf.agent.reader.client import ConfinedReader

_T = TypeVar("_T")
THREADS = Confinement(
    data_bytes=48 << 20,
    cpu_s=READER_CPU_S,
    # memory and descriptors of ranks of any user
    kept=frozenset({Capability.SYS_PTRACE, Capability.DAC_READ_SEARCH}),
    address_bytes=2 << 30,
)
ANSWERS = Confinement(
    data_bytes=80 << 20,
    cpu_s=READER_CPU_S,
    # what ranks of any user have written, their memory, and a byte into a recorder's pipe
    kept=frozenset({Capability.SYS_PTRACE, Capability.DAC_READ_SEARCH, Capability.DAC_OVERRIDE}),
    address_bytes=2 << 30,
)


class ReadRanks:
    """Reads ranks through confined processes. Thread-safe; failures are raised as errors, and no call waits forever."""

    def __init__(self, reader: ConfinedReader, answers_reader: ConfinedReader) -> None:
        self._threads, self._answers = reader, answers_reader
        self._lock = threading.Lock()
        self._forgotten: set[Pid] = set()

    # --- threads (`ThreadSource`)

    def reading(self, request: ReadingRequest) -> ThreadReading | CodeSeen:
        """Raises `ReaderError`, at once if no reader runs now: the thread is then not read in this pass."""
        with self._lock:
            forgotten, self._forgotten = self._forgotten, set()
        found = self._thread("thread", request=encode(request), forget=sorted(forgotten))
        if request.burning_sp is not None:
            return _decoded(CodeSeen, found)
        return _decoded(ThreadReading, found)

    def wait(self, request: ReadingRequest) -> ThreadReading:
        """What the thread waits for; raises `ReaderError`."""
        return _decoded(ThreadReading, self._thread("wait", request=encode(request)))

    def _thread(self, operation: str, **arguments: Any) -> Mapping[str, Any]:
        return _object(self._threads.ask(operation, arguments, THREAD_READ_S, start_s=0.0))

    def forget(self, pid: Pid) -> None:
        """Forget cached data of a process; sent with the next question."""
        with self._lock:
            self._forgotten.add(pid)

    def open_files(
        self, pids: Collection[Pid], paths: Collection[str]
    ) -> Mapping[Pid, frozenset[str]]:
        """As `host.open_files.read`; read by this process if no reader runs now: the bounds are the same."""
        wanted, known = frozenset(pids), frozenset(paths)
        asked = {"pids": sorted(wanted), "paths": sorted(known)}
        try:
            found = _object(self._threads.ask("open_files", asked, OPEN_FILES_S))
            held = {Pid(int(text)): known.intersection(words) for text, words in found.items()}
        except (ReaderError, TypeError, ValueError):
            return open_files.read(pids, known)
        return {pid: held[pid] for pid in wanted & held.keys()}

    # --- recorders (`RecorderSource`)

    def request(self, recorder: RankRecorder) -> Mark:
        """Ask a flight recorder for a dump; raises `RequestError`."""
        return self._recorder("record_request", recorder, None)[0]

    def fetch(self, recorder: RankRecorder, known_mark: Mark) -> tuple[Mark, RankRecord | str]:
        """Fetch the dump of a flight recorder; raises `RequestError`."""
        return self._recorder("record_fetch", recorder, known_mark)

    def _recorder(
        self, operation: str, recorder: RankRecorder, known_mark: Mark
    ) -> tuple[Mark, RankRecord | str]:
        try:
            found = self._ask(operation, RANK_READ_S, recorder=encode(recorder), before=known_mark)
            if "refused" in found:
                raise RequestError(str(found["refused"])[:256])
            mark, record = found["mark"], found.get("record")
            if mark is not None and not (
                len(mark) == 4 and all(type(item) is int for item in mark)
            ):
                raise ReaderError("its answer is invalid")
            answer = str(found.get("text", "")) if record is None else _decoded(RankRecord, record)
            return None if mark is None else tuple(mark), answer
        except ReaderError as error:
            raise RequestError(str(error)) from error

    # --- NCCL (`RasSource`): this process enters the network namespace, the reader parses the answers

    def ask(self, place: RasPlace, patience: RasPatience) -> RasReport:
        """Ask NCCL's RAS service; raises `RasError`."""
        return client.tried(place, patience, partial(self._report, place=place, patience=patience))

    def _report(
        self, connection: socket.socket, place: RasPlace, patience: RasPatience
    ) -> RasReport:
        limit_s = 4 * patience.connect_s + 4 * patience.collect_s + 2
        try:
            found = self._over(connection, "ras_report", limit_s, place, patience)
            if "refused" in found:
                raise RasError(str(found["refused"])[:256])
            return _decoded(RasReport, found["report"])
        except ReaderError as error:
            raise RasError(str(error)) from error

    def dead(self, place: RasPlace, patience: RasPatience, seconds: float) -> list[tuple[str, int]]:
        """Ranks that NCCL reports dead; also empty if that could not be read."""
        limit_s = 4 * patience.connect_s + seconds + 2
        try:
            with connect(place.address, patience.connect_s, place.pid) as connection:
                found = self._over(
                    connection, "ras_dead", limit_s, place, patience, seconds=seconds
                )
            return [(str(host), int(pid)) for host, pid in found["dead"]]
        except (OSError, ReaderError, KeyError, TypeError, ValueError):
            return []

    def _over(
        self,
        connection: socket.socket,
        operation: str,
        limit_s: float,
        place: RasPlace,
        patience: RasPatience,
        **more: Any,
    ) -> Mapping[str, Any]:
        about = {
            "pid": place.pid,
            "pids": [[inside, here] for inside, here in place.pids.items()],
            "patience": encode(patience),
        }
        return self._ask(operation, limit_s, (connection.fileno(),), **about, **more)

    # --- files that ranks have mapped

    def functions(self, file: int, names: Collection[str]) -> Mapping[str, int]:
        """Offsets of functions in an open ELF file, as `elf_functions`; raises `ElfError`."""
        try:
            found = self._ask("functions", ELF_READ_S, (file,), names=sorted(names))
            if "refused" in found:
                raise ElfError(str(found["refused"])[:256])
            return {name: int(found["offsets"][name]) for name in names if name in found["offsets"]}
        except (ReaderError, KeyError, TypeError, ValueError) as error:
            raise ElfError(str(error)) from error

    # --- NCCL Inspector's files (`InspectorSource`)

    def slow_collectives(self, pids: Collection[Pid]) -> tuple[SlowCollective, ...]:
        """Raises `ReaderError`."""
        found = self._ask("slow_collectives", INSPECTOR_READ_S, pids=sorted(pids))
        slow = found.get("slow")
        if not isinstance(slow, list):
            raise ReaderError("it answered what makes no sense")
        return tuple(_decoded(SlowCollective, one) for one in slow)

    def _ask(
        self, operation: str, limit_s: float, descriptors: Sequence[int] = (), **arguments: Any
    ) -> Mapping[str, Any]:
        return _object(self._answers.ask(operation, arguments, limit_s, descriptors))


def _object(raw: Any) -> Mapping[str, Any]:
    if not isinstance(raw, dict):
        raise ReaderError("its answer is invalid")
    return raw


def _decoded(kind: type[_T], raw: object) -> _T:
    try:
        return decode(kind, raw)
    except WrongValue as error:
        raise ReaderError(f"its answer is invalid: {error.place} {error.text}") from error
