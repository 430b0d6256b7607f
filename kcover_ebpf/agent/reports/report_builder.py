"""Builds the reports of every gang and of the node after each pass of the loop; the sender sends them."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from kcover_ebpf import __version__
from kcover_ebpf.agent.node_loop import GangWatch
from kcover_ebpf.agent.pod_registry import report_name
from kcover_ebpf.agent.preflight import PreflightWatch
from kcover_ebpf.agent.reports.report_cache import CachedReport, ReportCache, inherited
from kcover_ebpf.agent.reports.report_sender import Draft, ReportSender
from kcover_ebpf.api.fault_report import (
    FaultReport,
    OverPod,
    PodRef,
    ReportedDeviceFault,
    ReportedJob,
)
from kcover_ebpf.api.job_kinds import Gang
from kcover_ebpf.api.log_report import ContainerLog
from kcover_ebpf.api.node_health import NodeHealth
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.diagnosis.clock.progress import Stall
from kcover_ebpf.diagnosis.failures import startup
from kcover_ebpf.diagnosis.job import Job
from kcover_ebpf.gang.rank_report import paces_of, verdict_of, with_snapshots
from kcover_ebpf.host import procfs
from kcover_ebpf.ids import NS
from kcover_ebpf.model.collective_counts import CollectiveCounts
from kcover_ebpf.model.verdict import Verdict, VerdictKind
from kcover_ebpf.tunables.agent import EVIDENCE_PASS_S, EXPLAINED_S, NODE_REPORT_EXPIRES_S
from kcover_ebpf.tunables.diagnosis import COUNTS_MOVE_S


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of the reporter: its node, and the namespace of the agent."""

    node: str
    namespace: str


class ReportBuilder:
    """Used by the loop's thread; `last` and `gang_of_report` may be called by others."""

    def __init__(
        self,
        identity: Identity,
        sender: ReportSender,
        cache: ReportCache,
        is_synced: Callable[[], bool],
        *,
        believes_bandwidth: bool = False,
    ) -> None:
        """`is_synced`: the pods of this node are known, so a report without pods is of a gang that is gone.

        `believes_bandwidth`: what a job's own bandwidth check reports about its node is believed.
        """
        self._identity, self.reporter, self._spool = identity, sender, cache
        self._is_synced = is_synced
        self._left: dict[tuple[str, str], CachedReport] = {
            report.key: report for report in cache.load()
        }
        self._owed = False
        self._saved: dict[tuple[str, str], object] = {}
        self._gangs: dict[tuple[str, str], Gang] = {}
        self.devices: Mapping[str, tuple[str, ...]] = {}
        """Uid of a pod -> PCI addresses of its devices."""
        self.over: tuple[OverPod, ...] = ()
        """Pods of the node that exceeded a bound."""
        self.logs: Callable[[Iterable[str], float], tuple[ContainerLog, ...]] = lambda *_: ()
        """Called with uids of pods and a time (unix seconds): findings in their logs, with ages before that time."""
        self.reports_logs = False
        """True if the newest reports contain findings in logs."""
        self.health: Callable[[], NodeHealth | None] = lambda: None
        """Health of this node after its last inspection; None before the first."""
        self._preflight = PreflightWatch(identity.node, believes_bandwidth=believes_bandwidth)
        self._fault_s: dict[Gang, float] = {}
        self.last: dict[Gang, FaultReport] = {}
        """Gang -> its newest report."""
        self._faults: tuple[ReportedDeviceFault, ...] = ()
        self._asked = threading.Condition()
        self._wanted: set[Gang] = set()
        """Gangs of which evidence is requested."""
        self._completed: dict[Gang, FaultReport] = {}

    def evidence_of(self, gang: Gang) -> FaultReport | None:
        """The newest report of a gang, with the faults of the node's devices, which the node reports separately.

        Contains snapshots of its ranks even if no rank here has stalled: they are made at the next pass, for which
        this waits at most `EVIDENCE_PASS_S`. May be called from any thread except that of `make`.
        """
        report = self.last.get(gang)
        if report is not None and not report.ranks:
            with self._asked:
                self._wanted.add(gang)
                self._asked.wait_for(lambda: gang not in self._wanted, EVIDENCE_PASS_S)
                report = self._completed.pop(gang, report)
        return report and replace(report, devices=self._faults)

    def _answer(self, watched: Iterable[GangWatch]) -> None:
        with self._asked:
            for watch in watched:
                gang = watch.here.gang
                report = self.last.get(gang)
                if gang in self._wanted and report is not None:
                    self._completed[gang] = with_snapshots(report, watch.watch.job, watch.pods)
            self._wanted.clear()
            self._asked.notify_all()

    def gang_of_report(self, namespace: str, name: str) -> Gang | None:
        """The gang of a report with this name; None for the node's own report."""
        return self._gangs.get((namespace, name))

    def make(self, watched: Iterable[GangWatch], faults: tuple[ReportedDeviceFault, ...]) -> None:
        """Build all reports."""
        now_s = time.time()
        watched = list(watched)
        self.reports_logs = any(watch.stopped_by_us for watch in watched)
        drafts = {watch.here.gang: self._draft(watch, now_s) for watch in watched}
        self._preflight.keep(pod.uid for watch in watched for pod in watch.here.pods)
        self._faults = faults
        self._gangs = {draft.key: gang for gang, draft in drafts.items()}
        self.last = {gang: draft.report for gang, draft in drafts.items()}
        self._answer(watched)
        self._fault_s = {gang: at_s for gang, at_s in self._fault_s.items() if gang in drafts}
        node = self._node_draft(now_s, faults)
        for draft in (node, *drafts.values()):
            self.reporter.put(draft)
        for draft in drafts.values():
            self._save(draft)
        if self._is_synced():
            self._settle({node.key, *self._gangs})

    def _settle(self, keys: set[tuple[str, str]]) -> None:
        self.reporter.keep(keys)
        if not self._owed:
            self._owed = True
            for key in self._left.keys() - keys:
                self.reporter.owe(key)
                self._spool.forget(*key)
        for key in self._saved.keys() - keys:
            del self._saved[key]
            self._spool.forget(*key)

    def _save(self, draft: Draft) -> None:
        if self._saved.get(draft.key) != draft.news:
            self._saved[draft.key] = draft.news
            self._spool.save(draft.namespace, draft.name, draft.report)

    def _draft(self, watch: GangWatch, now_s: float) -> Draft:
        gang, pods = watch.here.gang, watch.here.pods
        refs = tuple(PodRef(pod.name, pod.uid, self.devices.get(pod.uid, ())) for pod in pods)
        name = report_name(gang, self._identity.node)
        before = self.last.get(gang)
        # a gang that we stopped is unchanged
        report = before if watch.stopped_by_us else None
        report = report or self._report(watch, now_s, refs, (gang.namespace, name))
        job = watch.watch.job
        paces = () if watch.stopped_by_us else paces_of(job, watch.pods, procfs.unix_offset_s())
        compares = bool(paces) and job.pace.compares(job.now_ns)
        return Draft(gang.namespace, name, report, refs, paces, compares)

    def _report(
        self, watch: GangWatch, now_s: float, refs: tuple[PodRef, ...], key: tuple[str, str]
    ) -> FaultReport:
        job, gang = watch.watch.job, watch.here.gang
        names = {pod.uid: pod.name for pod in refs}
        reported = watch.watch.tracker.latest or watch.watch.tracker.current
        verdict = None
        if reported is not None:
            verdict = verdict_of(reported, self._identity.node, now_s, watch.pods, names)
        verdict = self._remembered(key, verdict, frozenset(names), now_s)
        verdict = self._preflight.verdict(watch.here.pods, self.health(), now_s) or verdict
        stall = job.attention.stall
        is_fault = verdict is not None and verdict.kind.is_fault
        if is_fault or stall is not Stall.NONE:
            self._fault_s[gang] = now_s
        explained = now_s - self._fault_s.get(gang, -math.inf) < EXPLAINED_S
        # rules of a policy for a log are reported whether or not there is a fault
        reports_logs = explained or bool(watch.here.job_rules)
        self.reports_logs |= reports_logs
        report = FaultReport(
            node=self._identity.node,
            time_s=now_s,
            sequence=0,
            agent=__version__,
            job=ReportedJob(gang.name, gang.id.labels, gang.kind),
            pods=refs,
            suspicious=stall is Stall.CERTAIN,
            trained=job.pace.trained,
            start_wait=startup.start_wait(job.members, job.pace, job.now_ns),
            resumed_age_s=job.resumptions.age_s(job.now_ns),
            verdict=verdict,
            logs=self.logs(names, now_s) if reports_logs else (),
        )
        if stall is Stall.NONE and not is_fault:
            return replace(report, collectives=_movement(job))
        # if it is unknown whether the ranks continue, other nodes may need their snapshots
        return with_snapshots(report, job, watch.pods)

    def _remembered(
        self,
        key: tuple[str, str],
        verdict: Verdict | None,
        pods: frozenset[str],
        now_s: float,
    ) -> Verdict | None:
        left = self._left.get(key)
        if left is None or (verdict is not None and verdict.kind is not VerdictKind.WORKING):
            return verdict
        old = inherited(left.report, pods, now_s)
        if old is None:
            del self._left[key]
        return old or verdict

    def _node_draft(self, now_s: float, faults: tuple[ReportedDeviceFault, ...]) -> Draft:
        report = FaultReport(
            node=self._identity.node,
            time_s=now_s,
            sequence=0,
            agent=__version__,
            expires_after_s=NODE_REPORT_EXPIRES_S,
            devices=faults,
            over=self.over,
        )
        return Draft(self._identity.namespace, self._identity.node, report, ())


def _movement(job: Job) -> CollectiveCounts | None:
    """That collective counters moved lately, for the nodes that did not ask NCCL; None if they did not.

    Without it, the ranks of those nodes may seem to make no progress.
    """
    moved_ns = job.attention.counts_moved_ns
    age_s = round((job.now_ns - moved_ns) / NS, 3)
    return CollectiveCounts(age_s, moving=True) if moved_ns and age_s < COUNTS_MOVE_S else None
