"""Both sides of bpf/events.h agree: every struct and enum the C side has, field by field."""

import ctypes
import inspect
import json
import re
import subprocess
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest

from kcover_ebpf.records import wire
from tests.skips import ROOT

OBJECTS = ROOT / "kcover_ebpf" / "objects"
EVENTS_H = ROOT / "bpf" / "events.h"
ARCHITECTURES = ("x86_64", "arm64")

Type = dict[str, Any]


def _types(architecture: str) -> list[Type]:
    path = OBJECTS / architecture / "layout.bpf.o"
    command = ["bpftool", "--json", "btf", "dump", "file", str(path)]
    done = subprocess.run(command, capture_output=True, check=True, timeout=30)
    types: list[Type] = json.loads(done.stdout)["types"]
    return types


def _camel(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


def _resolved(types: list[Type], number: int) -> Type:
    found = types[number - 1]
    assert found["id"] == number
    if found["kind"] in ("TYPEDEF", "CONST", "VOLATILE"):
        return _resolved(types, found["type_id"])
    return found


def _described(types: list[Type], number: int) -> object:
    """What a C type is, as something that compares with `_described_mirror`."""
    found = _resolved(types, number)
    match found["kind"]:
        case "INT":
            return (found["size"], found["encoding"] == "SIGNED")
        case "ARRAY":
            return [_described(types, found["type_id"])] * found["nr_elems"]
        case "STRUCT":
            return found["name"]
        case kind:
            raise AssertionError(f"{kind} has no fixed width: {found}")


_INTEGERS = {
    ctypes.c_uint8: (1, False),
    ctypes.c_uint16: (2, False),
    ctypes.c_int32: (4, True),
    ctypes.c_uint32: (4, False),
    ctypes.c_uint64: (8, False),
}


def _described_mirror(kind: Any) -> object:
    if kind in _INTEGERS:
        return _INTEGERS[kind]
    if issubclass(kind, ctypes.Array):
        return [_described_mirror(kind._type_)] * kind._length_
    snake = re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()
    assert issubclass(kind, ctypes.Structure)
    return snake


def _structs(types: list[Type]) -> dict[str, Type]:
    return {one["name"]: one for one in types if one["kind"] == "STRUCT"}


def _enums(types: list[Type]) -> dict[str, Type]:
    return {one["name"]: one for one in types if one["kind"] == "ENUM"}


def test_the_layout_object_has_every_type_of_the_header() -> None:
    text = EVENTS_H.read_text()
    declared = set(re.findall(r"^struct (\w+) \{", text, re.MULTILINE))
    enums = set(re.findall(r"^enum (\w+) \{", text, re.MULTILINE))
    assert len(declared) > 10
    types = _types("x86_64")
    assert declared == set(_structs(types))
    assert enums == set(_enums(types))


def test_nothing_is_mirrored_that_the_header_lacks() -> None:
    types = _types("x86_64")
    known = {_camel(name) for name in (*_structs(types), *_enums(types))}
    mirrors = {
        name
        for name, one in inspect.getmembers(wire, inspect.isclass)
        if one.__module__ == wire.__name__ and issubclass(one, ctypes.Structure | IntEnum)
    }
    assert mirrors == known


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", sorted(_structs(_types("x86_64"))))
def test_struct(architecture: str, name: str) -> None:
    types = _types(architecture)
    struct = _structs(types)[name]
    mirror = getattr(wire, _camel(name))
    fields = [
        (one["name"], one["bits_offset"] // 8, _described(types, one["type_id"]))
        for one in struct["members"]
    ]
    mirrored = [
        (field, getattr(mirror, field).offset, _described_mirror(kind))
        for field, kind in mirror._fields_
    ]
    assert mirrored == fields
    assert ctypes.sizeof(mirror) == struct["size"]
    assert wire.unpacker(mirror).size == struct["size"], "a hole"


@pytest.mark.parametrize("name", sorted(_enums(_types("x86_64"))))
def test_enum(name: str) -> None:
    values = _enums(_types("x86_64"))[name]["values"]
    mirror = getattr(wire, _camel(name))
    # EVENT_THREAD, THREAD_RUNNING, DESCRIPTOR_PIPE: one word says which enum it is
    named = {one["name"].split("_", 1)[1]: one["val"] for one in values}
    assert {member.name: member.value for member in mirror} == named


def test_an_unnoticed_hole_is_refused() -> None:
    class Holed(ctypes.Structure):
        _fields_ = (("a", ctypes.c_uint32), ("b", ctypes.c_uint64))

    with pytest.raises(AssertionError, match="hole"):
        wire.unpacker(Holed)


def test_the_objects_are_not_older_than_the_header() -> None:
    for architecture in ARCHITECTURES:
        layout = Path(OBJECTS / architecture / "layout.bpf.o")
        assert layout.stat().st_mtime >= EVENTS_H.stat().st_mtime, "run make objects"
