"""Speaks NCCL's RAS protocol: requests reports, and receives the events of servers that send them.

Several processes of one network namespace share the port (SO_REUSEPORT), so a connection reaches any of them. If
that process is stopped, the connection is accepted but never answered. If the namespace is shared, it may belong to
another job. So every step has a short time-out, a request is tried several times, and a report counts only if one
of our own processes owns the other end of the connection.
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
"""Most descriptors examined in one process, to see whether it listens on the port."""

DEFAULT_PORT = 28028
_PROTOCOL = 2
REPORT_BYTES = 2 * 1024 * 1024
"""Most bytes of a report. NCCL writes some 600 bytes for each rank of each communicator, so this is
512 ranks in six of them; larger reports are parsed as a stream. The process that listens on the
port decides how much arrives."""
_LINE_BYTES = 4096
"""Most bytes of a line; answers and events of NCCL are shorter than 300."""
_EVENTS_BYTES = 64 * 1024
_EVENTS = 256
"""Most events read at once; one is sent for each process that dies or joins."""
_READERS = threading.BoundedSemaphore(2)
"""Most reports read and parsed at the same time, however many jobs there are; this bounds memory."""


@dataclass(frozen=True, slots=True)
class RasPatience:
    """Time limits in seconds, and the number of attempts."""

    connect_s: float = 1.0
    """Limit for connecting, and for each short answer."""
    collect_s: float = 5.0
    """Limit for the RAS threads of all ranks to answer; NCCL's own default."""
    tries: int = 4


@dataclass(frozen=True, slots=True)
class RasPlace:
    """The address of one RAS listener in one network namespace, and the job's processes there."""

    address: tuple[str, int]
    pid: Pid
    """Any process in that namespace, which is entered through it."""
    pids: Mapping[int, Pid]
    """The job's processes there: number in their own pid namespace -> number in ours."""


def port_of(environ_value: str | None) -> int:
    """The port in NCCL_RAS_ADDR ("host:port", "[ipv6]:port"), or the default."""
    _, _, port = (environ_value or "").rpartition(":")
    number = int(port) if port.isascii() and port.isdecimal() and len(port) < 6 else 0
    return number if 0 < number < 65536 else DEFAULT_PORT


class RasSource(Protocol):
    """Sends the requests. Calls may take as long as `patience` allows, so the sensor's loop must not make them."""

    def ask(self, place: RasPlace, patience: RasPatience) -> RasReport:
        """A report of this job; raises `RasError` if no attempt succeeds."""
        ...

    def dead(self, place: RasPlace, patience: RasPatience, seconds: float) -> list[tuple[str, int]]:
        """(host, pid there) of each process that a server of 2.29 or later reports dead within `seconds`.

        Returns an empty list at once if the server has no such events.
        """
        ...


class RasHere:
    """A `RasSource` that connects from this process."""

    def ask(self, place: RasPlace, patience: RasPatience) -> RasReport:
        """A report of this job; raises `RasError` if no attempt succeeds."""
        return ask(place, patience)

    def dead(self, place: RasPlace, patience: RasPatience, seconds: float) -> list[tuple[str, int]]:
        """Processes reported dead within `seconds`; see `RasSource`."""
        return dead_peers(listen(place, patience, seconds))


def ask(place: RasPlace, patience: RasPatience) -> RasReport:
    """A report of this job over a new connection; see `RasSource`."""
    return tried(place, patience, partial(report_over, place=place, patience=patience))


def listen(place: RasPlace, patience: RasPatience, seconds: float) -> list[str]:
    """The events of a server over a new connection; see `listen_over`."""
    try:
        with connect(place.address, patience.connect_s, place.pid) as connection:
            return listen_over(connection, place, patience, seconds)
    except OSError:
        return []


def tried(
    place: RasPlace, patience: RasPatience, read: Callable[[socket.socket], RasReport]
) -> RasReport:
    """A report of this job by `read`, with a new connection for each attempt; raises `RasError` if none succeeds."""
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
    """The report of the server at the other end; raises `RasError`, `OSError`."""
    stream = _greeted(connection, place, patience)
    with _reader(patience):
        return _report(stream, patience, place.pids)


def listen_over(
    connection: socket.socket, place: RasPlace, patience: RasPatience, seconds: float
) -> list[str]:
    """Events that a server sends within `seconds`, one JSON object each."""
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
    """(host, pid there) of each process that an event reports dead; other events are skipped."""
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
    """Lines over a connection. `until_s` (monotonic) ends a call even if bytes keep arriving slowly."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._left = b""

    def send(self, line: str, until_s: float) -> None:
        self._connection.settimeout(max(0.001, until_s - time.monotonic()))
        self._connection.sendall(line.encode() + b"\n")

    def line(self, until_s: float) -> str:
        """The next line, or the rest before the end of the stream; raises `RasError` if it is too long."""
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
        """All bytes until the end of the stream."""
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
    """A conversation with one of our own processes, in JSON if the server supports it."""
    stream = _Stream(connection)
    greeting = _say(stream, f"CLIENT PROTOCOL {_PROTOCOL}", patience)
    if not greeting.startswith("SERVER PROTOCOL "):
        raise RasError(f"not a RAS server: {greeting[:80]!r}")
    # before the greeting, the connection may not have been accepted, and then no process owns it
    if not _is_ours(connection, place):
        raise RasError("another job answered")
    _say(stream, f"TIMEOUT {int(patience.collect_s)}", patience)
    # older versions answer with an error, and send the report as text
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
    # names and numbers are ASCII: decode one character per byte, whatever was sent
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
