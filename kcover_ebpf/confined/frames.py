"""What a helper and we say to each other: frames of a length (four bytes, the highest first) and JSON. Pure.

The helper parses what tenants wrote and may have been taken over. So a frame's bytes, containers and commas are counted
before anything is built of it: a byte of JSON can become thirty in memory. Dataclasses travel inside as
`agent.reader.form` writes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

MOST_BYTES = 1 << 20
"""A turn over 256 logs is some 500 kB, a thread with 4,096 mapped files 300 kB."""
MOST_CONTAINERS = 16_384
MOST_COMMAS = 65_536
_LENGTH_BYTES = 4


class FrameError(Exception):
    """It is no frame, or a larger one than is allowed; the message says which."""


def pack(value: Mapping[str, Any]) -> bytes:
    """The bytes of a frame; raises `FrameError` for one that the other side would refuse."""
    body = json.dumps(value, separators=(",", ":")).encode()
    _check(body)
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


def parse(body: bytes) -> dict[str, Any]:
    """The object in a frame; raises `FrameError`."""
    _check(body)
    try:
        value = json.loads(body)
    except (ValueError, RecursionError, MemoryError) as error:
        raise FrameError(f"not JSON: {type(error).__name__}") from error
    if not isinstance(value, dict):
        raise FrameError("no object")
    return value


def _check(body: bytes) -> None:
    if len(body) > MOST_BYTES:
        raise FrameError(f"a frame of {len(body)} bytes; at most {MOST_BYTES} are allowed")
    if body.count(b"{") + body.count(b"[") > MOST_CONTAINERS or body.count(b",") > MOST_COMMAS:
        raise FrameError("a frame of more parts than are allowed")


class FrameReader:
    """Cuts a stream into frames; keeps at most one of them."""

    def __init__(self) -> None:
        self._left = bytearray()

    def feed(self, block: bytes) -> Iterator[dict[str, Any]]:
        """The objects of the frames that end in this block; raises `FrameError`: then the stream is of no more use."""
        self._left += block
        while len(self._left) >= _LENGTH_BYTES:
            size = int.from_bytes(self._left[:_LENGTH_BYTES], "big")
            if size > MOST_BYTES:
                raise FrameError(f"a frame of {size} bytes; at most {MOST_BYTES} are allowed")
            end = _LENGTH_BYTES + size
            if len(self._left) < end:
                return
            body = bytes(self._left[_LENGTH_BYTES:end])
            del self._left[:end]
            yield parse(body)
