"""What one look at a job sees and says: a `JobSnapshot` goes in, a `Finding` comes out. No judgement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kcover_ebpf.diagnosis.process import NS, ProcessHistory
from kcover_ebpf.diagnosis.process_state import ProcessState
from kcover_ebpf.diagnosis.stacks import KnownWaits
from kcover_ebpf.diagnosis.tcp_links import EndpointIndex
from kcover_ebpf.diagnosis.verdict import Cause, Evidence, VerdictKind
from kcover_ebpf.facts.host import CollectivesSeen
from kcover_ebpf.facts.kernel import SignalSent
from kcover_ebpf.facts.recorders import RecordersSeen
from kcover_ebpf.ids import Pid
from kcover_ebpf.settings import Policy


@dataclass(frozen=True, slots=True)
class Finding:
    """What one look at a job says; becomes a verdict when it holds."""

    kind: VerdictKind
    cause: Cause
    since_ns: int
    culprit: Pid | None = None
    tid: int | None = None
    rank: int | None = None
    evidence: tuple[Evidence, ...] = ()
    victims: tuple[Pid, ...] = ()
    device: str | None = None
    """The device at fault, if it is one."""
    host: str | None = None
    """Where the culprit is; None: here."""
    or_rank: int | None = None
    """The other end of a link, where either may be the culprit."""
    factor: float | None = None
    """SLOW only: the culprit's step time over that of its peers; None where it was not measured."""


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """All that a judgement needs of one job at one moment."""

    now_ns: int
    policy: Policy
    ranks: Mapping[Pid, ProcessHistory]
    """Living ranks."""
    standings: Mapping[Pid, ProcessState]
    """Of ranks and of every process they may wait for."""
    ends: EndpointIndex
    lossy: bool
    """A link between ranks loses packets, and others get through."""
    thresholds_s: Mapping[Pid, float]
    known: KnownWaits
    stop_signals: Mapping[Pid, SignalSent] = field(default_factory=dict)
    left: Mapping[Pid, ProcessState] = field(default_factory=dict)
    """Ranks that exited with code 0, or were ended by their own job, and did not come back."""
    whole: bool = True
    """All ranks of the job are in it; False where others see the rest."""
    cadence_known: bool = False
    """The thresholds rest on steps of this job that were seen."""
    starting: bool = False
    """A rank has not come yet and the job never trained: those who came wait, as at every start."""
    collectives: CollectivesSeen | None = None
    """The last word of the job's own NCCL in this suspicion; None while it said nothing."""

    recorders: RecordersSeen | None = None
    """What the ranks' flight recorders hold; None while they were not asked, or none has answered."""

    def silence_s(self, pid: Pid) -> float:
        """Seconds since this process stands where it stands."""
        return (self.now_ns - self.standings[pid].since_ns) / NS


def blame(
    kind: VerdictKind,
    cause: Cause,
    culprit: ProcessState,
    found: Sequence[Evidence],
    ranks: Sequence[ProcessState],
    end: ProcessState | None = None,
) -> Finding:
    """A finding that names a culprit; `end` is the end of its chain, if that is another process."""
    victims = tuple(each.pid for each in ranks if each.pid != culprit.pid)
    tid = (end or culprit).tid
    return Finding(
        kind, cause, culprit.since_ns, culprit.pid, tid, culprit.rank, tuple(found), victims
    )
