"""Shares of the BPF tables by owner (bpf/maps.bpf.h): which owner a process belongs to, and cleaning up after it."""

from __future__ import annotations

import struct
import sys
from collections import Counter
from collections.abc import Mapping

from kcover_ebpf.ids import Pid
from kcover_ebpf.kernel.maps import BpfMap

IN_SOCKET = slice(8, 16)
"""Bytes of the owner in a value of the map `sockets`."""
_COUNT_BYTES = 8
"""The number of sockets is the end of a value of the map `owners`."""
_COUNTS = struct.Struct("=6Q")
"""`struct owner_value`: pass, processes and threads so far in it, both of the previous pass, sockets."""
SHARES = {"processes": 16384 // 8, "threads": 131072 // 8, "sockets": 131072 // 8}
"""Entries that one pod may have in each table."""
_PASS = slice(0, 8)
_PID = slice(56, 60)
"""Bytes of the pid in a value of the map `sockets` (bpf/maps.bpf.h); in `threads` too, the pass
comes first."""


def of_pod(uid: str) -> int:
    """The 64-bit owner id of a pod in BPF: never the number of a control group, because those are counted from 1."""
    # a run on one host has no pods, and need not load it
    import hashlib

    return int.from_bytes(hashlib.sha256(uid.encode()).digest()[:8], "big") | 1 << 63


def full(bpf_map: BpfMap) -> Mapping[int, frozenset[str]]:
    """For each pod, which of its shares are used up; control groups that belong to no pod are left out."""
    found = {}
    for key, value in list(bpf_map.items()):
        owner = int.from_bytes(key, sys.byteorder)
        _, processes, threads, all_processes, all_threads, sockets = _COUNTS.unpack(value)
        counts = max(processes, all_processes), max(threads, all_threads), sockets
        words = frozenset(
            what
            for (what, share), number in zip(SHARES.items(), counts, strict=True)
            if number >= share
        )
        if words and owner >> 63:
            found[owner] = words
    return found


def _count_sockets(bpf_map: BpfMap, kept: Mapping[bytes, int]) -> None:
    """Write the true number of sockets of each owner, because the count kept in BPF may drift."""
    for key, value in list(bpf_map.items()):
        count = kept.get(key, 0).to_bytes(_COUNT_BYTES, sys.byteorder)
        bpf_map.update(key, value[:-_COUNT_BYTES] + count)


def sweep(maps: Mapping[str, BpfMap], pass_id: int, behind: Mapping[Pid, int]) -> None:
    """Delete samples of threads that this pass did not see, and of sockets that the last walk did not see.

    `behind`: processes whose last complete walk began in an earlier pass, and in which one.
    """
    mark = pass_id.to_bytes(8, sys.byteorder)
    _drop(maps["threads"], [key for key, value in maps["threads"].items() if value[_PASS] != mark])
    kept: Counter[bytes] = Counter()
    stale: list[bytes] = []
    for key, value in maps["sockets"].items():
        pid = Pid(int.from_bytes(value[_PID], sys.byteorder))
        if int.from_bytes(value[_PASS], sys.byteorder) < behind.get(pid, pass_id):
            stale.append(key)
        else:
            kept[value[IN_SOCKET]] += 1
    _drop(maps["sockets"], stale)
    _count_sockets(maps["owners"], kept)


def _drop(bpf_map: BpfMap, stale: list[bytes]) -> None:
    for key in stale:
        bpf_map.delete(key)
