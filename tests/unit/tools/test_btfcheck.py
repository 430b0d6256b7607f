"""The check of BPF objects against kernels that are not booted: what counts as a misfit."""

from __future__ import annotations

import gzip
import struct

import pytest

from testbed.machines.images import unpacked
from testbed.machines.packages import Missing
from tools.btfcheck import btf_of, unguarded

BTF = b"\0btf_trace_sched_process_exit\0btf_trace_console\0"
TYPES = 1_000_004


def relocation(
    number: int, kind: str, what: str, section: str = "iter/task", found: bool = False
) -> str:
    head = f"libbpf: prog '{section}': relo #{number}: "
    last = "matching candidate #0" if found else "no matching targets found"
    return f"{head}<{kind}> [7] struct {what} (0:1 @ offset 4)\n{head}{last}\n"


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (relocation(1, "byte_off", "task_struct.pid", found=True), set()),
        (relocation(1, "byte_off", "task_struct.pid"), {"task_struct.pid"}),
        (
            relocation(1, "field_exists", "task_struct.scx")
            + relocation(2, "byte_off", "task_struct.scx"),
            set(),
        ),
        (relocation(1, "byte_off", "task_struct___before_5_14.state"), set()),
        (relocation(1, "byte_off", "mce.bank", "tp_btf/mce_record"), set()),
        (relocation(1, "byte_off", "task_struct.pid", "tp_btf/console"), {"task_struct.pid"}),
        (
            relocation(1, "byte_off", "a.b", "tp_btf/mce_record")
            + relocation(1, "byte_off", "c.d"),
            {"c.d"},
        ),
    ],
    ids=[
        "there",
        "absent",
        "asked first",
        "an older name",
        "no tracepoint",
        "a tracepoint",
        "two programs",
    ],
)
def test_unguarded__what_is_read_without_asking_must_be_there(log: str, expected: set[str]) -> None:
    assert unguarded(log, BTF) == expected


def image(magic: bytes = b"") -> bytes:
    head = b"\x9f\xeb\x01\x00" + struct.pack("<5I", 24, 0, TYPES, TYPES, 8)
    chance = b"\x9f\xeb\x01\x00" + struct.pack("<5I", 24, 9, 9, 9, 9)
    return magic + chance + head + bytes(TYPES) + b"\0strings" + b"rest"


def test_btf_of__type_information_is_found_in_an_image_and_cut_out() -> None:
    found = btf_of(image(b"MZ" + bytes(64)))
    assert len(found) == 24 + TYPES + 8
    assert found.endswith(b"\0strings"[-8:])


def test_btf_of__an_image_without_types_is_said() -> None:
    with pytest.raises(Missing, match="no type information"):
        btf_of(bytes(4096))


def test_btfcheck__images_of_both_kinds_are_decompressed() -> None:
    plain = b"\x7fELF" + bytes(100)
    packed = gzip.compress(plain)
    zboot = b"MZ\0\0zimg" + struct.pack("<II", 64, len(packed)) + bytes(48) + packed
    setup = bytearray(1024)
    setup[0x1F1], setup[0x202:0x206] = 1, b"HdrS"
    struct.pack_into("<II", setup, 0x248, 0, len(packed))
    assert unpacked(zboot) == unpacked(bytes(setup) + packed) == unpacked(packed) == plain
    assert unpacked(plain) == plain
