"""What is known about one gang at one moment, and the verdict on it. No judgement."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

from kcover_ebpf.api.fault_report import FaultReport
from kcover_ebpf.api.job_kinds import must_train
from kcover_ebpf.api.job_rules import JobRule
from kcover_ebpf.api.pods import Pod
from kcover_ebpf.dataclass import dataclass, replace
from kcover_ebpf.diagnosis.clock.silences import joined
from kcover_ebpf.gang.gang_snapshot import GangSnapshot, ReceivedReport, gather
from kcover_ebpf.model.silence_summary import SilenceSummary
from kcover_ebpf.model.verdict import Culprit, Evidence, Verdict
from kcover_ebpf.settings import Policy
from kcover_ebpf.tunables.recovery import AGENT_SILENT_S, SNAPSHOT_FRESH_S


@dataclass(frozen=True, slots=True)
class NodeState:
    """State of a node according to the API server."""

    name: str
    ready: bool = True


@dataclass(frozen=True, slots=True)
class GangVerdict:
    """The verdict of all nodes together on one job."""

    verdict: Verdict
    depends: bool = False
    """The verdict might change with the report of a silent node: no action may follow it."""
    awaits: str | None = None
    """A node that has not reported since the job may be ended: its last report may be outdated. None if all have."""
    silences: SilenceSummary = SilenceSummary()
    """The job's silences as all nodes together know them; empty if none reported any."""

    def silences_with(self, kept_silences: SilenceSummary | None) -> SilenceSummary:
        """The job's silences together with those kept before: reports of nodes that the job has left are deleted."""
        return self.silences if kept_silences is None else joined((kept_silences, self.silences))

    @property
    def unsaid(self) -> str | None:
        """What must still be known before a job may be ended; None if nothing is missing."""
        if self.depends:
            return next(iter(self.verdict.unobserved), "a node that is silent")
        return None if self.awaits is None else f"whether it is still so on {self.awaits}"

    @property
    def culprit(self) -> Culprit | None:
        return self.verdict.culprit

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        return self.verdict.evidence


@dataclass(frozen=True)
class GangInput:
    """All that is known about one gang. Derived values are computed once, on first use."""

    name: str
    seen: Sequence[ReceivedReport]
    pods: Sequence[Pod]
    nodes: Mapping[str, NodeState]
    policy: Policy
    now_s: float
    strays: frozenset[str] = frozenset()
    """Uids of pods that have the labels of the gang and do not belong to the job; they are not among `pods`."""
    unwatched: bool = False
    """The reports come from one run of `trace` over all nodes, which observed the job for seconds; no agent watched
    it."""
    job_rules: tuple[JobRule, ...] = ()
    """The rules of its policy for the job's logs."""

    @cached_property
    def fresh(self) -> tuple[ReceivedReport, ...]:
        """Reports that are not stale, reduced to what they say about pods on their own node."""
        nodes = {pod.uid: pod.node for pod in self.pods}
        named = {pod.name: pod.node for pod in self.pods}
        found = []
        for received in self.seen:
            node = received.report.node
            if received.is_stale(self.now_s) or not any(
                nodes.get(pod.uid) == node for pod in received.report.pods
            ):
                continue
            report = _without_strays(received.report, self.strays)
            found.append(replace(received, report=_credible(report, nodes, named)))
        return tuple(found)

    @cached_property
    def with_snapshots(self) -> tuple[ReceivedReport, ...]:
        """Fresh reports whose snapshot describes the present.

        A node that cannot decide whether its ranks make progress sends a snapshot with every heartbeat, and reports
        immediately once it can: until then that snapshot stays valid.
        """
        return tuple(
            received
            for received in self.fresh
            if received.report.ranks
            and received.age_s(self.now_s)
            <= (_fresh_s(received) if received.report.is_urgent else silent_s(received))
        )

    @cached_property
    def calm(self) -> dict[str, bool]:
        """Silent nodes whose agent is alive and reports no stall, each with whether its ranks were seen training."""
        return {received.report.node: received.report.trained for received in self._unsuspicious}

    @cached_property
    def _unsuspicious(self) -> tuple[ReceivedReport, ...]:
        silent = set(self.silent)
        return tuple(
            received
            for received in self.fresh
            if received.age_s(self.now_s) <= silent_s(received)
            and not received.report.suspicious
            and received.report.node in silent
        )

    @property
    def _unstopped_age_s(self) -> float:
        """Seconds since such a node last reported that all is well; infinite if none did.

        A stopped or frozen rank is a state that its node reports at the next pass. So a node that reports nothing of
        the kind has no such rank, long before its ranks have been silent for longer than ever.
        """
        return min(
            (received.age_s(self.now_s) for received in self._unsuspicious), default=math.inf
        )

    @property
    def resumed_age_s(self) -> float:
        """Seconds since a stopped or frozen rank of the job was resumed, on any node; infinite if none was."""
        return min(
            (
                received.report.resumed_age_s + received.since_made_s(self.now_s)
                for received in self.fresh
                if received.report.resumed_age_s is not None
            ),
            default=math.inf,
        )

    def gathered(self) -> GangSnapshot:
        """One snapshot of all ranks that the reports contain.

        It is not `whole` while an agent that is alive has not reported the present state of its ranks: all others may
        be waiting for those. An agent that is gone does not count, because its ranks have long been unobserved.
        """
        reporting = {
            received.report.node for received in self.fresh if is_heard(received, self.now_s)
        }
        gathered = gather(
            self.with_snapshots,
            self.now_s,
            self.policy,
            whole=reporting.isdisjoint(self.silent),
            resumed_age_s=self.resumed_age_s,
            pods=self.pods,
        )
        job = replace(gathered.job, unstopped_age_s=self._unstopped_age_s)
        return replace(gathered, job=job)

    def awaited(self, verdict: Verdict) -> str | None:
        """The node whose report is still needed before a job is ended: the culprit's, or any with snapshots.

        None if none is.

        Ages grow between two reports of a node, but only the node knows whether a rank is still stopped or still waits.
        An agent that is gone is not waited for.
        """
        acts_s = verdict.acts_at_s
        if acts_s is None or acts_s > self.now_s:
            return None
        culprit_node = None if verdict.culprit is None else verdict.culprit.node
        for received in self.fresh:
            node = received.report.node
            concerned = node == culprit_node if culprit_node else bool(received.report.ranks)
            if concerned and received.spoke_s < acts_s and is_heard(received, self.now_s):
                return node
        return None

    def unheard_s(self, node: str) -> float | None:
        """Seconds since the agent of a node was last heard; None if no report of it is known."""
        return min(
            (
                received.unheard_s(self.now_s)
                for received in self.seen
                if received.report.node == node
            ),
            default=None,
        )

    @cached_property
    def silent(self) -> tuple[str, ...]:
        """Names of nodes with ranks in running pods of which no current snapshot is known; sorted."""
        reported = {received.report.node for received in self.with_snapshots}
        running = {pod.node for pod in self.pods if pod.node and not pod.ended and must_train(pod)}
        return tuple(sorted(running - reported))


def _fresh_s(received: ReceivedReport) -> float:
    # a Lease that was renewed before the ranks stalled counts for longer than this report may
    return (
        SNAPSHOT_FRESH_S
        if received.confirmed_s is None or received.valid_s is None
        else received.valid_s
    )


def silent_s(received: ReceivedReport) -> float:
    """Seconds of silence after which the agent that sent this is taken to be gone."""
    return max(AGENT_SILENT_S, received.valid_s or 0.0)


def is_heard(received: ReceivedReport, now_s: float) -> bool:
    """True while the agent that sent this is taken to be alive."""
    return received.unheard_s(now_s) <= silent_s(received)


def _without_strays(report: FaultReport, strays: frozenset[str]) -> FaultReport:
    """The report without a verdict on a stray pod: an agent takes every pod with the gang's labels for a part of it.

    A debug copy of a pod looks like a rank that hangs. A pod that was deleted from the API is not a stray: some job
    controllers delete the pod of a rank that failed.
    """
    culprit = report.verdict.culprit if report.verdict is not None else None
    if culprit is None or culprit.pod_uid not in strays:
        return report
    return replace(report, verdict=None)


def _credible(
    report: FaultReport, nodes: Mapping[str, str | None], named: Mapping[str, str | None]
) -> FaultReport:
    """The report reduced to its own node. `nodes`, `named`: uid, and name, of each pod to its node.

    The API server authenticates the node that reports, and nothing inside the report. A compromised agent must not be
    able to end jobs that have no pod on its node.
    """
    node = report.node
    ranks = tuple(rank for rank in report.ranks if nodes.get(rank.pod_uid) == node)
    if len(ranks) == len(report.ranks):
        ranks = report.ranks
    verdict = report.verdict
    culprit = verdict.culprit if verdict is not None else None
    if culprit is not None:
        claimed = (
            culprit.node,
            nodes.get(culprit.pod_uid or ""),
            named.get(culprit.pod or ""),
        )
        if any(text not in (None, node) for text in claimed):
            verdict = None
    if ranks is report.ranks and verdict is report.verdict:
        return report
    return replace(report, ranks=ranks, verdict=verdict)
