"""BPF object files and the links of their programs.

It makes no policy: which object is loaded, and what its refusal costs, is defined in `probes`.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from ctypes import byref, c_size_t, c_uint32, c_void_p
from pathlib import Path

from kcover_ebpf.errors import LoadError
from kcover_ebpf.kernel import attach_points
from kcover_ebpf.kernel.libbpf import check, clear_log, last_error, library, verdict_of_log
from kcover_ebpf.kernel.maps import BpfMap

_READ_BYTES = 64 * 1024
_TYPED = "tp_btf/"
_KPROBE = "kprobe/"
_UPROBE = "uprobe/"


class _IterTaskInfo(ctypes.Structure):
    """The thread or process to walk: member `task` of `union bpf_iter_link_info` (include/uapi/linux/bpf.h)."""

    _fields_ = (("tid", c_uint32), ("pid", c_uint32), ("pid_fd", c_uint32))


class _IterAttachOptions(ctypes.Structure):
    _fields_ = (("sz", c_size_t), ("link_info", c_void_p), ("link_info_len", c_uint32))


class IteratorWalk:
    """One walk of an iterator program, which may be read in parts; each part begins where the previous one ended."""

    def __init__(self, fd: int) -> None:
        """Takes ownership of the descriptor of the walk."""
        self._fd = fd
        self.is_over = False
        """True once the program has written everything."""

    def read(self, most_bytes: int) -> bytes:
        """The program's output until `most_bytes` are read (up to 32 KiB more), the walk ends, or it pauses.

        The program pauses by itself; the kernel pauses it after a million objects without output.
        """
        chunks: list[bytes] = []
        size = 0
        while size < most_bytes:
            try:
                chunk = os.read(self._fd, _READ_BYTES)
            except BlockingIOError:
                break
            if not chunk:
                self.is_over = True
                break
            chunks.append(chunk)
            size += len(chunk)
        return b"".join(chunks)

    def close(self) -> None:
        """Close the walk; the rest of its output is lost."""
        os.close(self._fd)


class BpfLink:
    """An attached program; destroying the link detaches it."""

    def __init__(self, pointer: int) -> None:
        self._pointer: int | None = pointer

    def walk(self) -> IteratorWalk:
        """Start a walk of an iterator program."""
        return IteratorWalk(check(library().bpf_iter_create(library().bpf_link__fd(self._pointer))))

    def read_iterator(self) -> bytes:
        """The output of one complete walk of an iterator program."""
        walk = self.walk()
        parts: list[bytes] = []
        try:
            while not walk.is_over:
                parts.append(walk.read(sys.maxsize))
        finally:
            walk.close()
        return b"".join(parts)

    def destroy(self) -> None:
        """Detach the program; further calls do nothing."""
        if self._pointer is not None:
            library().bpf_link__destroy(self._pointer)
            self._pointer = None


class BpfObject:
    """One object file and its life: open, adjust maps and programs, load, attach, close."""

    def __init__(self, path: Path) -> None:
        """Open without loading; raises `LoadError` with libbpf's reason."""
        self._lib = library()
        self.name = path.name
        clear_log()
        self._pointer: int | None = self._lib.bpf_object__open_file(os.fsencode(path), None)
        if not self._pointer:
            raise LoadError(f"cannot open {path}: {last_error().strerror}; run make build")
        self._programs = dict(self._walk("program"))
        self.maps = {name: BpfMap(pointer) for name, pointer in self._walk("map")}

    def _walk(self, kind: str) -> Iterator[tuple[str, int]]:
        following = getattr(self._lib, f"bpf_object__next_{kind}")
        name_of = getattr(self._lib, f"bpf_{kind}__name")
        pointer = following(self._pointer, None)
        while pointer:
            yield name_of(pointer).decode(), pointer
            pointer = following(self._pointer, pointer)

    def typed_tracepoints(self) -> dict[str, str]:
        """Program -> tracepoint, for programs on typed tracepoints (tp_btf)."""
        return self._sections_after(_TYPED)

    def kernel_functions(self) -> dict[str, str]:
        """Program -> kernel function, for kprobes."""
        return self._sections_after(_KPROBE)

    def user_functions(self) -> dict[str, str]:
        """Program -> function of a library, for user probes."""
        return self._sections_after(_UPROBE)

    def _sections_after(self, prefix: str) -> dict[str, str]:
        """Program -> rest of its section name after the prefix, for sections that have it."""
        name_of = self._lib.bpf_program__section_name
        sections = {name: name_of(pointer).decode() for name, pointer in self._programs.items()}
        return {
            name: section.removeprefix(prefix)
            for name, section in sections.items()
            if section.startswith(prefix)
        }

    def select(self, names: frozenset[str]) -> None:
        """Load only the programs with these names; call it before `load`."""
        for name, pointer in self._programs.items():
            self._lib.bpf_program__set_autoload(pointer, name in names)

    def load(self) -> None:
        """Load the object into the kernel; raises `LoadError` with the kernel's reason."""
        clear_log()
        result = self._lib.bpf_object__load(self._pointer)
        if result < 0:
            raise LoadError(f"{self.name}: {os.strerror(-result)}{verdict_of_log()}")

    def attach(self, name: str) -> BpfLink:
        """Attach a program as its section says; raises `LoadError`.

        If the function is missing under its name, its only compiler-made clone is used.
        """
        clear_log()
        program = self._programs[name]
        pointer = self._lib.bpf_program__attach(program)
        if not pointer:
            error = last_error()
            section = self._lib.bpf_program__section_name(program).decode()
            clone = (
                attach_points.variant(section.removeprefix(_KPROBE)) if _KPROBE in section else None
            )
            if clone is not None:
                pointer = self._lib.bpf_program__attach_kprobe(program, False, clone.encode())
            if not pointer:
                raise LoadError(f"{self.name}: {name}: {error.strerror}") from error
        return BpfLink(pointer)

    def attach_user(self, name: str, *, pid: int, path: str, offset: int) -> BpfLink:
        """Attach a user probe at `offset` of a file, for one process only; raises `OSError`.

        All threads of the process are probed, but no other process that has mapped the file. Opening the file may
        block.
        """
        pointer = self._lib.bpf_program__attach_uprobe(
            self._programs[name], False, pid, os.fsencode(path), offset
        )
        if not pointer:
            raise last_error()
        return BpfLink(pointer)

    def attach_group(self, name: str, group: int) -> BpfLink:
        """Attach a program to the control group of this descriptor; raises `OSError`."""
        pointer = self._lib.bpf_program__attach_cgroup(self._programs[name], group)
        if not pointer:
            raise last_error()
        return BpfLink(pointer)

    def attach_task_iterator(self, name: str, *, tid: int = 0, pid: int = 0) -> BpfLink:
        """Attach a task iterator to one thread or one process only; raises `OSError`.

        Kernels before 6.1 do not know `pid` (E2BIG) and ignore `tid`.
        """
        info = _IterTaskInfo(tid, pid, 0)
        options = _IterAttachOptions(
            ctypes.sizeof(_IterAttachOptions), ctypes.addressof(info), ctypes.sizeof(info)
        )
        pointer = self._lib.bpf_program__attach_iter(self._programs[name], byref(options))
        if not pointer:
            raise last_error()
        return BpfLink(pointer)

    def close(self) -> None:
        """Release programs and maps; attached programs live as long as their links."""
        if self._pointer is not None:
            self._lib.bpf_object__close(self._pointer)
            self._pointer = None
