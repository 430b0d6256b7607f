"""A rank whose framework gave up waiting: it fails first, but the rank that it waited for is to be named. Pure.

The time-out of a collective (gloo raises, NCCL's watchdog aborts) fires in a rank that waits. If every other rank
waited for one for long, that one is the reason, whatever it was doing: also an evaluation that outlasts the
time-out.
"""

from __future__ import annotations

from collections.abc import Iterable

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.diagnosis.evidence import control_group, evidence, wait_chain
from kcover_ebpf.diagnosis.evidence.snapshot import JobSnapshot
from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.model.rank_snapshot import RankSnapshot
from kcover_ebpf.tunables.diagnosis import GAVE_UP_S


@dataclass(frozen=True, slots=True)
class Awaited:
    """The rank that all others waited for, at one moment."""

    rank: RankSnapshot
    waiting: frozenset[Pid]
    """Pids of all other ranks, which were waiting."""
    waited_s: float
    """Seconds for which each of them had waited, at least."""
    at_ns: int
    """Boottime of the observation."""

    @property
    def text(self) -> str:
        """The observation as a sentence of the verdict."""
        name, doing = evidence.name(self.rank), f"{self.rank.state.text}: {self.rank.text}"
        return (
            f"every other rank had waited for {name} ({doing}) for at least {self.waited_s:.1f} s"
        )


def is_due(ranks: Iterable[ProcessHistory], now_ns: int) -> bool:
    """True if the ranks have exchanged no bytes for so long that all may be waiting for one of them.

    A rank that computes is found in ever new code: that shows progress, and nothing is suspicious.
    """
    last_ns = max((rank.data_ns for rank in ranks), default=0)
    return last_ns > 0 and now_ns - last_ns >= GAVE_UP_S * NS


def awaited(snapshot: JobSnapshot) -> Awaited | None:
    """The one rank that all others have waited for, longer than any step; None unless there is exactly one."""
    if snapshot.starting or not snapshot.all_seen:
        return None
    # before the more expensive computation of the chains of waits
    if sum(rank.age_s < GAVE_UP_S for rank in snapshot.ranks.values()) > 1:
        return None
    snapshot = control_group.compared(snapshot)
    waiting, sinks = wait_chain.split(snapshot, list(snapshot.ranks.values()))
    if len(sinks) != 1 or not waiting:
        return None
    waited_s = min(rank.age_s for rank in waiting)
    if waited_s < max(GAVE_UP_S, *(snapshot.threshold_s(pid) for pid in snapshot.ranks)):
        return None
    others = frozenset(rank.pid for rank in waiting)
    return Awaited(sinks[0], others, waited_s, snapshot.now_ns)
