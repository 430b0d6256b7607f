"""Jobs inside of a job: worlds of one pod, or under one launcher, that cannot wait for each other. Pure.

Each is judged as a separate job, by the same rules. What a policy may end is the whole, so a sub-job that is at fault
is named, and ends the others only where none of them is well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.diagnosis.clock.job_memory import JobMemory
from kcover_ebpf.diagnosis.clock.progress import Stall
from kcover_ebpf.diagnosis.evidence.snapshot import Finding
from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.diagnosis.membership.started_ranks import ancestors
from kcover_ebpf.diagnosis.membership.together import are_connected, world_text, worlds
from kcover_ebpf.facts.host import CollectivesSeen, ProcessSeen, ReadingRequest
from kcover_ebpf.facts.kernel import Fact, ProcessFork, SampleRequest
from kcover_ebpf.facts.recorders import RecordersSeen
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.model.verdict import Cause, Evidence, EvidenceKind, VerdictKind

if TYPE_CHECKING:
    from kcover_ebpf.diagnosis.job import Job

_Views = Mapping[Pid, ProcessHistory]
_WEIGHTS = {VerdictKind.SLOW: 2, VerdictKind.UNKNOWN: 1}


@dataclass(slots=True)
class SubJob:
    """One of them, and which processes are its own."""

    job: Job
    name: str
    """For people."""
    own: set[Pid]
    """Its ranks, what started them alone, and what any of these starts."""
    shared: set[Pid]
    """What started others as well."""

    def observe(self, fact: Fact) -> None:
        """Take what concerns it."""
        pid = getattr(fact, "pid", None)
        if isinstance(fact, ProcessFork):
            # the number may have been another process's
            self.own.discard(fact.child_pid)
            pid = fact.child_pid
            self._on_birth(pid, fact.pid)
        elif isinstance(fact, ProcessSeen) and pid not in self.shared:
            self._on_birth(fact.pid, fact.ppid)
        # what a library says of all ranks together is not of one world
        is_mixed = isinstance(fact, CollectivesSeen | RecordersSeen)
        if (pid is None and not is_mixed) or pid in self.own or pid in self.shared:
            self.job.observe(fact)

    def _on_birth(self, pid: Pid, ppid: Pid) -> None:
        if ppid in self.own:
            self.own.add(pid)

    def join(self, processes: Iterable[ProcessHistory]) -> None:
        """Take what is known of these processes already."""
        for process in processes:
            threads = (thread.sample for thread in process.threads.values())
            for fact in (process.seen, *threads, process.totals, *process.sockets.values()):
                if fact is not None:
                    self.job.observe(fact)


class SubJobs:
    """Those of one job; none while all of its ranks may wait for each other."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.parts: list[SubJob] = []
        self._ranks: _Views = {}
        """Of which worlds were looked for last."""

    def observe(self, fact: Fact) -> None:
        """Before the job itself takes it."""
        for part in self.parts:
            part.observe(fact)

    def divide(self) -> None:
        """Once a pass: see which worlds there are; those that turn out to be connected are one job.

        One whose ranks have all ended is missed by none of the others.
        """
        ranks = self._job.members.ranks
        self.parts = self.living or self.parts
        of_part = [
            [process for pid, process in ranks.items() if pid in part.own] for part in self.parts
        ]
        if are_connected(of_part):
            self.parts.clear()
            return
        if ranks is self._ranks:
            return
        self._ranks, known = ranks, set().union(*(part.own for part in self.parts))
        for world in worlds(ranks):
            if not known & world.keys():
                self._begin(world, ranks)

    def _begin(self, world: _Views, ranks: _Views) -> None:
        job = self._job
        views = job.members.views
        seen = {pid: process.seen for pid, process in views.items() if process.seen is not None}
        above, others = ancestors(world, seen), ancestors(ranks.keys() - world.keys(), seen)
        part = type(job)(job.policy, job.table, whole=True)
        part.remember(JobMemory(job.silences, job.attention.known))
        sub_job = SubJob(part, world_text(world), {*world, *(above - others)}, above & others)
        living = [process for process in views.values() if process.exit is None]
        # parents before their children
        for process in sorted(living, key=lambda process: process.first_seen_ns):
            if process.ppid in sub_job.own and process.pid not in ranks:
                sub_job.own.add(process.pid)
        sub_job.join(process for process in living if process.pid in sub_job.own | sub_job.shared)
        self.parts.append(sub_job)

    @property
    def living(self) -> list[SubJob]:
        """Those with ranks that live."""
        return [part for part in self.parts if part.job.members.ranks]

    @property
    def are_suspicious(self) -> bool:
        """True while something may be wrong with one of them."""
        return any(part.job.attention.suspicious for part in self.parts)

    @property
    def stall(self) -> Stall:
        """Whether one of them has stalled; there has to be one."""
        return max((part.job.attention.stall for part in self.parts), key=list(Stall).index)

    def sampling(self) -> dict[Pid, SampleRequest]:
        """As `Job.sampling`, of their processes."""
        return {pid: one for part in self.parts for pid, one in part.job.sampling().items()}

    def wants(self) -> list[ReadingRequest]:
        """As `Job.wants`."""
        return [request for part in self.parts for request in part.job.wants()]

    def finding(self) -> Finding | None:
        """That of the one which is worst; None for a moment while one cannot be judged and none is at fault."""
        found = [(part, part.job.finding()) for part in self.living or self.parts]
        judged = [(part, finding) for part, finding in found if finding is not None]
        if not judged:
            return None
        part, worst = max(judged, key=lambda pair: (_weight(pair[1]), -pair[1].since_ns))
        if worst.kind is VerdictKind.WORKING:
            return worst if len(judged) == len(found) else None
        faulty = [other for other, finding in judged if finding.kind.is_fault]
        well = [other.name for other, _ in found if other is not part and other not in faulty]
        ranks = self._job.members.ranks.keys()
        if ranks - set().union(*(other.own for other in self.parts)):
            well.append("which starts")
        lasts_s = (self._job.now_ns - worst.since_ns) / NS
        if well and worst.kind is VerdictKind.CRASHED and lasts_s < self._job.policy.act_floor_s:
            # a trial that fails ends, and is missed by none
            return Finding(VerdictKind.WORKING, Cause.TRAINING, self._job.now_ns)
        return _of_part(worst, part, well)


def _of_part(finding: Finding, sub_job: SubJob, well: list[str]) -> Finding:
    text = f"it is the sub-job {sub_job.name}, which is connected to no other"
    found = Evidence(EvidenceKind.EDGE, text)
    if well and finding.kind is not VerdictKind.SLOW:
        text += f"; to end it would end as well what continues: that {', that '.join(well)}"
        found = Evidence(EvidenceKind.APART, text)
    return replace(finding, evidence=(*finding.evidence, found))


def _weight(finding: Finding) -> int:
    return 3 if finding.kind.is_fault else _WEIGHTS.get(finding.kind, 0)
