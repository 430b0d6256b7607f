"""The user stack of a waiting thread as a list of code words, read without stopping it.

Words of the 2 KiB above the stack pointer that point into executable mappings are named
module+offset: no frame pointers, no symbols, equal across the ranks of a job whatever the address
randomisation (measured, docs/decisions/0003). Some words are left over from earlier calls; a
comparison must allow for that.
"""

from __future__ import annotations

import os
import struct
import time
from bisect import bisect_right
from dataclasses import dataclass
from posixpath import basename

from kcover_ebpf.facts.host import Module
from kcover_ebpf.host.proc_text import code_mappings
from kcover_ebpf.ids import Pid
from kcover_ebpf.tunables.host import MAPS_AGE_S

_STACK_BYTES = 2048
_SIGNED = frozenset({"aarch64", "arm64"})
_ADDRESS_MASK = (1 << 48) - 1


@dataclass(frozen=True, slots=True)
class _Maps:
    read_s: float
    starts: list[int]
    ends: list[int]
    names: list[str]
    bases: list[int]


class ProcessMemory:
    """Reads the stacks of other processes; remembers their executable mappings for some seconds."""

    def __init__(self, machine: str | None = None) -> None:
        """`machine` is what `os.uname().machine` says; None: this one."""
        self._machine = machine or os.uname().machine
        self._maps: dict[Pid, _Maps] = {}

    def words(self, pid: Pid, stack_pointer: int) -> tuple[str, ...]:
        """Code words on the stack, innermost first; empty if the memory cannot be read."""
        raw = read_memory(pid, stack_pointer, _STACK_BYTES)
        if not raw:
            return ()
        maps = self._executable(pid)
        values = struct.unpack(f"={len(raw) // 8}Q", raw[: len(raw) // 8 * 8])
        found = (_word(maps, address(value, self._machine)) for value in values)
        return tuple(word for word in found if word)

    def modules(self, pid: Pid) -> tuple[Module, ...]:
        """The executable mappings, read anew; empty if they cannot be read."""
        maps = self._maps[pid] = _read_maps(pid)
        found = zip(maps.starts, maps.ends, maps.names, strict=True)
        return tuple(Module(*each) for each in found)

    def forget(self, pid: Pid) -> None:
        """Drop what was remembered about a process."""
        self._maps.pop(pid, None)

    def _executable(self, pid: Pid) -> _Maps:
        maps = self._maps.get(pid)
        if maps is None or time.monotonic() - maps.read_s > MAPS_AGE_S:
            maps = self._maps[pid] = _read_maps(pid)
        return maps


def address(value: int, machine: str) -> int:
    """The address in a pointer as it lies on a stack.

    On arm64 a return address may carry a signature (pointer authentication), and any pointer a tag, in the
    bits above the 48 of a user address (Arm ARM D8.10; kernel: Documentation/arch/arm64/memory.rst).
    """
    return value & _ADDRESS_MASK if machine in _SIGNED else value


def read_memory(pid: Pid, address: int, size: int) -> bytes:
    """Bytes of another process's memory; empty (or short) where it cannot be read."""
    try:
        fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.pread(fd, size, address)
    except (OSError, OverflowError):
        return b""
    finally:
        os.close(fd)


def _word(maps: _Maps, value: int) -> str | None:
    index = bisect_right(maps.starts, value) - 1
    if index < 0 or value >= maps.ends[index]:
        return None
    return f"{maps.names[index]}+{value - maps.bases[index]:x}"


def _read_maps(pid: Pid) -> _Maps:
    maps = _Maps(time.monotonic(), [], [], [], [])
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace", newline="\n") as file:
            for each in code_mappings(file):
                maps.starts.append(each.start)
                maps.ends.append(each.end)
                maps.names.append(basename(each.path)[:32])
                maps.bases.append(each.start - each.offset)
    except OSError:
        pass
    return maps
