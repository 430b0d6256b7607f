"""Finds the file offsets of functions in an ELF file, as a user probe needs them.

The file belongs to the job: libtorch_cuda.so has a gigabyte, and a forged file may claim anything. So it is read in
small pieces with bounds. Reading can block as long as its file system does; callers use a worker. Source: System V
ABI, chapters 4 and 5 (64-bit, little-endian).
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Collection, Iterator, Mapping

from kcover_ebpf.dataclass import dataclass

HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
SEGMENT = struct.Struct("<IIQQQQQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
MAGIC = b"\x7fELF\x02\x01"
_SYMTAB, _DYNSYM = 2, 11
_LOAD, _EXECUTABLE = 1, 1
_FUNCTION = 2
_CHUNK_BYTES = 1 << 20
_MOST_BYTES = 256 << 20
"""Most bytes of one table. The names in the largest framework libraries take some tens of megabytes."""
_MOST_SECTIONS = 4096


class ElfError(Exception):
    """The file is not a readable ELF file; the message says why."""


@dataclass(frozen=True, slots=True)
class _Section:
    kind: int
    offset: int
    size: int
    link: int


def function_offsets(fd: int, names: Collection[str]) -> Mapping[str, int]:
    """File offsets of those of `names` that the file defines; raises `ElfError`, `OSError`.

    Dynamic symbols are read first. The other symbols are read too, because a library that is linked into another
    one may appear only there.
    """
    header = _unpack(HEADER, _read(fd, HEADER.size, 0))
    if _read(fd, len(MAGIC), 0) != MAGIC:
        raise ElfError("not a 64-bit ELF file")
    sections, segments = _sections(fd, header), _segments(fd, header)
    found: dict[str, int] = {}
    for kind in (_DYNSYM, _SYMTAB):
        for table in (section for section in sections if section.kind == kind):
            missing = set(names) - found.keys()
            if missing and table.link < len(sections):
                found |= _in_table(fd, table, sections[table.link], missing)
    return {
        name: offset
        for name, address in found.items()
        if (offset := _offset(segments, address)) is not None
    }


def _sections(fd: int, header: tuple[int, ...]) -> list[_Section]:
    start, entry, count = header[6], header[11], header[12]
    if entry != _SECTION.size or not 0 < count <= _MOST_SECTIONS:
        raise ElfError("no section table")
    raw = _read(fd, entry * count, start)
    whole = raw[: len(raw) // entry * entry]
    return [_Section(pair[1], pair[4], pair[5], pair[6]) for pair in _SECTION.iter_unpack(whole)]


def _segments(fd: int, header: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """(address, file offset, size in the file) of the executable segments."""
    start, entry, count = header[5], header[9], header[10]
    if entry != SEGMENT.size:
        raise ElfError("no segment table")
    raw = _read(fd, entry * count, start)
    whole = raw[: len(raw) // entry * entry]
    return [
        (pair[3], pair[2], pair[5])
        for pair in SEGMENT.iter_unpack(whole)
        if pair[0] == _LOAD and pair[1] & _EXECUTABLE
    ]


def _offset(segments: list[tuple[int, int, int]], address: int) -> int | None:
    for start, offset, size in segments:
        if start <= address < start + size:
            return address - start + offset
    return None


def _in_table(
    fd: int, table_section: _Section, texts_section: _Section, names: Collection[str]
) -> dict[str, int]:
    if max(table_section.size, texts_section.size) > _MOST_BYTES:
        raise ElfError("its symbols have no plausible size")
    places = _places(fd, texts_section, names)
    found: dict[str, int] = {}
    if not places:
        return found
    for _, chunk in _chunks(fd, table_section, _CHUNK_BYTES // _SYMBOL.size * _SYMBOL.size, 0):
        whole = chunk[: len(chunk) // _SYMBOL.size * _SYMBOL.size]
        for place, info, _, section, value, _ in _SYMBOL.iter_unpack(whole):
            # section 0: used here, defined in another file
            if place in places and section and info & 0xF == _FUNCTION:
                found[places[place]] = value
    return found


def _places(fd: int, section: _Section, names: Collection[str]) -> dict[int, str]:
    """Possible offsets of each name in the string table.

    A name may also be the tail of a longer one: linkers store "ncclSend" as the end of "pncclSend".
    """
    wanted = {name: name.encode() + b"\0" for name in names}
    overlap = max(map(len, wanted.values()))
    places: dict[int, str] = {}
    for start, chunk in _chunks(fd, section, _CHUNK_BYTES, overlap):
        for name, text in wanted.items():
            at = chunk.find(text)
            while at >= 0:
                places[start + at] = name
                at = chunk.find(text, at + 1)
    return places


def _chunks(fd: int, section: _Section, step: int, overlap: int) -> Iterator[tuple[int, bytes]]:
    for start in range(0, section.size, step):
        size = min(step + overlap, section.size - start)
        chunk = _read(fd, size, section.offset + start)
        yield start, chunk
        if len(chunk) < size:
            return


def _read(fd: int, size: int, offset: int) -> bytes:
    """At most `size` bytes at `offset`; raises `ElfError` for an impossible offset."""
    if offset + size > sys.maxsize:
        raise ElfError("a table lies beyond the end of any file")
    return os.pread(fd, size, offset)


def _unpack(layout: struct.Struct, raw: bytes) -> tuple[int, ...]:
    if len(raw) < layout.size:
        raise ElfError("too short")
    return layout.unpack(raw)
