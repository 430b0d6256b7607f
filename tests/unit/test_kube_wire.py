"""What is sent and read over a connection to the API server, and when one is used again."""

from __future__ import annotations

import io
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import urllib3
from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.kube.wire import Wire, read_body, read_head, request_of

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
NAMES = st.text(st.sampled_from("abcdefXYZ-"), min_size=1)
VALUES = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E)).map(str.strip)


@given(st.integers(100, 599), st.dictionaries(NAMES.map(str.lower), VALUES, max_size=20))
def test_a_head_is_read_as_it_was_written(status: int, headers: dict[str, str]) -> None:
    lines = [f"HTTP/1.1 {status} Any Reason", *(f"{key}: {headers[key]}" for key in headers)]
    file = io.BytesIO("\r\n".join((*lines, "\r\n")).encode() + b"rest")
    assert read_head(file) == (status, headers)
    assert file.read() == b"rest", "nothing of the body is taken"


@given(st.binary(max_size=200), st.booleans())
def test_anything_else_is_refused(raw: bytes, greets: bool) -> None:
    try:
        status, headers = read_head(io.BytesIO(b"HTTP/1.1 200\r\n" * greets + raw))
    except (ValueError, EOFError):
        return
    assert 0 <= status <= 999
    assert all(name == name.lower() for name in headers)


def chunked(parts: list[bytes]) -> bytes:
    whole = b"".join(b"%x;x=y\r\n%s\r\n" % (len(part), part) for part in parts)
    return whole + b"0\r\nTrailer: x\r\n\r\n"


CHUNKED = {"transfer-encoding": "chunked"}


@given(st.lists(st.binary(min_size=1)), st.data())
def test_chunks_come_as_they_were_sent_and_never_cut_off(
    parts: list[bytes], data: st.DataObject
) -> None:
    raw = chunked(parts)
    file = io.BytesIO(raw + OK)
    assert list(read_body(file, CHUNKED)) == parts
    assert file.read() == OK
    cut = data.draw(st.integers(0, len(raw) - 1))
    with pytest.raises((EOFError, ValueError)):
        list(read_body(io.BytesIO(raw[:cut]), CHUNKED))


@pytest.mark.parametrize("length", ["-1", "x", "3", ""])
def test_a_body_of_another_length_is_refused(length: str) -> None:
    with pytest.raises((EOFError, ValueError)):
        list(read_body(io.BytesIO(b"ab"), {"content-length": length}))


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    assert b"".join(read_body(io.BytesIO(b"ab"), {})) == b"ab"


@given(st.text(min_size=1), st.text())
def test_no_request_becomes_two(target: str, value: str) -> None:
    try:
        raw = request_of("GET", target, {"X": value}, None)
    except ValueError:
        return
    assert raw == f"GET {target} HTTP/1.1\r\nX: {value}\r\n\r\n".encode()
    assert raw.count(b"\r") == raw.count(b"\n") == 3
    assert raw.partition(b"\r")[0].count(b" ") == 2


@pytest.mark.parametrize("name", ["a b", "a\r\nHost: x", "ä", "\x00"])
def test_a_name_that_is_no_part_of_a_path_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no request"):
        request_of("GET", f"/api/v1/pods/{name}", {}, None)


class Server:
    """Answers each request with the next of `script`; None: closes the connection instead."""

    def __init__(self, script: list[bytes | None]) -> None:
        self.script = script
        self.connections = 0
        self.closed = threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while self.script:
            connection, _ = self._socket.accept()
            self.connections += 1
            with connection, connection.makefile("rb") as file:
                self._serve(connection, file)
            self.closed.set()

    def _serve(self, connection: socket.socket, file: io.BufferedReader) -> None:
        while self.script and (answer := self.script.pop(0)) is not None:
            while line := file.readline():
                if line == b"\r\n":
                    break
            if not line:
                self.script.insert(0, answer)
                return
            connection.sendall(answer)

    def close(self) -> None:
        self._thread.join()
        self._socket.close()


@contextmanager
def serving(*script: bytes | None) -> Iterator[tuple[Server, Wire, Callable[[], bytes]]]:
    server = Server(list(script))
    pool = urllib3.HTTPConnectionPool("127.0.0.1", server.port)
    wire = Wire(pool, f"127.0.0.1:{server.port}", 1)

    def ask() -> bytes:
        answer = wire.ask("GET", "/x", {}, None, 30.0)
        try:
            return answer.read()
        finally:
            answer.close()

    yield server, wire, ask
    server.close()


def test_a_connection_is_used_again() -> None:
    with serving(OK, OK, OK) as (server, _, ask):
        assert [ask(), ask(), ask()] == [b"{}"] * 3
    assert server.connections == 1


def test_a_connection_that_the_server_closed_is_not_used_again() -> None:
    with serving(OK, None, OK) as (server, _, ask):
        ask()
        assert server.closed.wait(30)
        assert ask() == b"{}"
    assert server.connections == 2


def test_a_connection_with_something_left_on_it_is_not_used_again() -> None:
    with serving(OK, OK) as (server, wire, ask):
        wire.ask("GET", "/x", {}, None, 30.0).close()
        assert ask() == b"{}"
    assert server.connections == 2


def test_a_connection_is_not_used_again_if_the_server_says_so() -> None:
    closing = OK.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
    with serving(closing, OK) as (server, _, ask):
        assert [ask(), ask()] == [b"{}"] * 2
    assert server.connections == 2


def test_only_so_many_idle_connections_are_kept() -> None:
    with serving(OK, None, OK) as (_, wire, ask):
        first = wire.ask("GET", "/x", {}, None, 30.0)
        assert first.read() == b"{}"
        assert ask() == b"{}"
        first.close()
        assert len(wire._idle) == 1
