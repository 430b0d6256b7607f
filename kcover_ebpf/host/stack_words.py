"""The user stack of a waiting thread as a list of code words, read without stopping it.

Each word in the 2 KiB above the stack pointer that points into an executable mapping becomes module+offset. This
needs neither frame pointers nor symbols, and the words are equal across the ranks of a job despite address
randomisation (measured, docs/decisions/0003). The name of a module carries the beginning of its build id, because the
offsets of another build mean other code. Some words are left over from earlier calls; a comparison must allow
for that.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from array import array
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import field
from posixpath import basename

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.facts.host import Module
from kcover_ebpf.host import bounded, over_bounds
from kcover_ebpf.host.build_ids import HEAD_BYTES, short_build_id
from kcover_ebpf.host.proc_text import code_mappings, status_words
from kcover_ebpf.ids import Pid
from kcover_ebpf.tunables.host import MAPS_AGE_S, MAPS_LONGEST_S

_STACK_BYTES = 2048
_SIGNED = frozenset({"aarch64", "arm64"})
_ADDRESS_MASK = (1 << 48) - 1
_U64 = (1 << 64) - 1


_MOST_MAPPINGS = 2048
"""Most executable mappings of a process, with adjacent ones joined: an interpreter with PyTorch has
300 to 900."""
_MOST_KEPT = 262_144
"""Most remembered mappings of all processes: 10 MiB."""


@dataclass(slots=True)
class _Maps:
    read_s: float
    starts: array[int]
    ends: array[int]
    names: list[str]
    bases: array[int]
    code: list[bytes]
    """Result of `_code_size` before the mappings were read."""
    checked_s: float
    """When they were last known to be up to date."""
    builds: dict[int, str] = field(default_factory=dict)
    """Base of a module -> suffix of its name with its build id, of those that were found on a stack."""

    def are_due(self, pid: Pid, now_s: float) -> bool:
        """True if the mappings must be read again."""
        if now_s - self.checked_s <= MAPS_AGE_S:
            return False
        # 20 times cheaper than reading the mappings of a training; code replaced by code of equal
        # size is noticed later
        if now_s - self.read_s > MAPS_LONGEST_S or _code_size(pid) != self.code:
            return True
        self.checked_s = now_s
        return False


class ProcessMemory:
    """Reads the stacks of other processes; remembers their executable mappings for some seconds. Thread-safe."""

    def __init__(self, machine: str | None = None) -> None:
        """`machine`: as `os.uname().machine` reports it; None: this one."""
        self._machine = machine or os.uname().machine
        self._maps: OrderedDict[Pid, _Maps] = OrderedDict()
        """Mappings by process; the most recently read one is last."""
        self._kept_count = 0
        self._lock = threading.Lock()

    def words(self, pid: Pid, stack_pointer: int) -> tuple[str, ...]:
        """Code words on the stack, innermost first; empty if the memory cannot be read."""
        raw = read_memory(pid, stack_pointer, _STACK_BYTES)
        if not raw:
            return ()
        maps = self._executable(pid)
        values = struct.unpack(f"={len(raw) // 8}Q", raw[: len(raw) // 8 * 8])
        found = (_module_at(maps, address(value, self._machine)) for value in values)
        return tuple(
            f"{maps.names[index]}{_build(pid, maps, index)}+{offset:x}"
            for index, offset in filter(None, found)
        )

    def modules(self, pid: Pid) -> tuple[Module, ...]:
        """The executable mappings, always reread; empty if they cannot be read."""
        maps = self._keep(pid)
        found = zip(maps.starts, maps.ends, maps.names, strict=True)
        return tuple(Module(*pair) for pair in found)

    def forget(self, pid: Pid) -> None:
        """Drop the remembered mappings of a process."""
        with self._lock:
            self._drop(pid)

    def _drop(self, pid: Pid) -> None:
        gone = self._maps.pop(pid, None)
        self._kept_count -= len(gone.starts) if gone is not None else 0

    def _executable(self, pid: Pid) -> _Maps:
        maps = self._maps.get(pid)
        if maps is None or maps.are_due(pid, time.monotonic()):
            maps = self._keep(pid)
        return maps

    def _keep(self, pid: Pid) -> _Maps:
        maps = _read_maps(pid)
        with self._lock:
            self._drop(pid)
            self._maps[pid] = maps
            self._kept_count += len(maps.starts)
            while self._kept_count > _MOST_KEPT:
                self._drop(next(iter(self._maps)))
        return maps


def address(value: int, machine: str) -> int:
    """The address in a pointer that was stored on a stack.

    On arm64, the bits above the 48 of a user address may hold a signature (pointer authentication) in a return
    address, and a tag in any pointer (Arm ARM D8.10; kernel: Documentation/arch/arm64/memory.rst).
    """
    return value & _ADDRESS_MASK if machine in _SIGNED else value


def read_memory(pid: Pid, address: int, size: int) -> bytes:
    """Bytes of another process's memory; empty or shorter if it cannot be read."""
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


def _module_at(maps: _Maps, value: int) -> tuple[int, int] | None:
    """Index of the mapping with this address, and the offset in its file; None if it is in none."""
    index = bisect_right(maps.starts, value) - 1
    if index < 0 or value >= maps.ends[index]:
        return None
    return index, (value - maps.bases[index]) & _U64


def _build(pid: Pid, maps: _Maps, index: int) -> str:
    """Suffix of a module's name, "~" and its build id; empty if it has none, or is no file."""
    base = maps.bases[index]
    if base not in maps.builds:
        # the loader reads this page at the start of the program: it is in memory
        is_file = not maps.names[index].startswith("[")
        build_id = short_build_id(read_memory(pid, base, HEAD_BYTES)) if is_file else ""
        maps.builds[base] = f"~{build_id}" if build_id else ""
    return maps.builds[base]


def _code_size(pid: Pid) -> list[bytes]:
    """Size of all executable mappings but the program's own (`VmLib`: mm_struct.exec_vm); empty if unknown."""
    try:
        return status_words(bounded.read_bytes(f"/proc/{pid}/status"), b"VmLib")
    except OSError:
        return []


def _read_maps(pid: Pid) -> _Maps:
    now_s = time.monotonic()
    maps = _Maps(now_s, array("Q"), array("Q"), [], array("Q"), _code_size(pid), now_s)
    names: dict[str, str] = {}
    try:
        for code_mapping in code_mappings(bounded.maps(pid)):
            name = basename(code_mapping.path)[:32]
            # anything before the mapping of a file's beginning belongs to another mapping: modulo,
            # as for addresses
            base = (code_mapping.start - code_mapping.offset) & _U64
            last = len(maps.starts) - 1
            if last >= 0 and (maps.ends[last], maps.names[last], maps.bases[last]) == (
                code_mapping.start,
                name,
                base,
            ):
                maps.ends[last] = code_mapping.end
                continue
            if len(maps.starts) >= _MOST_MAPPINGS:
                over_bounds.count("mappings", pid)
                break
            maps.starts.append(code_mapping.start)
            maps.ends.append(code_mapping.end)
            maps.names.append(names.setdefault(name, name))
            maps.bases.append(base)
    except OSError:
        pass
    return maps
