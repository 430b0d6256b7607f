"""Frames between us and a helper that may have been taken over: bounded before anything is built of them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.confined.frames import (
    MOST_BYTES,
    MOST_COMMAS,
    MOST_CONTAINERS,
    FrameError,
    FrameReader,
    pack,
    parse,
)

VALUES = st.dictionaries(
    st.text(), st.recursive(st.none() | st.integers() | st.text(), st.lists), max_size=5
)


@given(st.lists(VALUES, max_size=5), st.integers(1, 50))
def test_frame_reader__whatever_was_packed_comes_out_in_blocks_of_any_size(
    values: list[dict[str, object]], size: int
) -> None:
    stream = b"".join(map(pack, values))
    reader = FrameReader()
    found = [
        value
        for start in range(0, len(stream), size)
        for value in reader.feed(stream[start : start + size])
    ]
    assert found == values


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"[" * (MOST_CONTAINERS + 1), "more parts"),
        (b'{"a": [' + b"1," * (MOST_COMMAS + 1) + b"1]}", "more parts"),
        (b" " * (MOST_BYTES + 1), "at most"),
        (b"[]", "no object"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 10_000, "not JSON"),
    ],
)
def test_parse__anything_else_is_refused(body: bytes, reason: str) -> None:
    with pytest.raises(FrameError, match=reason):
        parse(body)


def test_frame_reader__a_length_that_is_too_large_is_refused_before_its_bytes_come() -> None:
    with pytest.raises(FrameError, match="at most"):
        list(FrameReader().feed((MOST_BYTES + 1).to_bytes(4, "big")))


def test_pack__what_the_other_side_would_refuse_is_not_sent() -> None:
    with pytest.raises(FrameError):
        pack({"a": "x" * (MOST_BYTES + 1)})
    assert json.loads(pack({"a": 1})[4:]) == {"a": 1}
