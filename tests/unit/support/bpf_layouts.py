"""The layout of the structures in the BPF objects, and of their mirrors."""

import ctypes
import re
from typing import Any

from testbed.skips import ROOT

OBJECTS = ROOT / "kcover_ebpf" / "objects"


EVENTS_H = ROOT / "bpf" / "events.h"


ARCHITECTURES = ("x86_64", "arm64")


Type = dict[str, Any]


def camel(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


def resolved(types: list[Type], number: int) -> Type:
    found = types[number - 1]
    assert found["id"] == number
    if found["kind"] in ("TYPEDEF", "CONST", "VOLATILE"):
        return resolved(types, found["type_id"])
    return found


def described(types: list[Type], number: int) -> object:
    """What a C type is, as something that compares with `described_mirror`."""
    found = resolved(types, number)
    match found["kind"]:
        case "INT":
            return (found["size"], found["encoding"] == "SIGNED")
        case "ARRAY":
            return [described(types, found["type_id"])] * found["nr_elems"]
        case "STRUCT":
            return found["name"]
        case kind:
            raise AssertionError(f"{kind} has no fixed width: {found}")


INTEGERS = {
    ctypes.c_uint8: (1, False),
    ctypes.c_uint16: (2, False),
    ctypes.c_int32: (4, True),
    ctypes.c_uint32: (4, False),
    ctypes.c_uint64: (8, False),
}


def described_mirror(kind: Any) -> object:
    if kind in INTEGERS:
        return INTEGERS[kind]
    if issubclass(kind, ctypes.Array):
        return [described_mirror(kind._type_)] * kind._length_
    snake = re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()
    assert issubclass(kind, ctypes.Structure)
    return snake


def structs(types: list[Type]) -> dict[str, Type]:
    return {one["name"]: one for one in types if one["kind"] == "STRUCT"}


def enums(types: list[Type]) -> dict[str, Type]:
    return {one["name"]: one for one in types if one["kind"] == "ENUM"}
