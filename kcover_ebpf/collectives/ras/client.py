"""Speaks NCCL's RAS protocol: one question, one report; and the events of a server that has them.

Several processes of one namespace share the port (SO_REUSEPORT): a connection lands on any of them,
also on one that is stopped, where it is accepted and never answered, and, in a namespace that is
shared, on another job's. So every step has a short time-out, who asks tries several times, and a
report counts only when one of our own processes holds the other end of the connection.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

from kcover_ebpf.collectives.ras import RasError, RasReport
from kcover_ebpf.collectives.ras.answer import parse
from kcover_ebpf.collectives.ras.large_answer import LargeAnswer
from kcover_ebpf.collectives.ras.netns import connect, holder_inode
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.host import bounded, procfs
from kcover_ebpf.ids import Pid

_MOST_FILES = 16384
"""Descriptors that are read of one process of a job, to see whether it listens where it is asked."""

DEFAULT_PORT = 28028
_PROTOCOL = 2
REPORT_BYTES = 2 * 1024 * 1024
"""NCCL writes some 600 bytes for each rank of each communicator, so this is 512 ranks in six of them; a larger report
is read as it comes. Whoever listens on the port decides what arrives here."""
_LINE_BYTES = 4096
"""An answer or event of NCCL is shorter than 300."""
_EVENTS_BYTES = 64 * 1024
_EVENTS = 256
"""One is sent for each process that dies or joins."""
_READERS = threading.BoundedSemaphore(2)
"""Reports being read and parsed at any time, whatever number of jobs is asked: so their memory is bounded, too."""


@dataclass(frozen=True, slots=True)
class RasPatience:
    """How long to wait, in seconds, and how often to try."""

    connect_s: float = 1.0
    """Also for each short answer."""
    collect_s: float = 5.0
    """Time for the RAS threads of all ranks to answer; NCCL's own default."""
    tries: int = 4


@dataclass(frozen=True, slots=True)
class RasPlace:
    """Where the ranks of a job answer: one listener's address in one network namespace."""

    address: tuple[str, int]
    pid: Pid
    """A process in that namespace."""
    pids: Mapping[int, Pid]
    """The processes of the job there: number in their own pid namespace -> number in ours."""


def port_of(environ_value: str | None) -> int:
    """The port in NCCL_RAS_ADDR ("host:port", "[ipv6]:port"), or the default."""
    _, _, port = (environ_value or "").rpartition(":")
    number = int(port) if port.isascii() and port.isdecimal() and len(port) < 6 else 0
    return number if 0 < number < 65536 else DEFAULT_PORT


class RasSource(Protocol):
    """Who asks. Its calls take as long as `patience` says, so they are none for the sensor's own loop."""

    def ask(self, place: RasPlace, patience: RasPatience) -> RasReport:
        """A report of this job; raises `RasError` when no try gives one."""
        ...

    def dead(self, place: RasPlace, patience: RasPatience, seconds: float) -> list[tuple[str, int]]:
        """(host, pid there) of each process that a server of 2.29 or later calls dead within so many seconds.

        Returns at once with nothing where the server knows no such thing.
        """
        ...


class RasHere:
    """Asks in this process."""

    def ask(self, place: RasPlace, patience: RasPatience) -> RasReport:
        """As `RasSource` says."""
        return ask(place, patience)

    def dead(self, place: RasPlace, patience: RasPatience, seconds: float) -> list[tuple[str, int]]:
        """As `RasSource` says."""
        return dead_peers(listen(place, patience, seconds))


def ask(place: RasPlace, patience: RasPatience) -> RasReport:
    """As a `RasSource` does."""
    return tried(place, patience, partial(report_over, place=place, patience=patience))


def listen(place: RasPlace, patience: RasPatience, seconds: float) -> list[str]:
    """As `listen_over`, over a new connection."""
    try:
        with connect(place.address, patience.connect_s, place.pid) as connection:
            return listen_over(connection, place, patience, seconds)
    except OSError:
        return []


def tried(
    place: RasPlace, patience: RasPatience, read: Callable[[socket.socket], RasReport]
) -> RasReport:
    """A report of this job by `read`, over a new connection each time; raises `RasError` when no try gives one."""
    failure = "no answer"
    for _ in range(patience.tries):
        try:
            with connect(place.address, patience.connect_s, place.pid) as connection:
                report = read(connection)
        except (OSError, RasError) as error:
            failure = str(error) or type(error).__name__
            continue
        if report.concerns(place.pids):
            return report
        failure = "another job answered"
    raise RasError(failure)


def report_over(connection: socket.socket, place: RasPlace, patience: RasPatience) -> RasReport:
    """What the server at the other end says; raises `RasError`, `OSError`."""
    stream = _greeted(connection, place, patience)
    with _reader(patience):
        return _report(stream, patience, place.pids)


def listen_over(
    connection: socket.socket, place: RasPlace, patience: RasPatience, seconds: float
) -> list[str]:
    """What a server sends within so many seconds, one JSON object each."""
    end_s = time.monotonic() + seconds
    reported: list[str] = []
    size = 0
    try:
        stream = _greeted(connection, place, patience)
        if _say(stream, "MONITOR lifecycle", patience) != "OK":
            return []
        while len(reported) < _EVENTS and size < _EVENTS_BYTES:
            line = stream.line(end_s)
            if not line:
                break
            reported.append(line)
            size += len(line)
    except (OSError, RasError):
        pass
    return reported


def dead_peers(lines: list[str]) -> list[tuple[str, int]]:
    """(host, pid there) of each process that an event calls dead; other events are passed over."""
    found = []
    for line in lines:
        try:
            event = json.loads(line)
            if event["event"] == "PEER_DEAD":
                found.append((str(event["peer"]["host"]), int(event["peer"]["pid"])))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            continue
    return found


class _Stream:
    """Lines over a connection. `until_s`, of the monotonic clock, ends a call however slowly bytes come."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._left = b""

    def send(self, line: str, until_s: float) -> None:
        self._connection.settimeout(max(0.001, until_s - time.monotonic()))
        self._connection.sendall(line.encode() + b"\n")

    def line(self, until_s: float) -> str:
        """The next line, or what there is before the end of file; raises `RasError` if it is too long."""
        while b"\n" not in self._left:
            if len(self._left) > _LINE_BYTES:
                raise RasError(f"a line of more than {_LINE_BYTES} bytes")
            chunk = self._receive(until_s)
            if not chunk:
                break
            self._left += chunk
        line, _, self._left = self._left.partition(b"\n")
        return line.decode("utf-8", "replace").strip()

    def rest(self, until_s: float) -> Iterator[bytes]:
        """All that comes until the end of file."""
        yield self._left
        while chunk := self._receive(until_s):
            yield chunk

    def _receive(self, until_s: float) -> bytes:
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        self._connection.settimeout(left_s)
        return self._connection.recv(_LINE_BYTES)


def _greeted(connection: socket.socket, place: RasPlace, patience: RasPatience) -> _Stream:
    """A conversation with one of our own processes, in JSON where it knows that."""
    stream = _Stream(connection)
    greeting = _say(stream, f"CLIENT PROTOCOL {_PROTOCOL}", patience)
    if not greeting.startswith("SERVER PROTOCOL "):
        raise RasError(f"not a RAS server: {greeting[:80]!r}")
    # before the greeting the connection may not have been accepted, and belongs to no process
    if not _is_ours(connection, place):
        raise RasError("another job answered")
    _say(stream, f"TIMEOUT {int(patience.collect_s)}", patience)
    # older versions answer with an error, and then report in text
    _say(stream, "SET FORMAT json", patience)
    return stream


def _say(stream: _Stream, line: str, patience: RasPatience) -> str:
    until_s = time.monotonic() + patience.connect_s
    stream.send(line, until_s)
    return stream.line(until_s)


@contextmanager
def _reader(patience: RasPatience) -> Iterator[None]:
    if not _READERS.acquire(timeout=2 * patience.collect_s):
        raise RasError("other jobs are being queried")
    try:
        yield
    finally:
        _READERS.release()


def _report(stream: _Stream, patience: RasPatience, pids: Collection[int]) -> RasReport:
    until_s = time.monotonic() + 2 * patience.collect_s + 1
    stream.send("VERBOSE STATUS", until_s)
    found, large = bytearray(), None
    for block in stream.rest(until_s):
        if large is not None:
            large.feed(block)
            continue
        found += block
        if len(found) > REPORT_BYTES:
            if not found.lstrip().startswith(b"{"):
                raise RasError(f"a report of more than {REPORT_BYTES // 1024} KiB")
            large = LargeAnswer(pids)
            large.feed(bytes(found))
            found.clear()
    if large is not None:
        return large.finish()
    # names and numbers are ASCII; one byte a character, whatever is sent
    return parse(found.decode("latin-1"))


def _is_ours(connection: socket.socket, place: RasPlace) -> bool:
    inode = holder_inode(connection, place.pid)
    return inode is not None and any(
        _holds(procfs.PROC / str(pid) / "fd", f"socket:[{inode}]") for pid in place.pids.values()
    )


def _holds(folder: Path, target: str) -> bool:
    try:
        found, _ = bounded.links(folder, _MOST_FILES)
        return target in found
    except OSError:
        return False
