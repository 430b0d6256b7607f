"""A pickle is read without Python's own reader: plain data comes out alike, everything else is refused."""

from __future__ import annotations

import pickle
import pickletools
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.collectives.recorder import pickle_machine
from kcover_ebpf.collectives.recorder.pickle_machine import PickleError, load
from testbed.driver.recorder_dumps import dump, pickled, steps

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
SCALARS = (
    st.none() | st.booleans() | st.integers(_LEAST, _MOST) | st.floats(allow_nan=False) | st.text()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers(0, 9), inner)
    ),
    max_leaves=30,
)


@given(VALUES, st.integers(2, 5))
def test_load__plain_data_is_read_as_it_was_written(value: object, protocol: int) -> None:
    assert load(pickle.dumps(value, protocol=protocol)) == value


@given(st.binary(max_size=400))
def test_load__any_bytes_are_read_or_refused(data: bytes) -> None:
    assert_read_or_refused(data)


def assert_read_or_refused(data: bytes) -> None:
    """No other exception escapes."""
    with suppress(PickleError):
        load(data)


DUMP = pickled(dump(steps(3, ends="all_reduce")))


@given(st.integers(0, len(DUMP) - 1), st.integers(0, 255))
def test_load__a_dump_with_one_byte_changed_is_read_or_refused(at: int, byte: int) -> None:
    assert_read_or_refused(DUMP[:at] + bytes([byte]) + DUMP[at + 1 :])


@given(st.integers(0, len(DUMP) - 1))
def test_load__half_a_dump_is_refused(size: int) -> None:
    with pytest.raises(PickleError):
        load(DUMP[:size])


class _Hostile:
    def __init__(self, *call: object) -> None:
        self._call = call

    def __reduce__(self) -> tuple[object, ...]:
        import os

        return os.system, self._call


@pytest.mark.parametrize("protocol", range(2, 6))
def test_load__a_pickle_that_calls_something_calls_nothing(tmp_path: Path, protocol: int) -> None:
    victim = tmp_path / "called"
    data = pickle.dumps({"version": "2.10", "x": _Hostile(f"touch {victim}")}, protocol=protocol)
    with pytest.raises(PickleError, match="import or call"):
        load(data)
    assert not victim.exists()
    pickle.loads(data)
    assert victim.exists(), "the standard library's reader does call it"


def test_load__no_instruction_that_may_call_is_known() -> None:
    calls = {"GLOBAL", "STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "REDUCE", "BUILD"}
    calls |= {"EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID", "NEXT_BUFFER"}
    codes = {
        opcode.code.encode("latin-1") for opcode in pickletools.opcodes if opcode.name in calls
    }
    assert len(codes) == len(calls)
    for code in codes:
        with pytest.raises(PickleError, match=r"import or call|does not need"):
            load(b"\x80\x02]" + code + b"os\nsystem\n.")


def bomb_of_marks() -> bytes:
    return b"(" * 1000 + b"."


def bomb_of_containers() -> bytes:
    return b"](" + b"]" * 400_000 + b"e."


def bomb_of_text() -> bytes:
    return b"X" + struct.pack("<I", 1 << 31) + b"."


def bomb_of_numbers() -> bytes:
    return b"\x8b" + struct.pack("<I", 1 << 30) + b"."


def bomb_of_keys() -> bytes:
    return b"})" + b"\x85" * 200_000 + b"Ns."


def bomb_of_steps() -> bytes:
    return b"]" + b"q\x00" * 3_000_000 + b"."


def bomb_of_bytes() -> bytes:
    return b"\x80\x02" + bytes(pickle_machine.MOST_BYTES)


@pytest.mark.parametrize(
    "bomb",
    [
        bomb_of_marks,
        bomb_of_containers,
        bomb_of_text,
        bomb_of_numbers,
        bomb_of_keys,
        bomb_of_steps,
        bomb_of_bytes,
    ],
)
def test_load__a_bomb_is_refused(bomb: Callable[[], bytes]) -> None:
    with pytest.raises(PickleError):
        load(bomb())


def test_load__a_list_that_holds_itself_is_read() -> None:
    found = load(b"\x80\x02]q\x00h\x00a.")
    assert isinstance(found, list)
    assert found[0] is found
