"""Who holds the other end of a pipe or FIFO, found by the links in /proc/PID/fd."""

from __future__ import annotations

import time
from collections.abc import Iterable

from kcover_ebpf.host import procfs
from kcover_ebpf.ids import Inode, Pid


def pipe_holders(
    inodes: frozenset[Inode], pids: Iterable[Pid], limit_s: float
) -> dict[Inode, list[Pid]]:
    """Processes among `pids` that hold each pipe, as far as `limit_s` allows."""
    wanted = {f"pipe:[{inode}]": inode for inode in inodes}
    found: dict[Inode, list[Pid]] = {}
    end_s = time.monotonic() + limit_s
    for pid in pids:
        if time.monotonic() > end_s:
            break
        for link in procfs.open_among(pid, wanted):
            found.setdefault(wanted[link], []).append(pid)
    return found
