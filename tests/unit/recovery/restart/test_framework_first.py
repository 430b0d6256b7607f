"""A crash that a launcher mends by itself is left to it, for as long as the policy says and the launcher is there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kcover_ebpf.api.fault_policy import FaultPolicy, FrameworkFirst
from kcover_ebpf.api.incident import Phase
from kcover_ebpf.gang.gang_input import GangVerdict
from kcover_ebpf.model.verdict import (
    Cause,
    Certainty,
    Culprit,
    Evidence,
    EvidenceKind,
    Verdict,
    VerdictKind,
)
from kcover_ebpf.recovery.restart import context, guards
from kcover_ebpf.recovery.restart.job_object import operator_of
from tests.unit.support.guard_inputs import ask, top, world
from tests.unit.support.report_builders import NOW_S, pod

TORCHRUN = Evidence(EvidenceKind.SINK, "torchrun (7) starts failed ranks again, 2 more time(s)")
CULPRIT = Culprit(rank=1, pod=pod(1).name, pod_uid=pod(1).uid, node="b")
DIED = Evidence(EvidenceKind.EVENT, "rank 1 was killed by SIGKILL")


def crash(age_s: float, *evidence: Evidence) -> GangVerdict:
    verdict = Verdict(
        kind=VerdictKind.CRASHED,
        cause=Cause.KILLED,
        time_s=NOW_S,
        since_s=NOW_S - age_s,
        culprit=CULPRIT,
        evidence=(DIED, *evidence),
        certainty=Certainty.ANNOUNCED,
        acts_at_s=NOW_S - 1,
    )
    return GangVerdict(verdict)


def started(at_s: float | None) -> tuple[context.GangPod, ...]:
    """Pods whose containers run since then."""
    made = [pod(number) for number in range(4)]
    return tuple(
        context.GangPod(
            replace(
                one, containers=tuple(replace(part, started_s=at_s) for part in one.containers)
            ),
            restart_policy="Never",
        )
        for one in made
    )


LEFT: dict[str, tuple[GangVerdict, tuple[context.GangPod, ...], int, bool]] = {
    "a launcher that starts it again": (crash(70, TORCHRUN), started(NOW_S - 300), 120, True),
    "its time is over": (crash(130, TORCHRUN), started(NOW_S - 300), 120, False),
    "a policy that waits less": (crash(70, TORCHRUN), started(NOW_S - 300), 60, False),
    "no launcher": (crash(70), started(NOW_S - 300), 120, False),
    "the launcher ended, too": (crash(70, TORCHRUN), started(NOW_S - 30), 120, False),
    "its container is being made": (crash(70, TORCHRUN), started(None), 120, False),
}


@pytest.mark.parametrize("case", LEFT)
def test_framework_first__a_crash_is_left_to_a_launcher_that_is_there(case: str) -> None:
    gang_verdict, pods, seconds, left = LEFT[case]
    policy = FaultPolicy(framework_first_seconds=seconds)
    move = guards.decide(ask(world(pods=pods, gang_verdict=gang_verdict), policy))
    assert move.status is not None
    if left:
        assert move.status.phase is Phase.OPEN
        assert "left for 120 s to its launcher" in move.status.message
    else:
        assert move.status.phase is Phase.SHUTTING_DOWN, move.status.message


def hang(age_s: float, **changes: Any) -> GangVerdict:
    of_crash = crash(age_s).verdict
    fields: dict[str, Any] = {
        "kind": VerdictKind.HUNG,
        "cause": Cause.STOPPED,
        "evidence": (DIED,),
    } | changes
    return GangVerdict(replace(of_crash, **fields))


def on_device(age_s: float) -> GangVerdict:
    return hang(
        age_s,
        kind=VerdictKind.DEVICE_FAULT,
        cause=Cause.DEVICE,
        culprit=replace(CULPRIT, device="gpu-3"),
    )


AUTO_RESUME = {"sagemaker.amazonaws.com/enable-job-auto-resume": "true"}
REFUSED = {"sagemaker.amazonaws.com/enable-job-auto-resume": "false"}
BY_POLICY: dict[str, tuple[GangVerdict, FrameworkFirst, bool]] = {
    "a crash": (crash(70), FrameworkFirst.CRASHES, True),
    "its time is over": (crash(130), FrameworkFirst.CRASHES, False),
    "a hang is not a crash": (hang(70), FrameworkFirst.CRASHES, False),
    "a hang": (hang(70), FrameworkFirst.FAULTS, True),
    "a crash is one of the faults": (crash(70), FrameworkFirst.FAULTS, True),
    "a hang without a culprit": (hang(70, culprit=None), FrameworkFirst.FAULTS, True),
    "a device": (
        hang(70, culprit=replace(CULPRIT, device="gpu-3")),
        FrameworkFirst.FAULTS,
        False,
    ),
    "a node": (hang(70, cause=Cause.PEER_GONE), FrameworkFirst.FAULTS, False),
}


@pytest.mark.parametrize("case", BY_POLICY)
def test_framework_first__the_policy_leaves_faults_to_what_announces_nothing(case: str) -> None:
    """As Ray Train, torchft and NVRx: nothing in the environment of their ranks says what they do about a fault."""
    gang_verdict, mode, left = BY_POLICY[case]
    policy = FaultPolicy(framework_first=mode, framework_first_seconds=120)
    pods = started(NOW_S - 300)
    move = guards.decide(ask(world(pods=pods, gang_verdict=gang_verdict), policy))
    said = move.status.message if move.status is not None else ""
    assert ("left for 120 s to the program" in said) is left, said


OPERATED: dict[str, tuple[str, dict[str, Any], GangVerdict, bool]] = {
    "its kind": ("sagemaker.amazonaws.com/v1", {}, crash(20), True),
    "asked for by an annotation": ("kubeflow.org/v1", AUTO_RESUME, crash(20), True),
    "a device": ("kubeflow.org/v1", AUTO_RESUME, on_device(20), True),
    "its time is over": ("kubeflow.org/v1", AUTO_RESUME, crash(70), False),
    "not asked for": ("kubeflow.org/v1", {}, crash(20), False),
    "refused by an annotation": ("kubeflow.org/v1", REFUSED, crash(20), False),
}


@pytest.mark.parametrize("case", OPERATED)
def test_framework_first__all_faults_of_a_job_are_left_to_an_operator_that_restarts_it(
    case: str,
) -> None:
    """HyperPod replaces nodes too, and restarts the job from outside: two that do so at once would undo each other."""
    api_version, annotations, gang_verdict, left = OPERATED[case]
    operator = operator_of(api_version, {"metadata": {"annotations": annotations}})
    known = world(pods=started(NOW_S - 300), gang_verdict=gang_verdict)
    move = guards.decide(ask(replace(known, top=top(operator=operator))))
    assert move.status is not None
    said = move.status.message
    assert ("left for 60 s to HyperPod" in said) is left, said
    assert (move.status.phase is Phase.OPEN) is left, said
