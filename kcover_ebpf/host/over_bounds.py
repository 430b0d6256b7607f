"""Counts what tenants created beyond a bound, for this process's metrics, and by which process.

Thread-safe. `BOUNDS` lists all kinds. An Event names the owner. The controller writes it, both for objects and for
what an agent found in a pod on its node (`agent.over_pods`), because agents write no Events.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

BOUNDS = {
    "pod": "a pod whose labels, owners, finalizers and containers are larger than what is kept of one",
    "pods": "more pods of a namespace than its share",
    "policies": "more policies of a namespace than its share",
    "incident": "an incident with larger finalizers and annotations than are kept of one",
    "incidents": "more incidents of a namespace than its share",
    "events": "more Events of a namespace that ask for a recovery than are looked up",
    "descriptors": "more descriptors of a process than are read",
    "mappings": "more executable mappings of a process than are kept",
    "file": "a larger file of /proc of a process than is read",
    "processes": "more processes of a pod than its share of the kernel's tables",
    "threads": "more threads of a pod than its share",
    "sockets": "more TCP sockets of a pod than its share",
    "log": "a log that grows faster than it is read: the older part is skipped",
}
"""Kinds of bounds, which are values of a label of `kcover_over_bound_total`, with descriptions for
users."""
OF_PODS = ("descriptors", "mappings", "file", "processes", "threads", "sockets", "log")
"""Kinds that an agent finds in the pods of its node."""
_LOCK = threading.Lock()
_MOST_ADDED = 1 << 20
_MOST_PIDS = 64
_COUNTS = dict.fromkeys(BOUNDS, 0)
_PIDS: set[tuple[int, str]] = set()


def count(what: str, pid: int | None = None) -> None:
    """Record that an object, process or file exceeded its bound and was dropped or truncated.

    `pid`: the process that caused it; None for an object or if unknown. Raises `KeyError` for a kind that is not in
    `BOUNDS`.
    """
    with _LOCK:
        _COUNTS[what] += 1
        if pid is not None and len(_PIDS) < _MOST_PIDS:
            _PIDS.add((pid, what))


def drained() -> Mapping[str, object]:
    """Everything counted since the last call, for a process without its own metrics server; empty if nothing was.

    It contains counts by kind, and `pids`: pairs of a process and a kind.
    """
    with _LOCK:
        found: dict[str, object] = {what: number for what, number in _COUNTS.items() if number}
        _COUNTS.update(dict.fromkeys(BOUNDS, 0))
        if _PIDS:
            found["pids"] = [list(pair) for pair in sorted(_PIDS)]
            _PIDS.clear()
    return found


def add(found: object) -> None:
    """Add what another process has drained.

    That process may have been taken over, so everything that is not a valid count is ignored.
    """
    if not isinstance(found, dict):
        return
    pairs = found.get("pids")
    with _LOCK:
        for what, number in found.items():
            if what in _COUNTS and type(number) is int and 0 < number <= _MOST_ADDED:
                _COUNTS[what] += number
        for pair in pairs[:_MOST_PIDS] if isinstance(pairs, list) else ():
            if isinstance(pair, list) and len(pair) == 2:
                pid, what = pair
                if type(pid) is int and what in OF_PODS and len(_PIDS) < _MOST_PIDS:
                    _PIDS.add((pid, what))


def taken_pids() -> frozenset[tuple[int, str]]:
    """(process, kind) for each bound exceeded since the last call."""
    with _LOCK:
        found = frozenset(_PIDS)
        _PIDS.clear()
    return found


def counts() -> Mapping[str, int]:
    """Kind -> count since this process began."""
    with _LOCK:
        return dict(_COUNTS)
