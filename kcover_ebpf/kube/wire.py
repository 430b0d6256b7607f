"""HTTP/1.1 over kept-alive connections to one server, as much of it as an API server needs.

Connections are urllib3's, with all that the client's configuration says about TLS and proxies. What goes
over them is written and read here: a request costs 0.1 ms of CPU instead of 0.6, and a controller that is
asked 150 questions at once spends most of its time with requests.

Source: RFC 9112.
"""

from __future__ import annotations

import re
import select
import socket
import weakref
from collections.abc import Iterator, Mapping
from io import BufferedIOBase
from typing import Any

CONNECT_TIMEOUT_S = 5.0
_MOST_LINE = 65536
_MOST_HEADERS = 200
_NO_HEAD = re.compile(r"[^\x21-\x7e]")
"""In a method or a target."""
_NO_VALUE = re.compile(r"[^\x20-\x7e]")


class Connection:
    """One connection; used by one request at a time."""

    def __init__(self, made: socket.socket) -> None:
        self._socket = made
        self._file = made.makefile("rb")

    def send(self, raw: bytes, timeout_s: float) -> None:
        """Send a whole request; `timeout_s` holds for each wait from now on."""
        self._socket.settimeout(timeout_s)
        self._socket.sendall(raw)

    @property
    def is_quiet(self) -> bool:
        """True unless the server closed it, or sent what nobody asked for."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def answer(self) -> tuple[int, dict[str, str]]:
        """Status and headers of the next answer; raises as `read_head` does, or `OSError`."""
        return read_head(self._file)

    def body(self, headers: Mapping[str, str]) -> Iterator[bytes]:
        """The parts of the body as they come; raises as `read_body` does, or `OSError`."""
        return read_body(self._file, headers)

    def close(self) -> None:
        """End it."""
        self._file.close()
        self._socket.close()


class Answer:
    """What the server answered; `close` gives the connection back, or ends it where something is left of the body."""

    def __init__(self, wire: Wire, connection: Connection) -> None:
        """Read its head; raises as `Connection.answer` does."""
        self._wire, self._connection = wire, connection
        self.status, self.headers = connection.answer()
        self._is_over = False

    def parts(self) -> Iterator[bytes]:
        """The body, as it comes; raises as `Connection.body` does."""
        yield from self._connection.body(self.headers)
        self._is_over = True

    def read(self) -> bytes:
        """The whole body."""
        return b"".join(self.parts())

    def close(self) -> None:
        """Nothing more is read."""
        if self._is_over and self.headers.get("connection", "").lower() != "close":
            self._wire.give_back(self._connection)
        else:
            self._connection.close()


class Wire:
    """Connections to one server. Thread-safe."""

    def __init__(self, pool: Any, host: str, most_idle: int) -> None:
        """`pool`: a `urllib3.HTTPConnectionPool`, asked for new connections only; `host`: as in the server's URL."""
        self._pool, self._host, self._most_idle = pool, host, most_idle
        self._idle: list[Connection] = []
        weakref.finalize(self, _close, self._idle)

    def ask(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None,
        timeout_s: float,
    ) -> Answer:
        """Send a request; raises `OSError`, `EOFError`, `ValueError`, or what urllib3 raises where nobody answers.

        `timeout_s`: for each wait for the server.
        """
        raw = request_of(method, target, {"Host": self._host, **headers}, body)
        connection = self._take(min(timeout_s, CONNECT_TIMEOUT_S))
        try:
            connection.send(raw, timeout_s)
            return Answer(self, connection)
        except BaseException:
            connection.close()
            raise

    def give_back(self, connection: Connection) -> None:
        """A connection may be used again."""
        if len(self._idle) < self._most_idle:
            self._idle.append(connection)
        else:
            connection.close()

    def _take(self, timeout_s: float) -> Connection:
        while True:
            try:
                kept = self._idle.pop()
            except IndexError:
                return self._connect(timeout_s)
            if kept.is_quiet:
                return kept
            kept.close()

    def _connect(self, timeout_s: float) -> Connection:
        made = self._pool._new_conn()
        made.timeout = timeout_s
        if self._pool.proxy is not None:
            self._pool._prepare_proxy(made)  # a tunnel, where the server wants TLS
        if made.sock is None:
            made.connect()
        return Connection(made.sock)


def _close(connections: list[Connection]) -> None:
    for each in connections:
        each.close()


def request_of(method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
    """A request as it is sent; raises `ValueError` for what would make two requests of one."""
    wrong = _NO_HEAD.search(method + target)
    if wrong is not None or any(_NO_VALUE.search(each) for each in headers.values()):
        raise ValueError(f"{method} {target[:200]!r} is no request")
    lines = [f"{method} {target} HTTP/1.1", *(f"{key}: {headers[key]}" for key in headers)]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join((*lines, "\r\n")).encode() + (body or b"")


def read_head(file: BufferedIOBase) -> tuple[int, dict[str, str]]:
    """Status and headers, names in lower case; raises `ValueError` for what is no HTTP, `EOFError` if it is cut off."""
    version, _, rest = _line(file).partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdecimal():
        raise ValueError("the answer is no HTTP")
    headers: dict[str, str] = {}
    while line := _line(file):
        name, colon, value = line.partition(":")
        if not colon or len(headers) >= _MOST_HEADERS:
            raise ValueError("the headers of the answer cannot be read")
        headers[name.lower()] = value.strip()
    return int(rest[:3]), headers


def read_body(file: BufferedIOBase, headers: Mapping[str, str]) -> Iterator[bytes]:
    """The parts of a body as they come; raises `ValueError` for a bad length, `EOFError` if it is cut off."""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        while size := int(_line(file).partition(";")[0], 16):
            yield _exactly(file, size)
            _line(file)
        while _line(file):
            pass  # trailers
        return
    length = headers.get("content-length")
    if length is None:
        # whoever does not say how long it is closes the connection behind it
        yield from iter(lambda: file.read(_MOST_LINE), b"")
    else:
        yield _exactly(file, int(length))


def _line(file: BufferedIOBase) -> str:
    raw = file.readline(_MOST_LINE)
    if not raw.endswith(b"\n"):
        raise EOFError("the server closed the connection")
    return raw.rstrip(b"\r\n").decode("latin-1")


def _exactly(file: BufferedIOBase, size: int) -> bytes:
    if size < 0:
        raise ValueError("the answer has a negative length")
    raw = file.read(size)
    if len(raw) < size:
        raise EOFError("the server closed the connection")
    return raw
