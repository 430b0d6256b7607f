"""Which processes have certain files open, and which hold the other end of a pipe; read here or by another process.

The program decides how many descriptors it has and how long their paths are, so all reads are bounded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path

from kcover_ebpf.host import bounded, over_bounds, procfs
from kcover_ebpf.host.procfs import PROC
from kcover_ebpf.ids import Inode, Pid
from kcover_ebpf.tunables.host import OPEN_FILES_CPU_S

_MOST_LINKS = (512, 16_384)
"""Most descriptors of a process: the first number for every process, then the second for those that
have more. Devices are opened early, and the kernel lists descriptors by number."""

FileSearch = Callable[[Collection[Pid], Collection[str]], Mapping[Pid, frozenset[str]]]
"""Signature of `read`, for the function that replaces it."""


def read(
    pids: Collection[Pid], paths: Collection[str], proc: Path = PROC
) -> Mapping[Pid, frozenset[str]]:
    """For each process, those of `paths` that it has open; empty if it cannot be read.

    Processes not reached within `OPEN_FILES_CPU_S` are missing.
    """
    found: dict[Pid, frozenset[str]] = {}
    end_s = time.thread_time() + OPEN_FILES_CPU_S
    left = list(pids)
    for most in _MOST_LINKS:
        longer = []
        for pid in left:
            if time.thread_time() > end_s:
                return found
            try:
                links, is_cut = bounded.links(proc / str(pid) / "fd", most)
                found[pid] = frozenset(link for link in links if link in paths)
            except OSError:
                found[pid], is_cut = frozenset(), False
            if is_cut:
                longer.append(pid)
        left = longer
    for pid in left:
        over_bounds.count("descriptors", pid)
    return found


def pipe_holders(
    inodes: frozenset[Inode], pids: Iterable[Pid], limit_s: float
) -> dict[Inode, list[Pid]]:
    """Pipe or FIFO -> those of `pids` that have its other end open, as far as `limit_s` seconds allow."""
    wanted = {f"pipe:[{inode}]": inode for inode in inodes}
    found: dict[Inode, list[Pid]] = {}
    end_s = time.monotonic() + limit_s
    for pid in pids:
        if time.monotonic() > end_s:
            break
        for link in procfs.open_among(pid, wanted):
            found.setdefault(wanted[link], []).append(pid)
    return found


class OpenFiles:
    """The reader of open files of one program. Used by several threads."""

    def __init__(self, proc: Path = PROC) -> None:
        self._search: FileSearch = partial(read, proc=proc)

    def read_by(self, search: FileSearch) -> None:
        """From now on, read with `search`, which asks another process."""
        self._search = search

    def of(self, pids: Collection[Pid], paths: Collection[str]) -> Mapping[Pid, frozenset[str]]:
        """See `read`; empty if it cannot be read now."""
        return self._search(pids, paths) if pids and paths else {}

    def holders(self, pids: Collection[Pid], paths: Collection[str]) -> set[Pid]:
        """Those of `pids` that have one of the files open now, as far as they can be read."""
        return {pid for pid, held in self.of(pids, paths).items() if held}
