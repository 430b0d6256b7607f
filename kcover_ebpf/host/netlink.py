"""Messages of rtnetlink as bytes (netlink(7), rtnetlink(7)): headers, and what is in a datagram. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterator

HEADER = struct.Struct("=LHHLL")
"""Length with the header, type, flags, sequence number, port."""
ATTRIBUTE = struct.Struct("=HH")
"""Length with this, type."""
REQUEST, DUMP = 1, 0x300
"""NLM_F_REQUEST, NLM_F_DUMP"""


def messages(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and body of each message that is whole."""
    offset = 0
    while offset + HEADER.size <= len(raw):
        length, kind, *_ = HEADER.unpack_from(raw, offset)
        if length < HEADER.size or offset + length > len(raw):
            return
        yield kind, raw[offset + HEADER.size : offset + length]
        offset += (length + 3) & ~3


def attributes(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and value of each attribute that is whole."""
    offset = 0
    while offset + ATTRIBUTE.size <= len(raw):
        length, kind = ATTRIBUTE.unpack_from(raw, offset)
        if length < ATTRIBUTE.size or offset + length > len(raw):
            return
        yield kind & 0x3FFF, raw[offset + ATTRIBUTE.size : offset + length]
        offset += (length + 3) & ~3
