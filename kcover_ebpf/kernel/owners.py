"""Whose share of the kernel half's tables a process takes (bpf/maps.bpf.h)."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from kcover_ebpf.kernel.maps import BpfMap

IN_SOCKET = slice(8, 16)
"""The owner in a value of the map `sockets`."""
_COUNT_BYTES = 8
"""The number of sockets ends a value of the map `owners`."""


def of_pod(uid: str) -> int:
    """What the kernel half calls a pod, 64 bits: no number of a control group, which are counted from 1."""
    # a run on one host knows no pods, and need not load it
    import hashlib

    return int.from_bytes(hashlib.sha256(uid.encode()).digest()[:8], "big") | 1 << 63


def count_sockets(bpf_map: BpfMap, kept: Mapping[bytes, int]) -> None:
    """Write how many sockets each owner has: what the kernel half counts by itself may be off."""
    for key, value in list(bpf_map.items()):
        count = kept.get(key, 0).to_bytes(_COUNT_BYTES, sys.byteorder)
        bpf_map.update(key, value[:-_COUNT_BYTES] + count)
