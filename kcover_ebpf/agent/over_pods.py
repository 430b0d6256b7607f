"""Pods of this node that recently exceeded a bound; the controller writes an Event about each.

A compromised reader can at most cause a false Event about another process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kcover_ebpf.agent.node_loop import GangWatch
from kcover_ebpf.api.fault_report import OverPod
from kcover_ebpf.host import over_bounds
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.kernel import owners
from kcover_ebpf.tunables.agent import OVER_REPORTED_S

_MOST_PODS = 64


class OverPods:
    """Remembers each excess for a while. Used by the loop's thread only."""

    def __init__(
        self,
        losses: Callable[[], Mapping[str, int]],
        full: Callable[[], Mapping[int, frozenset[str]]],
    ) -> None:
        """`losses`: records that the kernel half dropped; `full`: owner -> which of its shares are used up."""
        self._losses, self._full = losses, full
        self._lost: Mapping[str, int] = {}
        self._seen_ns: dict[tuple[str, str], int] = {}
        """(uid of a pod, bound) -> when the pod last exceeded it."""

    def update(
        self, watched: Iterable[GangWatch], skipped_logs: Iterable[str], now_ns: int
    ) -> tuple[OverPod, ...]:
        """Called once a pass: excesses of the last `OVER_REPORTED_S`.

        `skipped_logs`: uids of pods with a log of which a part was skipped.
        """
        watches = list(watched)
        known = {pod.uid: pod for watch in watches for pod in watch.here.pods}
        found = {(uid, "log") for uid in skipped_logs}
        found |= self._of_processes(watches) | self._of_tables(known)
        self._seen_ns |= dict.fromkeys(found, now_ns)
        oldest_ns = now_ns - int(OVER_REPORTED_S * NS)
        self._seen_ns = {
            (uid, what): at_ns
            for (uid, what), at_ns in self._seen_ns.items()
            if uid in known and at_ns >= oldest_ns
        }
        words: dict[str, list[str]] = {}
        for uid, what in sorted(self._seen_ns):
            words.setdefault(uid, []).append(what)
        return tuple(
            OverPod(known[uid].namespace, known[uid].name, uid, tuple(what))
            for uid, what in list(words.items())[:_MOST_PODS]
        )

    def _of_processes(self, watches: Iterable[GangWatch]) -> set[tuple[str, str]]:
        pids = over_bounds.taken_pids()
        return {
            (uid, what)
            for pid, what in pids
            for watch in watches
            if (uid := watch.pods.get(Pid(pid)))
        }

    def _of_tables(self, uids: Iterable[str]) -> set[tuple[str, str]]:
        lost = self._losses()
        if lost == self._lost:
            return set()
        self._lost, full = dict(lost), self._full()
        found = {(uid, what) for uid in uids for what in full.get(owners.of_pod(uid), ())}
        for _, what in found:
            over_bounds.count(what)
        return found
