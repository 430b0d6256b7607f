"""Finds the file from which a process has mapped NCCL, and the functions in it.

Every call can block as long as the file system of the library does, and the job chose that file system. Callers use
a worker that they can abandon.
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
"""Name prefixes of libraries that may have NCCL linked into them."""
_KNOWN_COUNT = 32
_MOST_CANDIDATES = 16
"""Most libraries opened for one process; a process may give any file such a name."""


class NoLibrary(Exception):
    """The process has no NCCL that could be probed (yet); the message says why."""


@dataclass(frozen=True, slots=True)
class MappedFile:
    """A file that a process has mapped as executable."""

    inode: int
    path: str
    """Path in the mount namespace of the process."""
    start: int = field(default=0, compare=False)
    end: int = field(default=0, compare=False)
    """End address of one of its mappings."""


def candidates(lines: Iterable[str], names: tuple[str, ...]) -> list[MappedFile]:
    """Files with executable mappings and one of these name prefixes, from the lines of /proc/PID/maps."""
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
    """The candidate files of a process; raises `NoLibrary`. May block."""
    try:
        return candidates(bounded.maps(pid, procfs.PROC), names)
    except OSError as error:
        raise NoLibrary(f"its mappings are unreadable ({error.strerror})") from error


@dataclass(frozen=True, slots=True)
class Functions:
    """The offsets of NCCL's functions in a file that is kept open."""

    name: str
    """Base name of the file, for messages."""
    path: str
    """Path of the open descriptor: it leads to this file and no other, as long as it is open."""
    offsets: Mapping[str, int]


@dataclass(slots=True)
class Libraries:
    """Finds NCCL's functions and caches the offsets by file. Used by several threads."""

    names: Collection[str]
    """Names of the functions to look up."""
    read: Callable[[int, Collection[str]], Mapping[str, int]] = function_offsets
    """Finds functions in an open file; raises `ElfError`, `OSError`."""
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
        for candidate in sorted(
            found, key=lambda mapped_file: not basename(mapped_file.path).startswith(LIBRARIES)
        ):
            name = basename(candidate.path)
            try:
                descriptor = _open(pid, candidate)
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
    """A descriptor of the mapped file, opened by its mapping and not by its name: by now the name may lead to a device.

    The file is opened for reading only after it is known to be regular, because opening a device can have effects.
    Needs CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE (kernel: proc_map_files_get_link); raises `OSError`.

    Only inode numbers are compared: in an overlay file system, the mapping and the opened file have different
    devices.
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
