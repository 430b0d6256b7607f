"""An authenticated connection between two runs that share a secret: frames of JSON, each with its own code.

Both sides send a greeting with a random number. The key of a connection is derived from both numbers and the
secret, so that nothing recorded is accepted again. Each frame has a SHA-256 HMAC over its direction, its number and
its bytes, which is checked before the bytes are parsed (`confined.frames` bounds those). Nothing is encrypted.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import socket
from collections.abc import Mapping
from typing import Any

from kcover_ebpf.confined import frames
from kcover_ebpf.tunables.host import JOIN_ANSWER_S, JOIN_SILENT_S

_GREETING = b"kcover-join 1\n"
_NUMBER_BYTES, _CODE_BYTES, _LENGTH_BYTES = 32, 32, 4
_FIRST_BYTES = 4096
"""The most bytes of the first frame: its sender may not know the secret."""


class ChannelError(Exception):
    """The connection is unusable; the message says why."""


class Channel:
    """One end of a connection; may be read by one thread and written by another."""

    def __init__(self, connection: socket.socket, key: bytes, *, is_server: bool) -> None:
        """Not called directly: use `opened`."""
        self._connection, self._key = connection, key
        self._mine, self._other = (b"s", b"c") if is_server else (b"c", b"s")
        self._sent_count = self._received_count = 0

    @classmethod
    def opened(cls, connection: socket.socket, secret: bytes, *, is_server: bool) -> Channel:
        """Exchange greetings; raises `ChannelError`. Only a valid frame proves that the other side knows the secret."""
        connection.settimeout(JOIN_ANSWER_S)
        mine = os.urandom(_NUMBER_BYTES)
        try:
            connection.sendall(_GREETING + mine)
            greeting = _exactly(connection, len(_GREETING) + _NUMBER_BYTES)
        except OSError as error:
            raise ChannelError(f"no greeting: {error}") from error
        if not greeting.startswith(_GREETING):
            raise ChannelError("the other side is not a joined run of this version")
        other = greeting[len(_GREETING) :]
        numbers = other + mine if is_server else mine + other
        key = hmac.digest(secret, _GREETING + numbers, hashlib.sha256)
        return cls(connection, key, is_server=is_server)

    def send(self, value: Mapping[str, Any]) -> None:
        """Send an object as one frame; raises `ChannelError`."""
        try:
            packed = frames.pack(value)
            code = self._code(self._mine, self._sent_count, packed)
            self._connection.sendall(code + packed)
        except (OSError, frames.FrameError) as error:
            raise ChannelError(f"cannot send: {error}") from error
        self._sent_count += 1

    def receive(self) -> dict[str, Any]:
        """Receive the next object, waiting at most `JOIN_SILENT_S`. Raises `ChannelError`."""
        try:
            code = _exactly(self._connection, _CODE_BYTES)
            length = _exactly(self._connection, _LENGTH_BYTES)
            size = int.from_bytes(length, "big")
            if size > (frames.MOST_BYTES if self._received_count else _FIRST_BYTES):
                raise ChannelError(f"a frame of {size} bytes exceeds the limit")
            body = _exactly(self._connection, size)
            if not hmac.compare_digest(
                code, self._code(self._other, self._received_count, length + body)
            ):
                raise ChannelError("the other side does not have the same --join-secret")
            self._received_count += 1
            self._connection.settimeout(JOIN_SILENT_S)
            return frames.parse(body)
        except (OSError, frames.FrameError) as error:
            raise ChannelError(str(error) or type(error).__name__) from error

    def close(self) -> None:
        """Close the connection, also for a thread that waits for it."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _code(self, direction: bytes, number: int, packed: bytes) -> bytes:
        return hmac.digest(
            self._key, direction + number.to_bytes(8, "big") + packed, hashlib.sha256
        )


def _exactly(connection: socket.socket, size: int) -> bytes:
    """Exactly this many bytes; raises `ChannelError` if the connection ends before, OSError if it takes too long."""
    found = bytearray()
    while len(found) < size:
        block = connection.recv(size - len(found))
        if not block:
            raise ChannelError("the connection was closed")
        found += block
    return bytes(found)
