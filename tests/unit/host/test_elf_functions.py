"""Where functions begin in libraries: exported, linked into another one and hidden there, used only, or forged."""

from __future__ import annotations

import contextlib
import os
import re
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcover_ebpf.host import elf_functions
from kcover_ebpf.host.elf_functions import ElfError, function_offsets
from tests.unit.support.elf_files import built

pytestmark = pytest.mark.needs("gcc")
NAMES = ("ncclAllReduce", "ncclSend", "ncclCommInitRank")


def offsets(path: Path, *names: str) -> dict[str, int]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return dict(function_offsets(descriptor, names or NAMES))
    finally:
        os.close(descriptor)


def addresses(path: Path) -> dict[str, int]:
    """By binutils; in a library of one segment of code an address is its offset in the file."""
    text = subprocess.run(["nm", str(path)], check=True, capture_output=True, text=True).stdout
    found = re.findall(r"^([0-9a-f]+) [tTW] (\w+)$", text, re.MULTILINE)
    return {name: int(address, 16) for address, name in found}


@pytest.mark.parametrize("options", [(), ("-fvisibility=hidden",)], ids=["exported", "linked in"])
def test_function_offsets__functions_are_found_where_the_tools_find_them(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    library = built(tmp_path, *options)
    known = addresses(library)
    assert offsets(library) == {name: known[name] for name in NAMES}


def test_function_offsets__offsets_are_those_in_the_file_and_not_in_memory(tmp_path: Path) -> None:
    """At each offset the file has the bytes of its function, wherever the segment is mapped."""
    library = built(tmp_path, "-Wl,--section-start=.text=0x400000")
    known, raw = addresses(library), library.read_bytes()
    found = offsets(library)
    assert set(found) == set(NAMES)
    assert found != {name: known[name] for name in NAMES}
    plain = tmp_path / "plain"
    plain.mkdir()
    same = built(plain).read_bytes()
    at = offsets(plain / "lib.so")["ncclAllReduce"]
    assert raw[found["ncclAllReduce"] :][:3] == same[at : at + 3]


def test_function_offsets__a_name_may_be_the_end_of_another_one(tmp_path: Path) -> None:
    source = tmp_path / "aliased.c"
    source.write_text(
        "int pncclSend(void) { return 1; }\n"
        'int ncclSend(void) __attribute__((alias("pncclSend")));\n'
    )
    library = built(tmp_path, "-Wl,-O2", source=source)
    assert offsets(library)["ncclSend"] == addresses(library)["pncclSend"]


def test_function_offsets__what_is_only_used_is_not_defined(tmp_path: Path) -> None:
    source = tmp_path / "user.c"
    source.write_text("int ncclSend(void);\nint train(void) { return ncclSend(); }\n")
    assert offsets(built(tmp_path, source=source), "ncclSend", "train").keys() == {"train"}


def test_function_offsets__tables_are_read_across_the_borders_of_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = built(tmp_path)
    known = addresses(library)
    monkeypatch.setattr(elf_functions, "_CHUNK_BYTES", 32)
    assert offsets(library) == {name: known[name] for name in NAMES}


def forged(raw: bytes) -> Iterator[tuple[str, bytes]]:
    yield "empty", b""
    yield "text", b"not a library at all, but longer than a header of 64 bytes is, by some"
    yield "32 bits", raw[:4] + b"\x01" + raw[5:]
    yield "cut", raw[:64]
    yield "no sections", raw[:60] + struct.pack("<H", 0) + raw[62:]
    yield "sections elsewhere", raw[:40] + struct.pack("<Q", 1 << 62) + raw[48:]
    yield "sections where no file reaches", raw[:40] + struct.pack("<Q", 1 << 63) + raw[48:]
    yield "segments where no file reaches", raw[:32] + struct.pack("<Q", 1 << 63) + raw[40:]


@pytest.mark.parametrize("case", range(8))
def test_function_offsets__a_forged_file_is_refused_or_has_nothing(
    tmp_path: Path, case: int
) -> None:
    raw = built(tmp_path).read_bytes()
    name, broken = list(forged(raw))[case]
    path = tmp_path / "forged.so"
    path.write_bytes(broken)
    with contextlib.suppress(ElfError, OSError):
        assert offsets(path) == {}, name


def test_function_offsets__a_table_of_no_plausible_size_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = built(tmp_path)
    monkeypatch.setattr(elf_functions, "_MOST_BYTES", 16)
    with pytest.raises(ElfError, match="no plausible size"):
        offsets(library)
