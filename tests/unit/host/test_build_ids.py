"""Build ids in the first page of a library, which may say anything."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.host.build_ids import HEAD_BYTES, short_build_id

ID = bytes(range(0xA0, 0xB4))
NOTE_AT = 64 + 2 * 56


def note(kind: int = 3, owner: bytes = b"GNU\0", desc: bytes = ID) -> bytes:
    return struct.pack("=III", len(owner), len(desc), kind) + owner + desc


def head(notes: bytes, *, start: int = 64, entry: int = 56, count: int = 2) -> bytes:
    ident = b"\x7fELF\x02\x01".ljust(16, b"\0")
    header = struct.pack(
        "=16sHHIQQQIHHHHHH", ident, 3, 62, 1, 0, start, 0, 0, 64, entry, count, 0, 0, 0
    )
    load = struct.pack("=IIQQQQQQ", 1, 5, 0, 0, 0, 4096, 4096, 4096)
    segment = struct.pack("=IIQQQQQQ", 4, 4, NOTE_AT, 0, 0, len(notes), len(notes), 4)
    return (header + load + segment + notes).ljust(HEAD_BYTES, b"\0")


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (head(note()), "a0a1a2a3"),
        (head(note(kind=1) + note()), "a0a1a2a3"),
        (head(note(kind=1, owner=b"GNU\0", desc=b"abc") + b"\0" + note()), "a0a1a2a3"),
        (head(note(owner=b"XYZ\0")), ""),
        (head(note(kind=1)), ""),
        (head(note(desc=b"ab")), ""),
        (head(note(), count=60000), ""),
        (head(note(), entry=32), ""),
        (head(note(), start=HEAD_BYTES), ""),
        (head(note())[:100], ""),
        (head(note())[: NOTE_AT + 10], ""),
        (b"#!/bin/sh", ""),
        (b"", ""),
    ],
    ids=[
        *("one note", "the second note", "padding", "another owner", "another note", "too short"),
        *("too many segments", "other segments", "no segments", "cut", "cut in the note"),
        *("a script", "nothing"),
    ],
)
def test_short_build_id__of_a_page(data: bytes, found: str) -> None:
    assert short_build_id(data) == found


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_short_build_id__anything_is_an_id_or_none(notes: bytes, data: bytes) -> None:
    for page in (head(notes), head(b"")[:64] + data, data):
        assert len(short_build_id(page)) in (0, 8)
