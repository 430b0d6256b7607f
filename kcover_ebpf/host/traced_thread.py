"""Stops a thread of another process for milliseconds, as a debugger does (ptrace(2)); only on x86-64.

It stops where a signal handler could run, so everything done to it must be valid there. No signal is delivered
meanwhile; arriving ones wait. A system call that the stop interrupted is restarted, as after a signal without a
handler.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
import struct
import time
from typing import Final, Self

from kcover_ebpf.errors import CannotObserve
from kcover_ebpf.host import bounded
from kcover_ebpf.tunables.host import TRACED_COMPUTES_S, TRACED_POLL_S, TRACED_STOPS_S, TRACED_TRIES

# include/uapi/linux/ptrace.h and arch/x86/include/asm/ptrace-abi.h
_CONT, _SINGLESTEP, _GETREGS, _SETREGS, _DETACH = 7, 9, 12, 13, 17
_SEIZE, _INTERRUPT, _GETSIGMASK, _SETSIGMASK, _GET_RSEQ = 0x4206, 0x4207, 0x420A, 0x420B, 0x420F
_EVENT_STOP, _WALL = 128, 0x40000000
# fmt: off
_NAMES: Final = (
    "r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9",
    "r8", "rax", "rcx", "rdx", "rsi", "rdi", "orig_rax", "rip", "cs",
    "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs",
)
# fmt: on
"""Fields of user_regs_struct (arch/x86/include/asm/user_64.h), in order."""
_REGISTERS = struct.Struct(f"{len(_NAMES)}Q")
_MADE_AGAIN, _RESTART_BLOCK, _EINTR = (-512, -513, -514), -516, -4
"""Results of an interrupted system call (include/linux/errno.h)."""
_ALL_BUT_TRAP = ~(1 << (signal.SIGTRAP - 1)) & (1 << 64) - 1
_MMAP = 9
_USER_64 = 0x33
_SYSCALL = b"\x0f\x05"
_RSEQ = struct.Struct("QIIII")
_SECTION = struct.Struct("IIQQQ")
"""Layout of struct rseq_cs (include/uapi/linux/rseq.h)."""
_WORD = (1 << 64) - 1
Registers = dict[str, int]


class PtracedThread:
    """A context manager: the thread is stopped inside, and continues with `registers` afterwards."""

    def __init__(self, pid: int) -> None:
        """The main thread of this process; raises `CannotObserve` on other architectures."""
        if os.uname().machine != "x86_64":
            raise CannotObserve("a thread of another process can be controlled only on x86-64")
        self._pid = pid
        self._memory = -1
        self.registers: Registers = {}
        """Registers with which it continues; an interrupted system call is set up to be restarted."""

    def __enter__(self) -> Self:
        """Stop it; raises `OSError`, after which it continues (if it does not stop in time, once this process ends)."""
        self._memory = os.open(f"/proc/{self._pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._await_own_code()
            self._ask(_SEIZE)
            try:
                self._stop_between_sections()
                self._mask = self._signal_mask()
                self._set_signal_mask(_ALL_BUT_TRAP)
            except BaseException:
                with contextlib.suppress(OSError):
                    self._ask(_DETACH)
                raise
        except BaseException:
            os.close(self._memory)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # a thread that was killed meanwhile needs nothing
        with contextlib.suppress(OSError):
            self._set(self.registers)
            self._set_signal_mask(self._mask)
            self._ask(_DETACH)
        os.close(self._memory)

    def map_shared_page(self) -> int:
        """Make it map a readable and executable page, shared through /proc; returns the address. Raises `OSError`."""
        call = {"rax": _MMAP, "rdi": 0, "rsi": mmap.PAGESIZE, "r8": _WORD, "r9": 0}
        call |= {"rdx": mmap.PROT_READ | mmap.PROT_EXEC, "orig_rax": _WORD}
        call |= {"r10": mmap.MAP_SHARED | mmap.MAP_ANONYMOUS, "rip": self._call_instruction()}
        self._set(self.registers | call)
        self._ask(_SINGLESTEP)
        status = self._wait()
        result = _signed(self._get()["rax"])
        if os.WSTOPSIG(status) != signal.SIGTRAP or -4096 < result < 0:
            number = -result if -4096 < result < 0 else 0
            raise OSError(number, os.strerror(number) if number else "it was interrupted")
        return result

    def _call_instruction(self) -> int:
        """Address of an instruction that makes a system call, in the code that the kernel maps into every process."""
        for line in bounded.maps(self._pid):
            if line.endswith("[vdso]"):
                first, last = (int(word, 16) for word in line.split(maxsplit=1)[0].split("-"))
                found = os.pread(self._memory, last - first, first).find(_SYSCALL)
                if found >= 0:
                    return first + found
        raise OSError(0, "it has no vDSO with a system call")

    def _await_own_code(self) -> None:
        """Wait until it computes: inside a system call it would be where it also waits in healthy times."""
        deadline_s = time.monotonic() + TRACED_COMPUTES_S
        while time.monotonic() < deadline_s:
            # for a thread on a CPU, /proc shows no system call
            if bounded.read_bytes(f"/proc/{self._pid}/syscall").startswith(b"running"):
                return
            time.sleep(TRACED_POLL_S)

    def _stop_between_sections(self) -> None:
        """Stop it outside restartable sequences (rseq(2)): an interrupted one must not be entered again."""
        for _ in range(TRACED_TRIES):
            self._stop()
            found = self._get()
            if found["cs"] != _USER_64:
                raise OSError(0, "it is not a 64-bit process")
            if not self._is_in_section(found["rip"]):
                self.registers = _before_call(found)
                return
            self._ask(_CONT)
        raise OSError(0, "it did not leave a restartable sequence")

    def _is_in_section(self, address: int) -> bool:
        buffer = ctypes.create_string_buffer(_RSEQ.size)
        try:
            self._ask(_GET_RSEQ, _RSEQ.size, ctypes.addressof(buffer))
        except OSError:
            return False  # a kernel without restartable sequences, or before Linux 5.13
        area = _RSEQ.unpack(buffer.raw)[0]
        section = int.from_bytes(os.pread(self._memory, 8, area + 8), "little") if area else 0
        if not section:
            return False
        _, _, first, length, _ = _SECTION.unpack(os.pread(self._memory, _SECTION.size, section))
        return bool(first <= address < first + length)

    def _stop(self) -> None:
        self._ask(_INTERRUPT)
        while (status := self._wait()) >> 16 != _EVENT_STOP:
            # a signal in flight is delivered first
            self._ask(_CONT, 0, os.WSTOPSIG(status))
        if os.WSTOPSIG(status) != signal.SIGTRAP:
            raise OSError(0, "it is stopped already")

    def _wait(self) -> int:
        deadline_s = time.monotonic() + TRACED_STOPS_S
        while True:
            pid, status = os.waitpid(self._pid, os.WNOHANG | _WALL)
            if pid and os.WIFSTOPPED(status):
                return status
            if pid:
                raise ProcessLookupError(0, "it has ended")
            if time.monotonic() >= deadline_s:
                raise TimeoutError(0, "it does not stop: it may be in an uninterruptible call")
            time.sleep(TRACED_POLL_S)

    def _signal_mask(self) -> int:
        mask = ctypes.c_uint64()
        self._ask(_GETSIGMASK, 8, ctypes.addressof(mask))
        return mask.value

    def _set_signal_mask(self, value: int) -> None:
        mask = ctypes.c_uint64(value)
        self._ask(_SETSIGMASK, 8, ctypes.addressof(mask))

    def _get(self) -> Registers:
        buffer = ctypes.create_string_buffer(_REGISTERS.size)
        self._ask(_GETREGS, 0, ctypes.addressof(buffer))
        return dict(zip(_NAMES, _REGISTERS.unpack(buffer.raw), strict=True))

    def _set(self, registers: Registers) -> None:
        packed = _REGISTERS.pack(*(registers[name] for name in _NAMES))
        buffer = ctypes.create_string_buffer(packed, len(packed))
        self._ask(_SETREGS, 0, ctypes.addressof(buffer))

    def _ask(self, request: int, address: int = 0, data: int = 0) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        libc.ptrace.restype = ctypes.c_long
        if libc.ptrace(request, self._pid, address, data) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _before_call(registers: Registers) -> Registers:
    """The registers before the interrupted system call, marked as "no call", so that the kernel restarts none."""
    found = dict(registers)
    if _signed(found["orig_rax"]) >= 0:
        result = _signed(found["rax"])
        if result in _MADE_AGAIN:
            found["rax"] = found["orig_rax"]
            found["rip"] -= len(_SYSCALL)
        elif result == _RESTART_BLOCK:
            # only the kernel knows how long it has waited, and forgets it at the next wait
            found["rax"] = _EINTR & _WORD
    return found | {"orig_rax": _WORD}


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
