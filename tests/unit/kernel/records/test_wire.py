"""Both sides of bpf/events.h agree: every struct and enum the C side has, field by field."""

import ctypes
import inspect
import json
import re
import subprocess
from enum import IntEnum
from pathlib import Path

import pytest

from kcover_ebpf.kernel.records import wire
from tests.unit.support.bpf_layouts import (
    ARCHITECTURES,
    EVENTS_H,
    OBJECTS,
    Type,
    camel,
    described,
    described_mirror,
    enums,
    structs,
)


def _types(architecture: str) -> list[Type]:
    path = OBJECTS / architecture / "layout.bpf.o"
    command = ["bpftool", "--json", "btf", "dump", "file", str(path)]
    done = subprocess.run(command, capture_output=True, check=True, timeout=30)
    types: list[Type] = json.loads(done.stdout)["types"]
    return types


def test_wire__the_layout_object_has_every_type_of_the_header() -> None:
    text = EVENTS_H.read_text()
    declared = set(re.findall(r"^struct (\w+) \{", text, re.MULTILINE))
    named = set(re.findall(r"^enum (\w+) \{", text, re.MULTILINE))
    assert len(declared) > 10
    types = _types("x86_64")
    assert declared == set(structs(types))
    assert named == set(enums(types))


def test_wire__nothing_is_mirrored_that_the_header_lacks() -> None:
    types = _types("x86_64")
    known = {camel(name) for name in (*structs(types), *enums(types))}
    mirrors = {
        name
        for name, one in inspect.getmembers(wire, inspect.isclass)
        if one.__module__ == wire.__name__ and issubclass(one, ctypes.Structure | IntEnum)
    }
    assert mirrors == known


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", sorted(structs(_types("x86_64"))))
def test_unpacker__struct(architecture: str, name: str) -> None:
    types = _types(architecture)
    struct = structs(types)[name]
    mirror = getattr(wire, camel(name))
    fields = [
        (one["name"], one["bits_offset"] // 8, described(types, one["type_id"]))
        for one in struct["members"]
    ]
    mirrored = [
        (field, getattr(mirror, field).offset, described_mirror(kind))
        for field, kind in mirror._fields_
    ]
    assert mirrored == fields
    assert ctypes.sizeof(mirror) == struct["size"]
    assert wire.unpacker(mirror).size == struct["size"], "a hole"


@pytest.mark.parametrize("name", sorted(enums(_types("x86_64"))))
def test_wire__enum(name: str) -> None:
    values = enums(_types("x86_64"))[name]["values"]
    mirror = getattr(wire, camel(name))
    # EVENT_THREAD, THREAD_RUNNING, DESCRIPTOR_PIPE: one word says which enum it is
    named = {one["name"].split("_", 1)[1]: one["val"] for one in values}
    assert {member.name: member.value for member in mirror} == named


def test_unpacker__an_unnoticed_hole_is_refused() -> None:
    class Holed(ctypes.Structure):
        _fields_ = (("a", ctypes.c_uint32), ("b", ctypes.c_uint64))

    with pytest.raises(AssertionError, match="hole"):
        wire.unpacker(Holed)


def test_wire__the_objects_are_not_older_than_the_header() -> None:
    for architecture in ARCHITECTURES:
        layout = Path(OBJECTS / architecture / "layout.bpf.o")
        assert layout.stat().st_mtime >= EVENTS_H.stat().st_mtime, "run make objects"
