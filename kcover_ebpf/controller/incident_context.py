"""One incident among the others of its job, as the rules of recovery see it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from kcover_ebpf.api.fault_policy import FaultPolicy
from kcover_ebpf.api.incident import Incident, Phase, Status
from kcover_ebpf.recovery.restart import guards
from kcover_ebpf.recovery.restart.context import RestartInput
from kcover_ebpf.recovery.restart.machine import RestartContext


def context_of(
    live_incident: Incident,
    known: Sequence[Incident],
    policy: FaultPolicy,
    restart_input: RestartInput,
) -> RestartContext:
    """Input for deciding the next step of an incident; `known`: all incidents of the gang."""
    since_s = restart_input.now_s - policy.restarts.window_seconds
    others = others_of(live_incident, known)
    restarts = [restart for status in others for restart in status.restarts]
    crashes = [crash for status in others for crash in status.crashes if crash.time_s >= since_s]
    return RestartContext(
        status=live_incident.status or _first_status(live_incident, restart_input),
        world=restart_input,
        policy=policy,
        name=live_incident.name,
        mark=f"{live_incident.namespace}/{live_incident.name}",
        selector=live_incident.selector,
        earlier=sum(restart.time_s >= since_s for restart in restarts),
        crashes=tuple(sorted(crashes, key=lambda record: record.time_s)),
    )


def _first_status(live_incident: Incident, restart_input: RestartInput) -> Status:
    gang_verdict = restart_input.gang_verdict
    if gang_verdict is None or not gang_verdict.verdict.opens_incident:
        # the controller that created it died before it wrote a reason, and the fault is over
        return Status(Phase.OPEN).enter(Phase.OPEN, live_incident.created_s, "seen")
    owner = restart_input.top.owner if restart_input.top is not None else None
    return guards.first_status(gang_verdict, restart_input.nodes, owner)


def others_of(live_incident: Incident, known: Sequence[Incident]) -> list[Status]:
    """Summary of the other incidents of the same job."""
    ours = (
        incident
        for incident in known
        if incident.name != live_incident.name and incident.job.uid == live_incident.job.uid
    )
    return [incident.status for incident in ours if incident.status is not None]
