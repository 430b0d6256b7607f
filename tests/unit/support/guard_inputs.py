"""What the guards of a restart are asked about."""

from __future__ import annotations

from dataclasses import replace

from kcover_ebpf.api import incident
from kcover_ebpf.api.fault_policy import FaultPolicy
from kcover_ebpf.gang.gang_judge import merge
from kcover_ebpf.model.process_state import State
from kcover_ebpf.recovery.restart import context, methods
from kcover_ebpf.recovery.restart.guards import ClusterLimits, RestartRequest, first_status
from kcover_ebpf.recovery.restart.machine import RestartContext
from tests.unit.support.report_builders import NOW_S, SELECTOR, case, pod, rank, report

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
        pods=tuple(context.GangPod(pod(number)) for number in range(4)),
        reports=seen,
        gang_verdict=merged,
        agents=frozenset("ab"),
    )
    return replace(made, **more)


def ask(
    restart_input: context.RestartInput, policy: FaultPolicy | None = None, earlier: int = 0, **more
) -> RestartRequest:
    assert restart_input.gang_verdict is not None
    status = first_status(restart_input.gang_verdict, restart_input.nodes)
    turn = RestartContext(
        status, restart_input, policy or FaultPolicy(), "inc", "ns/inc", SELECTOR, earlier
    )
    return replace(
        RestartRequest(turn, armed=True, approved=False, limits=ClusterLimits(), stable_s=1.0),
        **more,
    )


def without_rule() -> tuple[context.GangPod, ...]:
    plain = [
        replace(
            pod(number),
            containers=tuple(replace(c, restarts_pod=False) for c in pod(number).containers),
        )
        for number in range(4)
    ]
    return tuple(context.GangPod(other_pod) for other_pod in plain)
