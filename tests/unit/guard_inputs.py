"""What the guards of a restart are asked about."""

from __future__ import annotations

from dataclasses import replace

from kcover_ebpf.api import incident
from kcover_ebpf.api.fault_policy import FaultPolicy
from kcover_ebpf.cluster.gang_judge import merge
from kcover_ebpf.diagnosis.process_state import State
from kcover_ebpf.recovery import context, methods
from kcover_ebpf.recovery.guards import ClusterLimits, RestartRequest, first_status
from kcover_ebpf.recovery.machine import RestartContext
from tests.unit.report_builders import NOW_S, SELECTOR, case, pod, rank, report

SEEN = (
    report("a", rank(0), rank(2)),
    report("b", rank(1, State.STOPPED), rank(3)),
)


def top(**more) -> context.TopOwner:
    row = methods.restarts().find("batch/v1", "Job")
    target = context.SuspendSwitch("batch/v1", "jobs", "j", ("spec", "suspend"), True, "1")
    made = context.TopOwner(incident.JobRef("Job", "j", "uid", "batch/v1"), row, target)
    return replace(made, **more)


def world(seen=SEEN, **more) -> context.RestartInput:
    merged = merge(case(*seen))
    made = context.RestartInput(
        now_s=NOW_S,
        top=top(),
        pods=tuple(context.GangPod(pod(each)) for each in range(4)),
        reports=seen,
        merged=merged,
        agents=frozenset("ab"),
    )
    return replace(made, **more)


def ask(
    at: context.RestartInput, policy: FaultPolicy | None = None, earlier: int = 0, **more
) -> RestartRequest:
    assert at.merged is not None
    status = first_status(at.merged, at.nodes)
    turn = RestartContext(status, at, policy or FaultPolicy(), "inc", "ns/inc", SELECTOR, earlier)
    return replace(
        RestartRequest(turn, armed=True, approved=False, gates=ClusterLimits(), stable_s=1.0),
        **more,
    )


def without_rule() -> tuple[context.GangPod, ...]:
    plain = [
        replace(
            pod(each),
            containers=tuple(replace(c, restarts_pod=False) for c in pod(each).containers),
        )
        for each in range(4)
    ]
    return tuple(context.GangPod(each) for each in plain)
