"""Who holds the other end of a pipe or FIFO, found by the links in /proc/PID/fd."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

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
        for link in _links(pid) & wanted.keys():
            found.setdefault(wanted[link], []).append(pid)
    return found


def every_process() -> list[Pid]:
    """All processes of this pid namespace."""
    with os.scandir("/proc") as entries:
        return [Pid(int(entry.name)) for entry in entries if entry.name.isdecimal()]


def _links(pid: Pid) -> set[str]:
    links = set()
    try:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                try:
                    links.add(str(Path(entry).readlink()))
                except OSError:
                    continue
    except OSError:
        return set()
    return links
