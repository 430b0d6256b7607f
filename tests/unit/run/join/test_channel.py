"""Frames between two runs: who does not know the secret, or sends something again, is not believed."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from kcover_ebpf.confined import frames
from kcover_ebpf.run.join.channel import Channel, ChannelError

SECRET = b"0123456789abcdef"


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, two = socket.socketpair()
    with one, two:
        yield one, two


def opened(
    pair: tuple[socket.socket, socket.socket], other: bytes = SECRET
) -> tuple[Channel, Channel]:
    """The server's end and the client's, which may have another secret."""
    found: list[Channel] = []
    thread = threading.Thread(
        target=lambda: found.append(Channel.opened(pair[1], other, is_server=False))
    )
    thread.start()
    server = Channel.opened(pair[0], SECRET, is_server=True)
    thread.join()
    return server, found[0]


def test_channel__objects_travel_both_ways(pair: tuple[socket.socket, socket.socket]) -> None:
    server, client = opened(pair)
    for number in range(3):
        client.send({"number": number})
        assert server.receive() == {"number": number}
        server.send({"answer": number})
        assert client.receive() == {"answer": number}


def test_channel__another_secret_is_not_believed_by_either_side(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    server, client = opened(pair, b"another secret!!")
    client.send({})
    server.send({})
    for end in (server, client):
        with pytest.raises(ChannelError, match="same --join-secret"):
            end.receive()


def recorded(pair: tuple[socket.socket, socket.socket], client: Channel) -> bytes:
    """The bytes of a frame that the client sends."""
    client.send({"a": 1})
    return pair[0].recv(1 << 16, socket.MSG_PEEK)


def test_channel__a_frame_that_is_sent_again_is_not_believed(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    server, client = opened(pair)
    frame = recorded(pair, client)
    assert server.receive() == {"a": 1}
    pair[1].sendall(frame)
    with pytest.raises(ChannelError, match="same --join-secret"):
        server.receive()


def test_channel__a_frame_of_another_connection_is_not_believed(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    _, client = opened(pair)
    frame = recorded(pair, client)
    other = socket.socketpair()
    with other[0], other[1]:
        server, _ = opened(other)
        other[1].sendall(frame)
        with pytest.raises(ChannelError, match="same --join-secret"):
            server.receive()


def test_channel__a_frame_that_is_reflected_is_not_believed(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    _, client = opened(pair)
    frame = recorded(pair, client)
    pair[0].sendall(frame)
    with pytest.raises(ChannelError, match="same --join-secret"):
        client.receive()


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"x" * 46, "not a joined run of this version"),
        (b"kcover-join 2\n" + bytes(32), "not a joined run of this version"),
        (b"", "closed"),
    ],
)
def test_channel__a_wrong_greeting_ends_it(
    pair: tuple[socket.socket, socket.socket], sent: bytes, said: str
) -> None:
    pair[1].sendall(sent)
    pair[1].shutdown(socket.SHUT_WR)
    with pytest.raises(ChannelError, match=said):
        Channel.opened(pair[0], SECRET, is_server=True)


@pytest.mark.parametrize(("authentic", "size"), [(False, 4097), (True, frames.MOST_BYTES + 1)])
def test_channel__what_is_larger_than_allowed_is_not_read(
    pair: tuple[socket.socket, socket.socket], authentic: bool, size: int
) -> None:
    server, client = opened(pair)
    if authentic:
        client.send({})
        server.receive()
    pair[1].sendall(bytes(32) + size.to_bytes(4, "big"))
    with pytest.raises(ChannelError, match="exceeds the limit"):
        server.receive()


def test_channel__a_large_object_is_refused_by_the_sender(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    _, client = opened(pair)
    value: dict[str, Any] = {"text": "x" * frames.MOST_BYTES}
    with pytest.raises(ChannelError, match="at most"):
        client.send(value)
