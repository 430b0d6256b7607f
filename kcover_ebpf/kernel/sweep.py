"""Room in the kernel half's tables: what has ended is dropped, and what is kept is counted to its owners."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping

from kcover_ebpf.ids import Pid
from kcover_ebpf.kernel import owners
from kcover_ebpf.kernel.maps import BpfMap

_PASS = slice(0, 8)
_PID = slice(56, 60)
"""In a value of the map `sockets` (bpf/maps.bpf.h); the pass begins those of `threads`, too."""


def sweep(maps: Mapping[str, BpfMap], pass_id: int, behind: Mapping[Pid, int]) -> None:
    """Drop samples of threads that this pass did not see, and of sockets that the last walk did not see.

    `behind`: processes whose last walk to its end began in an earlier pass, and in which.
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
            kept[value[owners.IN_SOCKET]] += 1
    _drop(maps["sockets"], stale)
    owners.count_sockets(maps["owners"], kept)


def _drop(bpf_map: BpfMap, stale: list[bytes]) -> None:
    for key in stale:
        bpf_map.delete(key)
