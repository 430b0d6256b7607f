"""Which file a process has its NCCL from, and where the functions are in it.

Everything here can block for as long as the file system of the library does, which the job chose: callers use a
worker that they can leave behind.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from posixpath import basename

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.host import bounded, procfs
from kcover_ebpf.host.capabilities import Capability, raised
from kcover_ebpf.host.elf_functions import ElfError, function_offsets
from kcover_ebpf.host.proc_text import code_mappings
from kcover_ebpf.ids import Pid

LIBRARIES = ("libnccl.so", "librccl.so")
HOSTS = ("libtorch_cuda", "libtorch_hip", "libtensorflow", "xla_cuda_plugin", "pjrt_c_api_gpu")
"""Beginnings of names of libraries that may have NCCL linked into them."""
_KNOWN_COUNT = 32
_MOST_MAPS_BYTES = 8 << 20
"""Of one maps file: some 80,000 mappings."""
_MOST_CANDIDATES = 16
"""Of one process, which may call any file so; each is opened in turn."""


class NoLibrary(Exception):
    """The process has no NCCL that could be probed (yet); the message says why."""


@dataclass(frozen=True, slots=True)
class MappedFile:
    """A file that a process has mapped as code."""

    inode: int
    path: str
    """In the process's own mount namespace."""
    start: int = field(default=0, compare=False)
    end: int = field(default=0, compare=False)
    """Of one of its mappings: addresses."""


def candidates(lines: Iterable[str], names: tuple[str, ...]) -> list[MappedFile]:
    """Files among lines of /proc/PID/maps that are mapped as code and whose names begin so."""
    found: dict[MappedFile, None] = {}
    for code_mapping in code_mappings(lines):
        if code_mapping.path.startswith("/") and basename(code_mapping.path).startswith(names):
            found.setdefault(
                MappedFile(
                    code_mapping.inode, code_mapping.path, code_mapping.start, code_mapping.end
                )
            )
        if len(found) == _MOST_CANDIDATES:
            break
    return list(found)


def mapped(pid: Pid, names: tuple[str, ...]) -> list[MappedFile]:
    """Those of a process; raises `NoLibrary`. May block."""
    try:
        return candidates(bounded.lines(procfs.PROC / str(pid) / "maps", _MOST_MAPS_BYTES), names)
    except OSError as error:
        raise NoLibrary(f"its mappings are unreadable ({error.strerror})") from error


@dataclass(frozen=True, slots=True)
class Functions:
    """NCCL's functions in an open file."""

    name: str
    """Base name of the file."""
    path: str
    """Leads to the open file and to no other, as long as it is open."""
    offsets: Mapping[str, int]


@dataclass(slots=True)
class Libraries:
    """Finds them; remembers the offsets in files that were read. Used by several threads."""

    names: Collection[str]
    """The functions that are wanted."""
    read: Callable[[int, Collection[str]], Mapping[str, int]] = function_offsets
    """Who reads an open file; raises `ElfError`, `OSError`."""
    _known: dict[tuple[int, ...], Mapping[str, int]] = field(default_factory=dict)

    @contextmanager
    def of(self, pid: Pid) -> Iterator[Functions]:
        """The file of a process, open within this block; raises `NoLibrary`."""
        descriptor, name, offsets = self._find(pid)
        try:
            yield Functions(name, f"/proc/self/fd/{descriptor}", offsets)
        finally:
            os.close(descriptor)

    def _find(self, pid: Pid) -> tuple[int, str, Mapping[str, int]]:
        reason = "it has loaded no NCCL"
        found = mapped(pid, LIBRARIES + HOSTS)
        for other_mapped_file in sorted(
            found, key=lambda mapped_file: not basename(mapped_file.path).startswith(LIBRARIES)
        ):
            name = basename(other_mapped_file.path)
            try:
                descriptor = _open(pid, other_mapped_file)
            except OSError as error:
                reason = f"{name}: {error.strerror}"
                continue
            try:
                offsets = self._offsets(descriptor)
            except (ElfError, OSError) as error:
                reason, offsets = f"{name}: {error}", {}
            if offsets:
                return descriptor, name, offsets
            os.close(descriptor)
        raise NoLibrary(reason)

    def _offsets(self, descriptor: int) -> Mapping[str, int]:
        info = os.fstat(descriptor)
        key = (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns)
        if key not in self._known:
            if len(self._known) >= _KNOWN_COUNT:
                self._known.clear()
            self._known[key] = self.read(descriptor, self.names)
        return self._known[key]


def _open(pid: Pid, wanted_mapped_file: MappedFile) -> int:
    """The file that is mapped, by its mapping and by no name: a name may lead to a device by now.

    It is opened only once it is known to be a regular file, for opening a device does things. Needs CAP_SYS_ADMIN or
    CAP_CHECKPOINT_RESTORE (kernel: proc_map_files_get_link); raises `OSError`. Inode numbers alone: a file of an
    overlay has another device in the mappings than where it is opened.
    """
    link = (
        procfs.PROC
        / str(pid)
        / "map_files"
        / f"{wanted_mapped_file.start:x}-{wanted_mapped_file.end:x}"
    )
    with raised(Capability.SYS_ADMIN):
        found = os.open(link, os.O_PATH | os.O_CLOEXEC)
    try:
        info = os.fstat(found)
        if info.st_ino != wanted_mapped_file.inode or not stat.S_ISREG(info.st_mode):
            raise OSError(0, "the file was replaced since it was loaded")
        return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    finally:
        os.close(found)
