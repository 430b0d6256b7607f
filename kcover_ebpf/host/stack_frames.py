"""Reads the stacks of a waiting thread without stopping it: kernel functions, and user return addresses.

Without frame pointers, exact unwinding of user frames needs the unwind tables of every library. Instead, each word
of the stack that points behind a call instruction counts as a return address; some of them are left over from
earlier calls.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right

from kcover_ebpf.host import bounded, proc_text, stack_words
from kcover_ebpf.host.bounded import read_text
from kcover_ebpf.host.proc_text import code_mappings
from kcover_ebpf.ids import Pid, Tid

_STACK_BYTES = 16384
_MOST = 48
_KERNEL_LINE = re.compile(r"\[<[0-9a-f]+>\] (\S+?)(?:\+0x[0-9a-f]+/0x[0-9a-f]+)?(?: \[(\S+)\])?$")
# arch/x86: frames between the system call and the function that waits
_ENTRY = frozenset({"do_syscall_64", "entry_SYSCALL_64_after_hwframe", "el0t_64_sync", "el0_svc"})


def kernel_frames(pid: Pid, tid: Tid) -> tuple[str, ...]:
    """Functions, innermost first; empty while the thread runs, or without CAP_SYS_ADMIN."""
    return parse_kernel_stack(read_text(f"/proc/{pid}/task/{tid}/stack"))


def parse_kernel_stack(text: str) -> tuple[str, ...]:
    """Function names in the text of /proc/PID/task/TID/stack, innermost first."""
    found = []
    for line in text.splitlines():
        match = _KERNEL_LINE.match(line.strip())
        if match and match[1] not in _ENTRY:
            found.append(match[1] + (f" [{match[2]}]" if match[2] else ""))
    return tuple(found)


def return_addresses(pid: Pid, tid: Tid, machine: str) -> tuple[int, ...]:
    """Current address and return addresses of the thread, innermost first; empty while it runs or if unreadable."""
    line = proc_text.parse_syscall(read_text(f"/proc/{pid}/task/{tid}/syscall"))
    if line is None:
        return ()
    raw = stack_words.read_memory(pid, line.sp, _STACK_BYTES)
    ranges = _executable(pid)
    found = [line.ip]
    for (word,) in struct.iter_unpack("=Q", raw[: len(raw) // 8 * 8]):
        if len(found) == _MOST:
            break
        value = stack_words.address(word, machine)
        if _inside(ranges, value) and follows_call(
            stack_words.read_memory(pid, value - 8, 8), machine
        ):
            found.append(value)
    return tuple(found)


def follows_call(before: bytes, machine: str) -> bool:
    """True if the eight bytes `before` an address end with a call instruction.

    Sources: Intel SDM volume 2 (CALL: E8 rel32, FF /2); Arm ARM C6.2 (BL, BLR).
    """
    if len(before) < 8:
        return False
    if machine == "x86_64":
        if before[3] == 0xE8:
            return True
        # FF /2 with its operand: 2 to 7 bytes, possibly after a prefix
        return any(
            before[8 - size] == 0xFF and (before[9 - size] >> 3) & 7 == 2
            for size in (2, 3, 4, 6, 7)
        )
    word = int.from_bytes(before[4:], "little")
    return word & 0xFC000000 == 0x94000000 or word & 0xFFFFFC1F == 0xD63F0000


def _executable(pid: Pid) -> list[tuple[int, int]]:
    try:
        found = list(code_mappings(bounded.maps(pid)))
    except OSError:
        return []
    return [(code_mapping.start, code_mapping.end) for code_mapping in found]


def _inside(ranges: list[tuple[int, int]], value: int) -> bool:
    index = bisect_right(ranges, (value, 1 << 64)) - 1
    return index >= 0 and ranges[index][0] < value < ranges[index][1]
