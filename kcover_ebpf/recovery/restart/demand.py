"""Requests by Event, for a restart or for a recovery: the verdict that they lead to, and until when they are valid.

Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from kcover_ebpf.api.incident import Incident, Phase, RestartMethod
from kcover_ebpf.api.pods import Pod
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.gang.gang_input import GangVerdict
from kcover_ebpf.model.verdict import (
    Cause,
    Certainty,
    Evidence,
    EvidenceKind,
    Verdict,
    VerdictKind,
)
from kcover_ebpf.tunables.controller import TRIGGER_S
from kcover_ebpf.tunables.recovery import CLOCKS_APART_S

ANNOTATION = "kcover.io/restart"
"""Annotation of an Event that asks for a restart: `Any`, or the only method that may be used. `need-recovery` is set
too."""
ANY = "Any"


@dataclass(frozen=True, slots=True)
class RestartDemand:
    """A restart that a person asked for (`kubectl kcover restart`)."""

    at_s: float
    """Time of the request by the API server's clock, which counts whole seconds."""
    text: str = "a restart was requested"
    """One sentence that names the person who asked."""
    method: RestartMethod | None = None
    """The only method that may be used; None: as the policy says."""


_METHODS = {ANY: None, "InPlace": RestartMethod.IN_PLACE, "Replace": RestartMethod.REPLACE}


@dataclass(frozen=True, slots=True)
class Trigger:
    """An Event that asks for a recovery, or for a restart."""

    at_s: float
    """Unix seconds at which it was written."""
    gang_verdict: GangVerdict
    pod_uid: str
    """Uid of the pod that it is about."""
    demand: RestartDemand | None = None
    """The restart that a person asks for; None if a program reports a fault."""

    def is_over(self, now_s: float, incidents: Iterable[Incident]) -> bool:
        """True once it is too old, or the restart that it asks for has begun. `incidents`: those of the gang.

        The age of one from the future is not known: the clock was set back since.
        """
        if not -CLOCKS_APART_S <= now_s - self.at_s < TRIGGER_S:
            return True
        return self.demand is not None and is_spent(self.demand, incidents)

    def is_about(self, run: Collection[Pod], others: Collection[str]) -> bool:
        """True if it is about this run of the job; False for an earlier run, and for another job with the same labels.

        `run`: the pods of the run; `others`: uids of pods that have its labels and are not part of it. If the pod of
        the Event is gone: a program meant that pod, without which the job continues once a newer one was created. A
        person meant the job, which was started again once all of its pods are newer.
        """
        if self.pod_uid in others:
            return False
        if any(pod.uid == self.pod_uid for pod in run):
            return True
        times = [pod.created_s for pod in run]
        begun_s = (max if self.demand is None else min)(times, default=0.0)
        return begun_s + CLOCKS_APART_S <= self.at_s


def is_method(word: str) -> bool:
    """True for a valid value of the annotation."""
    return word in _METHODS


def method_of(word: str) -> RestartMethod | None:
    """The method in the annotation (`is_method`); None for any method."""
    return _METHODS[word]


def demanded(gang_verdict: GangVerdict, demand: RestartDemand) -> GangVerdict:
    """The verdict on a job whose restart was requested: a present fault is acted on without further waiting."""
    verdict = gang_verdict.verdict
    if not verdict.kind.is_fault:
        kind, cause = VerdictKind.UNKNOWN, Cause.REQUESTED
        now_s = max(verdict.time_s, demand.at_s)
        verdict = Verdict(kind, cause, now_s, job=verdict.job, evidence=verdict.evidence)
    requested = replace(
        verdict,
        since_s=demand.at_s,
        certainty=Certainty.ANNOUNCED,
        acts_at_s=demand.at_s,
        acts_why="a person requested it",
        evidence=(Evidence(EvidenceKind.EVENT, demand.text), *verdict.evidence),
    )
    return GangVerdict(requested)


def is_spent(demand: RestartDemand, incidents: Iterable[Incident]) -> bool:
    """True once the job is being restarted for any reason, or was restarted since the request."""
    for incident in incidents:
        status = incident.status
        if status is None:
            continue
        ended = status.phase in (Phase.RECOVERED, Phase.FAILED)
        if status.phase.is_acting or (ended and status.last_s >= demand.at_s):
            return True
    return False
