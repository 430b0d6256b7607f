"""Input and output of a judgement: the `JobSnapshot` that it reads, and the `Finding` that it returns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.diagnosis.clock.certainty import certainty_of
from kcover_ebpf.diagnosis.membership.endpoints import EndpointIndex
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.model.collective_counts import CollectiveCounts, Recordings
from kcover_ebpf.model.rank_snapshot import RankSnapshot
from kcover_ebpf.model.roles import Role
from kcover_ebpf.model.verdict import Cause, Certainty, Culprit, Evidence, VerdictKind
from kcover_ebpf.settings import Policy


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one pass over a job; becomes a verdict once it has lasted."""

    kind: VerdictKind
    cause: Cause
    since_ns: int
    culprit: Culprit | None = None
    """Without pod and node; its host is None if that is this one."""
    evidence: tuple[Evidence, ...] = ()
    victims: tuple[Pid, ...] = ()
    factor: float | None = None
    """SLOW only: the culprit's step time over that of its peers; None if not measured."""
    silent_since_ns: int | None = None
    """When the last of the waiting ranks began to wait, on the clock of `since_ns`; None if that has no meaning."""

    graph: tuple[str, ...] = ()
    """The graph of waits, and work that does not count, as lines of text."""
    doubtful: bool = False
    """The culprit may wait for something outside the job, or for its own threads: nothing is inferred from it."""

    @property
    def certainty(self) -> Certainty | None:
        """How certain it is that the job does not continue by itself; None if nothing is wrong."""
        certainty = certainty_of(self.kind, self.cause, self.culprit, self.evidence)
        return (
            Certainty.SUSPECTED if self.doubtful and certainty is Certainty.INFERRED else certainty
        )

    @property
    def pid(self) -> Pid | None:
        """Pid of the culprit; None if unknown, or not on this host."""
        return None if self.culprit is None or self.culprit.pid is None else Pid(self.culprit.pid)

    @property
    def rank(self) -> int | None:
        return None if self.culprit is None else self.culprit.rank


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """All that a judgement needs of one job at one moment."""

    now_ns: int
    """Time of the snapshot, on the clock of the finding's times."""
    policy: Policy
    processes: Mapping[Pid, RankSnapshot]
    """Ranks, also those that have ended, and every process that they may wait for."""
    ends: EndpointIndex
    lossy: bool = False
    """A link between ranks loses packets, and others get through."""
    knows_waits: bool = False
    """Some waits ended by themselves while the job was healthy, so a wait that never did is new."""
    whole: bool = True
    """All ranks of the job are in it; False if some are on hosts that only others observe."""
    unstopped_age_s: float = math.inf
    """Seconds since a host whose ranks are not in it last reported that none of them is stopped; infinite if none
    did."""
    cadence_known: bool = False
    """The thresholds were learned from observed steps of this job."""
    stalls_s: Mapping[Pid, float] = field(default_factory=dict)
    """Rank -> `JobProgress.stall_s`; empty if parts of the job are on other hosts."""
    starting: bool = False
    """A rank is still missing and the job never trained: the present ranks wait, as at every start."""
    collectives: CollectiveCounts | None = None
    """The last report of the job's own NCCL in this suspicion; None while there is none."""
    recordings: Recordings | None = None
    """Recordings of the ranks' flight recorders; None while they were not requested, or none has answered."""
    ranks: Mapping[Pid, RankSnapshot] = field(init=False)
    """Living ranks that take part, sorted by rank: monitors are left out."""
    living_count: int = field(init=False)
    """Number of living ranks, including monitors."""
    left: Mapping[Pid, RankSnapshot] = field(init=False)
    """Ranks that exited with code 0, or were ended by their own job, and were not restarted."""

    def __post_init__(self) -> None:
        """Build the index of ranks once: following the waits needs it at every step."""
        # sorted by rank, so that each node and the controller break ties alike
        found = (process for process in self.processes.values() if process.role is Role.RANK)
        everyone = {rank.pid: rank for rank in sorted(found, key=_by_number)}
        living = {pid: rank for pid, rank in everyone.items() if rank.exit is None}
        ranks = {pid: rank for pid, rank in living.items() if not rank.rests} or living
        again = {rank.rank for rank in living.values()} - {None}
        left = {
            pid: rank
            for pid, rank in everyone.items()
            if rank.exit is not None and not (rank.has_failed and rank.rank in again)
        }
        object.__setattr__(self, "ranks", ranks)
        object.__setattr__(self, "living_count", len(living))
        object.__setattr__(self, "left", left)

    def threshold_s(self, pid: Pid) -> float:
        """Seconds of silence from which on this rank has stalled."""
        threshold_s = self.processes[pid].threshold_s
        return self.policy.stall_floor_s if threshold_s is None else threshold_s

    def since_ns(self, rank: RankSnapshot) -> int:
        """When it came into its state, on the clock of `now_ns`."""
        return self.now_ns - round(rank.age_s * NS)

    @property
    def all_seen(self) -> bool:
        """True if no rank is on a host that is not observed: the others may be waiting for such a rank."""
        size = max((rank.world_size or 0 for rank in self.ranks.values()), default=0)
        return size == self.living_count if size else self.whole

    @property
    def silent_since_ns(self) -> int:
        """When the last of the living ranks came into its state: none has moved since."""
        return max(map(self.since_ns, self.ranks.values()), default=self.now_ns)

    @property
    def oldest_ns(self) -> int:
        """When the first of the living ranks came into its state."""
        return min(map(self.since_ns, self.ranks.values()))


def _by_number(rank: RankSnapshot) -> tuple[bool, int, Pid]:
    return rank.rank is None, rank.rank or 0, rank.pid


def blame(
    snapshot: JobSnapshot,
    kind: VerdictKind,
    cause: Cause,
    culprit_rank: RankSnapshot,
    found: Sequence[Evidence],
    end_rank: RankSnapshot | None = None,
) -> Finding:
    """A finding that names a culprit; `end_rank` is the end of its chain, if that is another process."""
    end = end_rank or culprit_rank
    return Finding(
        kind=kind,
        cause=cause,
        since_ns=snapshot.since_ns(culprit_rank),
        culprit=Culprit(culprit_rank.rank, culprit_rank.pid, end.holder or end.tid),
        evidence=tuple(found),
        victims=tuple(pid for pid in snapshot.ranks if pid != culprit_rank.pid),
    )
