"""Every fact and mark survives the way into a line of a tape and back; nonsense is refused with its place."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kcover_ebpf.api.codec import Codec, Omit
from kcover_ebpf.api.json_values import UnknownWord, WrongValue
from kcover_ebpf.facts.devices import AerTotal, CudaContext
from kcover_ebpf.facts.host import Module, ProcessSeen, ThreadReading
from kcover_ebpf.facts.kernel import ProcessExit, SocketSample, Tick
from kcover_ebpf.ids import Pid
from kcover_ebpf.tapes.entries import FACTS, MARKS, TAPE, Header, Judge

encode, decode = TAPE.encode, TAPE.read
ENTRIES = {**FACTS, **MARKS, "header": Header}


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Anything of this type that a fact may hold."""
    hint = getattr(hint, "__supertype__", hint)
    inner = typing.get_args(hint)
    match typing.get_origin(hint):
        case origin if origin in (types.UnionType, typing.Union):
            (other,) = (item for item in inner if item is not types.NoneType)
            return st.none() | values(other)
        case origin if origin is tuple and inner[-1] is not Ellipsis:
            return st.tuples(*map(values, inner))
        case origin if origin is tuple:
            return st.lists(values(inner[0]), max_size=3).map(tuple)
        case origin if origin is frozenset:
            return st.frozensets(values(inner[0]), max_size=3)
        case origin if origin is dict:
            return st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3)
    if is_dataclass(hint):
        return objects(typing.cast("type", hint))
    if issubclass(hint, Enum):
        return st.sampled_from(hint)
    numbers: dict[type, st.SearchStrategy[Any]] = {
        bool: st.booleans(),
        int: st.integers(-(1 << 63), (1 << 64) - 1),
        float: st.floats(-1e11, 1e11),
        str: st.text(max_size=8),
        bytes: st.binary(max_size=8),
    }
    return numbers[hint]


def objects(kind: type) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(kind)
    return st.builds(kind, **{field.name: values(hints[field.name]) for field in fields(kind)})


@pytest.mark.parametrize("kind", ENTRIES.values(), ids=ENTRIES)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_decode__what_is_written_is_read_again(kind: type, data: st.DataObject) -> None:
    entry = data.draw(objects(kind))
    assert decode(kind, json.loads(json.dumps(encode(entry)))) == entry


def test_encode__what_has_its_default_is_left_out() -> None:
    context = CudaContext(1, Pid(2), "GPU-1", True)
    assert "active" in encode(context), "it has no default"
    seen = ProcessSeen(1, Pid(2), Pid(1), "x", ("x",))
    assert set(encode(seen)) == {"boottime_ns", "pid", "ppid", "comm", "argv"}


def test_decode__fields_of_a_newer_writer_are_passed_over() -> None:
    module = Module(1, 2, "x")
    assert decode(Module, {**encode(module), "build_id": [1, {"a": 2}]}) == module


READING = {
    "boottime_ns": 1,
    "pid": 1,
    "tid": 1,
    "wait_channel": "",
    "deadline_ns": None,
    "timed": False,
    "files": [],
}
TICK = {"boottime_ns": 1, "period_ns": 1, "lost_count": 0, "late": False}


@pytest.mark.parametrize(
    ("kind", "data", "why"),
    [
        (Tick, [], "expected an object, got"),
        (Tick, {}, "boottime_ns: missing"),
        (Tick, {**TICK, "late": 0}, "late: expected true or false, got '0'"),
        (Tick, {**TICK, "period_ns": True}, "period_ns: expected a whole number of 64 bits"),
        (Tick, {**TICK, "period_ns": 1.0}, "period_ns: expected a whole number"),
        (Tick, {**TICK, "period_ns": 1 << 64}, "got a larger one"),
        (Tick, {**TICK, "period_ns": -(10**5000)}, "got a larger one"),
        (Tick, {**TICK, "period_ns": None}, "period_ns: expected a whole number"),
        (Judge, {"unix_offset_s": float("nan")}, "unix_offset_s: expected a number"),
        (Judge, {"unix_offset_s": float("inf")}, "unix_offset_s: expected a number"),
        (Judge, {"unix_offset_s": 10**400}, "unix_offset_s: expected a number"),
        (
            SocketSample,
            {"boottime_ns": 1, "pid": 1, "fd": 1, "inode": 1, "state": 7},
            "state: expected a s",
        ),
        (
            SocketSample,
            {"boottime_ns": 1, "pid": 1, "fd": 1, "inode": 1, "state": "", "local": ["a"]},
            "local: expected 2 values, got 1",
        ),
        (AerTotal, {"boottime_ns": 1, "device": "", "severity": [1]}, "severity: expected one of"),
        (ThreadReading, {**READING, "lock_memory": "0g"}, "lock_memory: expected hexadecimal"),
        (ProcessExit, {"boottime_ns": "\x1b[2J"}, r"'\\x1b\[2J'"),
    ],
)
def test_decode__what_has_another_shape_is_refused_with_its_place(
    kind: type, data: object, why: str
) -> None:
    with pytest.raises(WrongValue, match=why):
        decode(kind, data)


def test_decode__a_word_of_a_newer_writer_is_not_taken_for_nonsense() -> None:
    with pytest.raises(UnknownWord, match="severity"):
        decode(AerTotal, {"boottime_ns": 1, "device": "", "severity": 9})


@dataclass(frozen=True)
class Counted:
    counts: Mapping[str, int]


def test_codec__numbers_by_text_are_read_as_numbers() -> None:
    form = Codec(key=str, omit=Omit.DEFAULTS)
    assert form.read(Counted, form.encode(Counted({"AllReduce": 4}))) == Counted({"AllReduce": 4})
    with pytest.raises(WrongValue):
        form.read(Counted, {"counts": {"AllReduce": "4"}})
