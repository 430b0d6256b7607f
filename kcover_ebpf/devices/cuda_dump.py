"""Lists the kernels on the GPUs of a process, from a core dump that its CUDA driver wrote.

Only tables and names are read, never memory or registers. Reads are small and bounded, because any program may have
written the file. Sources: cudacoredump.h of cuda-gdb (format as of driver 575), System V ABI (ELF).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.model.traced import GpuKernel

ReadAt = Callable[[int, int], bytes]
"""Reads from (offset, length); returns fewer bytes at the end of the file."""
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_GRID = struct.Struct("<7Q12I")
_DEVICE = struct.Struct("<3QI")
_HANDLE = struct.Struct("<Q")
_MAGIC = b"\x7fELF\x02\x01"
_CORE, _CUDA = 4, 0xBE
_RELOCATED_IMAGE, _DEVICES, _GRIDS, _MODULES = 0x80000007, 0x80000009, 0x8000000C, 0x80000010
_KEPT = frozenset({_RELOCATED_IMAGE, _DEVICES, _GRIDS, _MODULES})
_STATES = {1: "pending", 2: "active", 3: "sleeping", 4: "ended"}
"""Kernel states by their number in CUDBGGridStatus (cudadebugger.h)."""
_MOST_SECTIONS = 1 << 21
"""Each GPU thread has a few sections: 132 multiprocessors with 2,048 threads have a million."""
_MOST_IMAGE_SECTIONS = 1 << 16
_MOST_NAMES_BYTES = 16 << 20
_MOST_ROWS = 4096
_MOST_KERNELS = 64
_CHUNK = 4096
_MOST_NAME = 160
_CODE = b".text."
_NOT_PLAIN = re.compile(r"[^\x21-\x7e]")


class CudaDumpError(ValueError):
    """The file is not a CUDA core dump, or not a complete one; the message says which."""


@dataclass(frozen=True, slots=True)
class _Section:
    index: int
    name_at: int
    kind: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    row_bytes: int


def kernels_of(read: ReadAt) -> tuple[GpuKernel, ...]:
    """The kernels of all devices, at most 64, running ones first; raises `CudaDumpError`."""
    kind, machine, start, count, _ = _header(read)
    if (kind, machine) != (_CORE, _CUDA):
        raise CudaDumpError("it is not a GPU core dump")
    sections = [
        section
        for section in _sections(read, start, count, _MOST_SECTIONS)
        if section.kind in _KEPT
    ]
    devices = [
        _DEVICE.unpack_from(row)[3]
        for table in sections
        if table.kind == _DEVICES
        for row in _rows(read, table, _DEVICE.size)
    ]
    found = [
        _kernel(read, _GRID.unpack_from(row), devices, table.info, sections)
        for table in sections
        if table.kind == _GRIDS
        for row in _rows(read, table, _GRID.size)
    ]
    found.sort(key=lambda kernel: kernel.state != "active")
    return tuple(found[:_MOST_KERNELS])


def _header(read: ReadAt) -> tuple[int, int, int, int, int]:
    """(type, machine, offset of the section table, section count, index of the section with the names)."""
    raw = read(0, _HEADER.size)
    if not raw.startswith(_MAGIC) or len(raw) < _HEADER.size:
        raise CudaDumpError("it is not a 64-bit ELF file")
    _, kind, machine, _, _, _, start, _, _, _, _, entry, count, names = _HEADER.unpack(raw)
    if entry != _SECTION.size or not start:
        raise CudaDumpError("it has no section table")
    first = _SECTION.unpack(_whole(read(start, entry), entry))
    # counts too large for the header are stored in the first section
    return kind, machine, start, count or first[5], first[6] if names == 0xFFFF else names


def _sections(read: ReadAt, start: int, count: int, most: int) -> Iterator[_Section]:
    if not 0 < count <= most:
        raise CudaDumpError("its number of sections is implausible")
    for index in range(0, count, _CHUNK):
        wanted = min(_CHUNK, count - index)
        size = wanted * _SECTION.size
        raw = _whole(read(start + index * _SECTION.size, size), size)
        for number, row in enumerate(_SECTION.iter_unpack(raw)):
            name, kind, _, address, offset, length, link, info, _, row_bytes = row
            yield _Section(
                index + number, name, kind, address, offset, length, link, info, row_bytes
            )


def _whole(raw: bytes, size: int) -> bytes:
    if len(raw) < size:
        raise CudaDumpError("it is cut short")
    return raw


def _rows(read: ReadAt, section: _Section, least_bytes: int) -> Iterator[bytes]:
    """Rows of a table; newer drivers write longer rows."""
    step = section.row_bytes or least_bytes
    if not least_bytes <= step <= 4096:
        raise CudaDumpError("a table has rows of an implausible size")
    count = min(section.size // step, _MOST_ROWS)
    raw = _whole(read(section.offset, count * step), count * step)
    return (raw[at : at + step] for at in range(0, count * step, step))


def _kernel(
    read: ReadAt,
    grid: Sequence[int],
    devices: Sequence[int],
    index: int,
    sections: Sequence[_Section],
) -> GpuKernel:
    entry, module = grid[3], grid[4]
    image = _image(read, module, sections)
    name = "" if image is None else _name(read, image, entry)
    return GpuKernel(
        device=devices[index] if index < len(devices) else index,
        name=name or f"0x{entry:x}",
        state=_STATES.get(grid[9], "unknown"),
        grid=(grid[11], grid[12], grid[13]),
        block=(grid[14], grid[15], grid[16]),
    )


def _image(read: ReadAt, module: int, sections: Sequence[_Section]) -> _Section | None:
    """The code image of a module: tables list handles, an image names a table and its row in it."""
    tables = {section.index: section for section in sections if section.kind == _MODULES}
    for image in sections:
        table = tables.get(image.link) if image.kind == _RELOCATED_IMAGE else None
        if table is None:
            continue
        row = next(islice(_rows(read, table, _HANDLE.size), image.info, None), None)
        if row is not None and _HANDLE.unpack_from(row)[0] == module:
            return image
    return None


def _name(read: ReadAt, image_section: _Section, entry: int) -> str:
    """Name of the function that begins at address `entry`; each kernel has its own section."""

    def inside(offset: int, size: int) -> bytes:
        left = max(0, image_section.size - offset)
        return read(image_section.offset + offset, min(size, left))

    _, _, start, count, names_index = _header(inside)
    sections = list(_sections(inside, start, count, _MOST_IMAGE_SECTIONS))
    if names_index >= len(sections):
        raise CudaDumpError("the code of a module has no names")
    names = sections[names_index]
    if names.size > _MOST_NAMES_BYTES:
        raise CudaDumpError("the names of a module have an implausible size")
    texts = _whole(inside(names.offset, names.size), names.size)
    codes = [section for section in sections if texts.startswith(_CODE, section.name_at)]
    here = [code for code in codes if code.address <= entry < code.address + code.size]
    # the module's only kernel, whatever address it was loaded at
    chosen = here or (codes if len(codes) == 1 else [])
    if not chosen:
        return ""
    begin = chosen[0].name_at + len(_CODE)
    end = texts.find(b"\0", begin)
    return plain_name(texts[begin:end].decode("utf-8", "replace"))


def plain_name(mangled: str) -> str:
    """The C++ function name without argument types; any other name unchanged."""
    rest = mangled.removeprefix("_ZN") if mangled.startswith("_ZN") else mangled.removeprefix("_Z")
    words = []
    while rest != mangled and (number := re.match(r"\d{1,4}", rest)):
        begin, length = number.end(), int(number.group())
        words.append(rest[begin : begin + length])
        rest = rest[begin + length :]
    name = "::".join(words) or mangled
    return _NOT_PLAIN.sub("?", name)[:_MOST_NAME]
