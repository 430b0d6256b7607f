"""The frames between us and a helper: a length (four bytes, big-endian) and JSON.

Pure. A helper parses input from tenants and may have been taken over. So the bytes, containers and commas of a
frame are counted before anything is built of it: a byte of JSON can become thirty in memory. Dataclasses are
encoded as `agent.reader.program` does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

MOST_BYTES = 1 << 20
"""Most bytes of a frame. A turn over 256 logs is some 500 kB, a thread with 4,096 mapped files 300 kB."""
MOST_CONTAINERS = 16_384
MOST_COMMAS = 65_536
_LENGTH_BYTES = 4


class FrameError(Exception):
    """The bytes are not a frame, or exceed a bound; the message says which."""


def pack(value: Mapping[str, Any]) -> bytes:
    """A frame as bytes; raises `FrameError` if the receiver would refuse it."""
    body = json.dumps(value, separators=(",", ":")).encode()
    _check(body)
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


def parse(body: bytes) -> dict[str, Any]:
    """The JSON object in a frame; raises `FrameError`."""
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
    """Cuts a stream into frames; buffers at most one of them."""

    def __init__(self) -> None:
        self._left = bytearray()

    def feed(self, block: bytes) -> Iterator[dict[str, Any]]:
        """The objects of the frames that end in this block.

        Raises `FrameError`, after which the stream cannot be used.
        """
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
