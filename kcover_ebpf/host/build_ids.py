"""The build id of a library, from the memory of a process that has mapped it. Pure.

A linker writes a hash of its output into a note (binutils: ld --build-id), which the kernel maps with the first page
of the file. The same file has the same id in every process, and a rebuilt library has another one. The memory belongs
to the job and may say anything. Source: System V ABI, chapter 5 (64-bit, little-endian).
"""

from __future__ import annotations

import struct

from kcover_ebpf.host.elf_functions import HEADER, MAGIC, SEGMENT

HEAD_BYTES = 4096
"""Bytes from the beginning of the mapped file in which the note is looked for: linkers place it behind the program
headers."""
_NOTE = struct.Struct("<III")
_NOTE_SEGMENT, _BUILD_ID = 4, 3
_OWNER = b"GNU\0"
_MOST_SEGMENTS = 64
_SHORT_BYTES = 4


def short_build_id(head: bytes) -> str:
    """The first eight hexadecimal digits of the build id; empty if there is none within `head`."""
    if len(head) < HEADER.size or not head.startswith(MAGIC):
        return ""
    header = HEADER.unpack_from(head)
    start, entry, count = header[5], header[9], header[10]
    if entry != SEGMENT.size or count > _MOST_SEGMENTS or start + entry * count > len(head):
        return ""
    for index in range(count):
        segment = SEGMENT.unpack_from(head, start + entry * index)
        if segment[0] == _NOTE_SEGMENT:
            notes = head[segment[2] : segment[2] + segment[5]]
            found = _in_notes(notes)
            if found:
                return found.hex()
    return ""


def _in_notes(notes: bytes) -> bytes:
    place = 0
    while place + _NOTE.size <= len(notes):
        owner_size, size, kind = _NOTE.unpack_from(notes, place)
        begin = place + _NOTE.size + _padded(owner_size)
        if kind == _BUILD_ID and notes[place + _NOTE.size : begin] == _OWNER:
            found = notes[begin : begin + min(size, _SHORT_BYTES)]
            return found if len(found) == _SHORT_BYTES else b""
        place = begin + _padded(size)
    return b""


def _padded(size: int) -> int:
    return (size + 3) & ~3
