"""What is known about one gang at one moment, and what is said about it. No judgement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kcover_ebpf.cluster.gather import Seen
from kcover_ebpf.cluster.kinds import must_train
from kcover_ebpf.cluster.pods import Pod
from kcover_ebpf.cluster.report import ReportedCulprit, ReportedEvidence
from kcover_ebpf.incidents.verdict import EvidenceKind, Verdict
from kcover_ebpf.settings import Policy

FRESH_S = 10.0
"""A picture that was not renewed for so long says nothing about now: suspicious nodes report every second."""


@dataclass(frozen=True, slots=True)
class NodeState:
    """What the API server says about a node."""

    name: str
    ready: bool = True
    cordoned: bool = False


@dataclass(frozen=True, slots=True)
class Merged:
    """What all nodes together say about one job."""

    verdict: Verdict
    culprit: ReportedCulprit | None = None
    evidence: tuple[ReportedEvidence, ...] = ()
    depends: bool = False
    """It might change with what a silent node would say: not to be acted on."""

    @property
    def is_announced(self) -> bool:
        """A kernel or the control plane said it, so it need not hold for a while."""
        return any(each.kind is EvidenceKind.EVENT for each in self.evidence)


@dataclass(frozen=True, slots=True)
class Case:
    """All that is known about one gang."""

    name: str
    seen: Sequence[Seen]
    pods: Sequence[Pod]
    nodes: Mapping[str, NodeState]
    policy: Policy
    now_s: float

    @property
    def fresh(self) -> list[Seen]:
        """Reports that still say something: not stale, and about pods that are still there."""
        uids = {pod.uid for pod in self.pods}
        return [
            each
            for each in self.seen
            if not each.is_stale(self.now_s) and any(pod.uid in uids for pod in each.report.pods)
        ]

    @property
    def pictured(self) -> list[Seen]:
        """Fresh reports with a picture of now."""
        return [
            each for each in self.fresh if each.report.ranks and each.age_s(self.now_s) <= FRESH_S
        ]

    @property
    def silent(self) -> list[str]:
        """Nodes with ranks in running pods of which no current picture is known; sorted."""
        told = {each.report.node for each in self.pictured}
        running = {pod.node for pod in self.pods if pod.node and not pod.ended and must_train(pod)}
        return sorted(running - told)
