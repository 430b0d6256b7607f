"""What another policy would have done about past incidents. Pure.

The controller's own guards are asked again, at the moments at which their answer may change. The verdict is the last
one of each incident. What an incident does not record is assumed in favour of a restart, and listed with the result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import Enum

from kcover_ebpf.api.fault_policy import FaultPolicy
from kcover_ebpf.api.incident import (
    Incident,
    Phase,
    RestartMethod,
    RestartRecord,
    Status,
)
from kcover_ebpf.api.pods import Container, ContainerKind, Pod
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.diagnosis.clock import certainty
from kcover_ebpf.gang.gang_input import GangVerdict
from kcover_ebpf.model.silence_summary import Patience
from kcover_ebpf.model.verdict import Cause, Certainty, Verdict
from kcover_ebpf.recovery.closing import recorded_verdict
from kcover_ebpf.recovery.restart import guards
from kcover_ebpf.recovery.restart.context import GangPod, RestartInput, SuspendSwitch, TopOwner
from kcover_ebpf.recovery.restart.guards import ClusterLimits, RestartRequest
from kcover_ebpf.recovery.restart.machine import RestartContext
from kcover_ebpf.recovery.restart.methods import KindMethod, ReplaceMethod, restarts
from kcover_ebpf.tunables.recovery import SIMULATED_S, SIMULATED_STEP_S, VERDICT_STABLE_S

_MOST_TURNS = 1000
"""Decisions simulated for one incident, at most: each advances time by at least a second."""


@dataclass(frozen=True, slots=True)
class PastIncident:
    """An incident, and the present state of its job."""

    incident: Incident
    armed: bool | None = None
    """Whether the job or its pods are armed today; None if the job is gone."""


class Difference(Enum):
    """Difference that the policy would have made."""

    NONE = "same"
    EARLIER = "earlier"
    LATER = "later"
    ENDED = "would be ended"
    """The job was not ended, and would have been."""
    SPARED = "would not be ended"
    """The job was ended, and would not have been."""


@dataclass(frozen=True, slots=True)
class SimulatedIncident:
    """One incident under both policies; times are unix seconds by the controller's clock."""

    namespace: str
    job: str
    incident: str
    verdict: str
    cause: str
    since_s: float
    """Start of the fault."""
    ended_s: float | None
    """When the job was ended; None if it was not."""
    did: str
    would_end_s: float | None
    """When the other policy would have ended it; None if it would not have been."""
    would: str
    difference: Difference
    assumed: tuple[str, ...] = ()
    """Assumptions about facts that the record does not contain, as sentences."""


def simulated(
    past_incidents: Iterable[PastIncident], policy: FaultPolicy, limits: ClusterLimits
) -> tuple[SimulatedIncident, ...]:
    """The incidents under another policy, oldest first, without those that a person requested.

    Restarts that this policy would have made count against its own budget; actual restarts do not.
    """
    by_job: defaultdict[str, list[PastIncident]] = defaultdict(list)
    for past in past_incidents:
        status = past.incident.status
        if (
            status is not None
            and status.verdict is not None
            and status.cause is not Cause.REQUESTED
        ):
            by_job[past.incident.job.uid].append(past)
    found = [
        simulated_incident
        for ours in by_job.values()
        for simulated_incident in _of_job(ours, policy, limits)
    ]
    return tuple(sorted(found, key=lambda one: (one.since_s, one.namespace, one.incident)))


def _of_job(
    ours: Sequence[PastIncident], policy: FaultPolicy, limits: ClusterLimits
) -> Iterable[SimulatedIncident]:
    made: list[RestartRecord] = []
    for past in sorted(ours, key=lambda past_incident: past_incident.incident.created_s):
        status = past.incident.status
        assert status is not None
        begun = _Replayed(past, status, policy, limits, tuple(made))
        would_end_s, would = begun.play()
        if would_end_s is not None:
            made.append(RestartRecord(RestartMethod.REPLACE, would_end_s))
        ended_s = status.at(Phase.SHUTTING_DOWN)
        verdict = begun.verdict
        yield SimulatedIncident(
            namespace=past.incident.namespace,
            job=past.incident.job.name,
            incident=past.incident.name,
            verdict=verdict.kind.value,
            cause=verdict.cause.value,
            since_s=verdict.since_s,
            ended_s=ended_s,
            did=f"{status.phase.value}: {status.message}",
            would_end_s=would_end_s,
            would=would,
            difference=difference_of(ended_s, would_end_s),
            assumed=begun.assumed,
        )


def difference_of(ended_s: float | None, would_end_s: float | None) -> Difference:
    """Difference of two ends of a job, in seconds on one clock; None for one that is not ended."""
    if ended_s is None or would_end_s is None:
        if ended_s is would_end_s:
            return Difference.NONE
        return Difference.ENDED if ended_s is None else Difference.SPARED
    if abs(would_end_s - ended_s) <= SIMULATED_S:
        return Difference.NONE
    return Difference.EARLIER if would_end_s < ended_s else Difference.LATER


class _Replayed:
    """One incident while it is simulated."""

    def __init__(
        self,
        past: PastIncident,
        status: Status,
        policy: FaultPolicy,
        limits: ClusterLimits,
        made: tuple[RestartRecord, ...],
    ) -> None:
        """`made`: earlier restarts of the job that this policy would have made."""
        self._incident, self._status = past.incident, status
        self._policy, self._limits, self._made = policy, limits, made
        self._armed = _armed(past, status)
        method = restarts().find(past.incident.job.api_version, past.incident.job.kind)
        self._top = _top(past.incident, method)
        self._pods = _pods(past.incident, status)
        self.verdict = self._timed(
            recorded_verdict(status, past.incident.job.name, past.incident.name)
        )
        self.assumed = self._assumptions(past)

    def _timed(self, verdict: Verdict) -> Verdict:
        """The verdict with the moment at which this policy would act on it."""
        sure = verdict.certainty or certainty.certainty_of(
            verdict.kind, verdict.cause, verdict.culprit, verdict.evidence
        )
        if sure is None:
            return verdict
        # the patience that the job's past had earned is known only from the moment that followed from it
        left_s = (verdict.acts_at_s or verdict.since_s) - verdict.since_s
        acts = certainty.acts_at(
            sure,
            verdict.kind,
            verdict.cause,
            self._policy.settings(),
            Patience(left_s, verdict.acts_why),
            {evidence.kind for evidence in verdict.evidence},
        )
        moment_s = acts.time_s(verdict.since_s, None)
        return replace(verdict, certainty=sure, acts_at_s=moment_s, acts_why=acts.why)

    def _assumptions(self, past: PastIncident) -> tuple[str, ...]:
        said = []
        if _armed(past, self._status) is None:
            said.append("whether the job was armed is not on record: taken for armed")
        if not self._status.restarts:
            said.append("whether it could be restarted in place is not on record: taken for yes")
        if self.verdict.certainty is Certainty.INFERRED:
            said.append("the patience is that of the record; a tape shows what other limits give")
        return tuple(said)

    def play(self) -> tuple[float | None, str]:
        """When the job would have been ended (unix seconds, None for never), and the last message."""
        opened_s = self._status.timeline[0].time_s if self._status.timeline else 0.0
        opened_s = opened_s or self._incident.created_s
        until_s = self._until_s(opened_s)
        status = replace(self._status, phase=Phase.OPEN, restarts=(), order=None, action=None)
        status = replace(status, timeline=(), lost=None).enter(Phase.OPEN, opened_s, "")
        now_s = opened_s
        for _ in range(_MOST_TURNS):
            transition = guards.decide(self._request(status, now_s, opened_s))
            if transition.status is not None:
                status = transition.status
                if status.phase is Phase.SHUTTING_DOWN:
                    return now_s, status.message
            next_s = self._next_s(now_s, transition.wake_s)
            if next_s > until_s or status.phase.is_over:
                break
            now_s = next_s
        return None, status.message or "the fault was over before anything was decided"

    def _until_s(self, opened_s: float) -> float:
        """Until when the fault lasted; if its job was ended, until the framework would have given up."""
        if self._status.at(Phase.SHUTTING_DOWN) is None and self._status.phase.is_over:
            return self._status.closed_s or self._status.last_s
        limit_s = self._policy.settings().hard_limit_s or 0.0
        acts_s = self.verdict.acts_at_s or opened_s
        return max(self.verdict.deadline_s or 0.0, acts_s, opened_s + limit_s) + 2 * (
            self._policy.framework_first_seconds + self._policy.restarts.backoff_max_seconds
        )

    def _next_s(self, now_s: float, wake_s: float | None) -> float:
        acts_s = self.verdict.acts_at_s
        step_s = max(wake_s or SIMULATED_STEP_S, SIMULATED_STEP_S)
        return acts_s if acts_s is not None and acts_s > now_s + step_s else now_s + step_s

    def _request(self, status: Status, now_s: float, opened_s: float) -> RestartRequest:
        gang_verdict = GangVerdict(replace(self.verdict, time_s=now_s))
        restart_input = RestartInput(
            now_s=now_s,
            top=self._top,
            pods=self._pods,
            gang_verdict=gang_verdict,
            agents=frozenset(pod.pod.node for pod in self._pods),
        )
        since_s = now_s - self._policy.restarts.window_seconds
        earlier = [record.time_s for record in self._made if record.time_s >= since_s]
        context = RestartContext(
            status=status,
            world=restart_input,
            policy=self._policy,
            name=self._incident.name,
            mark=f"{self._incident.namespace}/{self._incident.name}",
            selector=self._incident.selector,
            earlier=len(earlier),
        )
        return RestartRequest(
            context=context,
            armed=self._armed is not False,
            approved=self._incident.approved,
            limits=self._limits,
            stable_s=max(VERDICT_STABLE_S, now_s - opened_s),
            last_restart_s=max(earlier, default=None),
        )


def _armed(past: PastIncident, status: Status) -> bool | None:
    """Whether the job was armed, by the record, else as the job is today."""
    if status.restarts or status.at(Phase.DECIDED) is not None:
        return True
    if any(guards.NOT_ARMED in (moment.text or "") for moment in status.timeline):
        return False
    return past.armed


def _top(incident: Incident, method: KindMethod | None) -> TopOwner:
    switch = None
    if method is not None and method.method is ReplaceMethod.SUSPEND:
        switch = SuspendSwitch(
            incident.job.api_version, method.plural, incident.job.name, method.suspend, True, ""
        )
    return TopOwner(incident.job, method, switch)


def _pods(incident: Incident, status: Status) -> tuple[GangPod, ...]:
    """A pod on each node of the incident; restarted in place unless the record says that it was not."""
    replaced = bool(status.restarts) and status.restarts[0].way is not RestartMethod.IN_PLACE
    container = Container("main", ContainerKind.MAIN, restarts_pod=not replaced, started_s=0.0)
    nodes = status.nodes or tuple(
        {status.culprit.node} if status.culprit is not None and status.culprit.node else {"node"}
    )
    return tuple(
        GangPod(
            Pod(
                namespace=incident.namespace,
                name=f"{incident.job.name}-{number}",
                uid=str(number),
                node=node,
                phase="Running",
                created_s=0.0,
                deleted_s=None,
                labels=incident.selector,
                annotations={},
                owners=(),
                containers=(container,),
                ready=True,
            )
        )
        for number, node in enumerate(nodes)
    )
