"""Core dumps of GPUs as a CUDA driver writes them, with as much of one as names kernels, and a stub of the driver.

Source: cudacoredump.h of cuda-gdb.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

_CUDA, _CORE, _EXECUTABLE = 0xBE, 4, 2
_IMAGE, _DEVICES, _GRIDS, _MODULES, _MEMORY = (0x80000000 + number for number in (7, 9, 12, 16, 2))
_BITS, _NAMES = 1, 3
SECRET = b"weights of the model"
FLAGS = "skip_nonrelocated_elf_images,skip_global_memory,skip_shared_memory,skip_local_memory,skip_abort"
DRIVER = """
import os, pathlib, sys
pipe, file, dump = map(pathlib.Path, sys.argv[1:])
os.mkfifo(pipe)
reader = os.open(pipe, os.O_RDWR)
print("listening", flush=True)
while os.read(reader, 1):
    data = dump.read_bytes()
    half = len(data) // 2
    with file.open("wb", buffering=0) as out:
        out.write(data[:half])
        out.write(data[half:])
"""


@dataclass(frozen=True)
class FakeSection:
    """One section of an ELF file."""

    name: bytes
    kind: int
    content: bytes
    address: int = 0
    link: int = 0
    info: int = 0
    row_bytes: int = 0


def elf(kind: int, sections: Sequence[FakeSection]) -> bytes:
    """The file; the first section is empty, the last one has the names."""
    names = bytearray(b"\0")
    places = []
    for section in sections:
        places.append(len(names))
        names += section.name + b"\0"
    last = FakeSection(b"", _NAMES, bytes(names))
    body, rows = bytearray(64), [bytes(64)]
    for section, place in zip([*sections, last], [*places, 0], strict=True):
        rows.append(
            struct.pack(
                "<IIQQQQIIQQ", place, section.kind, 0, section.address, len(body),
                len(section.content), section.link, section.info, 0, section.row_bytes,
            )
        )  # fmt: skip
        body += section.content
    start = len(body)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01\x33\x07", kind, _CUDA, 1, 0, 0, start, 0,
        64, 0, 0, 64, len(rows), len(rows) - 1,
    )  # fmt: skip
    body[: len(header)] = header
    return bytes(body) + b"".join(rows)


def code(*kernels: tuple[bytes, int]) -> bytes:
    """The code of a module: (name, address) of each of its kernels, of 256 bytes each."""
    found = [FakeSection(b".text." + name, _BITS, bytes(256), address) for name, address in kernels]
    return elf(_EXECUTABLE, found)


def grid(entry: int, module: int, state: int = 2) -> bytes:
    """A row of the table of grids, as long as that of a newer driver."""
    whole = (1, 2, 3, entry, module, 0, 0), (0, 0, state, 40, 132, 2, 1, 1024, 1, 1, 0, 77)
    return struct.pack("<7Q12I", *whole[0], *whole[1]) + bytes(32)


def dump(*grids: bytes, modules: Sequence[tuple[int, bytes]]) -> bytes:
    """Of one device, number 3, and of modules (handle, code)."""
    handles = b"".join(struct.pack("<Q", handle) for handle, _ in modules)
    sections = [
        FakeSection(b".cudbg.global.0", _MEMORY, SECRET),
        FakeSection(b".cudbg.devtbl", _DEVICES, struct.pack("<3Q15I", 0, 0, 0, 3, *[0] * 14),
                    row_bytes=84),
        FakeSection(b".cudbg.modtbl.dev0.ctx0", _MODULES, handles, row_bytes=8),
        *(
            FakeSection(b".cudbg.relfimg.dev0.ctx0", _IMAGE, image, link=3, info=row)
            for row, (_, image) in enumerate(modules)
        ),
        FakeSection(b".cudbg.gridtbl.dev0", _GRIDS, b"".join(grids), link=2, row_bytes=136),
    ]  # fmt: skip
    return elf(_CORE, sections)
