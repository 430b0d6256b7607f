"""What tenants made that was over its bound: how often, for the metrics of this process, and of which process.

Thread-safe. `BOUNDS` lists all that there are. Whose it is is said in an Event: a controller says it of objects, and of
what an agent found in a pod on its node (`agent.over_pods`), for agents write no Events.
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
"""What may be over its bound, a label of `kcover_over_bound_total`, and what that means for people."""
OF_PODS = ("descriptors", "mappings", "file", "processes", "threads", "sockets", "log")
"""Those that an agent finds in the pods of its node."""
_LOCK = threading.Lock()
_MOST_ADDED = 1 << 20
_MOST_PIDS = 64
_COUNTS = dict.fromkeys(BOUNDS, 0)
_PIDS: set[tuple[int, str]] = set()


def count(what: str, pid: int | None = None) -> None:
    """An object, process or file was over its bound, and is not kept or not whole.

    `pid`: the process whose it is; None where it is an object, or of no process. Raises `KeyError` for any word that
    `BOUNDS` does not have.
    """
    with _LOCK:
        _COUNTS[what] += 1
        if pid is not None and len(_PIDS) < _MOST_PIDS:
            _PIDS.add((pid, what))


def drained() -> Mapping[str, object]:
    """What was counted since the last call, for a process that is asked and serves no metrics; empty where nothing was.

    Counts by word, and `pids`: pairs of a process and a word.
    """
    with _LOCK:
        found: dict[str, object] = {what: number for what, number in _COUNTS.items() if number}
        _COUNTS.update(dict.fromkeys(BOUNDS, 0))
        if _PIDS:
            found["pids"] = [list(pair) for pair in sorted(_PIDS)]
            _PIDS.clear()
    return found


def add(found: object) -> None:
    """What another process has drained; it may have been taken over: whatever is no such count is passed over."""
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
    """Processes of which something was over its bound since the last call, and what."""
    with _LOCK:
        found = frozenset(_PIDS)
        _PIDS.clear()
    return found


def counts() -> Mapping[str, int]:
    """Since this process began, by what it was."""
    with _LOCK:
        return dict(_COUNTS)
