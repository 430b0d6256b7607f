"""Jobs inside a job: worlds of one pod, or under one launcher, that cannot wait for each other. Pure.

Each is judged as a separate job, by the same rules. A policy can only end the whole. So a sub-job at fault is named,
and the job is ended for it only if no other sub-job is healthy.
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
from kcover_ebpf.facts.inspector import InspectorSeen
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
    """One sub-job, and its processes."""

    job: Job
    name: str
    """Its size and port, or its parent process, as `together.world_text` writes it."""
    own: set[Pid]
    """Its ranks, their parents that started no other sub-job's, and everything that any of these starts."""
    shared: set[Pid]
    """Processes that started several sub-jobs."""

    def observe(self, fact: Fact) -> None:
        """Take a fact if it concerns this sub-job."""
        pid = getattr(fact, "pid", None)
        if isinstance(fact, ProcessFork):
            # the pid may have been another process's
            self.own.discard(fact.child_pid)
            pid = fact.child_pid
            self._on_birth(pid, fact.pid)
        elif isinstance(fact, ProcessSeen) and pid not in self.shared:
            self._on_birth(fact.pid, fact.ppid)
        # an answer of a library about all ranks together is not about one world
        is_mixed = isinstance(fact, CollectivesSeen | RecordersSeen | InspectorSeen)
        if (pid is None and not is_mixed) or pid in self.own or pid in self.shared:
            self.job.observe(fact)

    def _on_birth(self, pid: Pid, ppid: Pid) -> None:
        if ppid in self.own:
            self.own.add(pid)

    def join(self, processes: Iterable[ProcessHistory]) -> None:
        """Take what is already known of these processes."""
        for process in processes:
            threads = (thread.sample for thread in process.threads.values())
            for fact in (process.seen, *threads, process.totals, *process.sockets.values()):
                if fact is not None:
                    self.job.observe(fact)


class SubJobs:
    """The sub-jobs of one job; none while all of its ranks may wait for each other."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.parts: list[SubJob] = []
        self._ranks: _Views = {}
        """The ranks when worlds were last searched for."""

    def observe(self, fact: Fact) -> None:
        """Pass a fact on to the sub-jobs, before the job itself takes it."""
        for part in self.parts:
            part.observe(fact)

    def divide(self) -> None:
        """Once a pass: find the worlds; those that turn out to be connected are one job.

        The others do not miss a sub-job whose ranks have all ended.
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
        memory = job.pace.memory
        # another trial may have longer steps, so what the job remembers only lengthens the time given to its start
        longest_s = max(memory.start_s, memory.step_s)
        part.remember(JobMemory(memory.silences, memory.waits, start_s=longest_s))
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
        """The sub-jobs that still have living ranks."""
        return [part for part in self.parts if part.job.members.ranks]

    @property
    def are_suspicious(self) -> bool:
        """True while something may be wrong with one of them."""
        return any(part.job.attention.suspicious for part in self.parts)

    @property
    def stall(self) -> Stall:
        """The worst stall of the sub-jobs, of which there must be one."""
        return max((part.job.attention.stall for part in self.parts), key=list(Stall).index)

    def sampling(self) -> dict[Pid, SampleRequest]:
        """Sampling requests for their processes, as `Job.sampling`."""
        return {pid: request for part in self.parts for pid, request in part.job.sampling().items()}

    def wants(self) -> list[ReadingRequest]:
        """Requests for threads to read, as `Job.wants`."""
        return [request for part in self.parts for request in part.job.wants()]

    def finding(self) -> Finding | None:
        """The worst finding of the sub-jobs; None for a moment while one cannot be judged and none is at fault."""
        found = [(part, part.job.finding()) for part in self.living or self.parts]
        judged = [(part, finding) for part, finding in found if finding is not None]
        if not judged:
            return None
        part, worst = max(judged, key=lambda pair: (_weight(pair[1]), -pair[1].since_ns))
        if worst.kind is VerdictKind.WORKING:
            return worst if len(judged) == len(found) else None
        faulty = [faulty_part for faulty_part, finding in judged if finding.kind.is_fault]
        well = [
            healthy.name for healthy, _ in found if healthy is not part and healthy not in faulty
        ]
        ranks = self._job.members.ranks.keys()
        if ranks - set().union(*(sub_job.own for sub_job in self.parts)):
            well.append("which starts")
        lasts_s = (self._job.now_ns - worst.since_ns) / NS
        if well and worst.kind is VerdictKind.CRASHED and lasts_s < self._job.policy.act_floor_s:
            # a trial that fails ends, and no other one misses it
            return Finding(VerdictKind.WORKING, Cause.TRAINING, self._job.now_ns)
        return _of_part(worst, part, well)


def _of_part(finding: Finding, sub_job: SubJob, well: list[str]) -> Finding:
    text = f"it is the sub-job {sub_job.name}, which is connected to no other"
    found = Evidence(EvidenceKind.EDGE, text)
    if well and finding.kind is not VerdictKind.SLOW:
        text += f"; ending it would also end what continues: that {', that '.join(well)}"
        found = Evidence(EvidenceKind.APART, text)
    return replace(finding, evidence=(*finding.evidence, found))


def _weight(finding: Finding) -> int:
    return 3 if finding.kind.is_fault else _WEIGHTS.get(finding.kind, 0)
