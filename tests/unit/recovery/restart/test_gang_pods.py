"""Pods of two runs of one job, and what else is in its pods or looks like them: never mixed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kcover_ebpf.agent.orders.order_scope import is_meant
from kcover_ebpf.api.fault_policy import FaultPolicy
from kcover_ebpf.api.incident import Phase, RestartAction, RestartMethod, Status
from kcover_ebpf.api.job_kinds import with_ranks
from kcover_ebpf.api.order import Order, Verb
from kcover_ebpf.api.pods import pod_of
from kcover_ebpf.gang.gang_input import GangInput, NodeState
from kcover_ebpf.gang.gang_judge import merge
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.verdict import Cause
from kcover_ebpf.recovery.restart import stuck
from kcover_ebpf.recovery.restart.context import GangPod
from kcover_ebpf.recovery.restart.gang_pods import earlier
from kcover_ebpf.recovery.restart.machine import RestartContext
from kcover_ebpf.recovery.restart.steps import RestartDetail
from kcover_ebpf.settings import Policy
from tests.unit.support.guard_inputs import world
from tests.unit.support.report_builders import NOW_S, SELECTOR, pod, rank, report

POLICY = Policy()


def made(number: int, created_s: float, asked_s: float | None = None, **more: Any) -> GangPod:
    """A pod of rank `number`; deleted with a grace period of 30 s where `asked_s` says when."""
    deleted_s = None if asked_s is None else asked_s + 30
    raw = replace(
        pod(number),
        uid=f"{number}@{created_s:g}",
        created_s=created_s,
        deleted_s=deleted_s,
        deletion_asked_s=asked_s,
        **more,
    )
    return GangPod(raw)


@pytest.mark.parametrize(
    ("pods", "wanted"),
    [
        pytest.param([made(0, 100), made(1, 100)], [], id="one run"),
        pytest.param([made(0, 100, 200), made(0, 203), made(1, 203)], ["0@100"], id="two runs"),
        pytest.param([made(0, 100, 200), made(1, 100)], [], id="a pod that is evicted"),
        pytest.param([made(0, 100, 200), made(1, 100, 200)], [], id="a run that is being ended"),
        pytest.param([made(0, 100, 200), made(0, 200)], [], id="in one second: no order"),
        pytest.param(
            [made(0, 100, 200), made(1, 203, 300), made(1, 304)], ["0@100", "1@203"], id="three"
        ),
    ],
)
def test_earlier__a_deleted_pod_is_of_a_run_before_once_the_job_has_made_others(
    pods: list[GangPod], wanted: list[str]
) -> None:
    assert sorted(earlier(pods)) == wanted


def test_earlier__a_pod_that_a_controller_makes_during_a_restart_begins_no_run() -> None:
    pods = [made(0, 100, 200), made(1, 202)]
    assert earlier(pods, newest_s=100) == frozenset()
    assert earlier(pods) == {"0@100"}


def test_earlier__a_run_whose_pods_are_gone_is_remembered() -> None:
    assert earlier([made(0, 100, 200)], newest_s=203) == {"0@100"}


def _judged(pods: list[GangPod]) -> tuple[Cause, str | None]:
    """What a run with a stopped rank on node b is judged as, beside what is left of the run before on node c."""
    seen = (report("a", rank(0, age_s=30.0)), report("b", rank(1, State.STOPPED, 30.0)))
    nodes = {name: NodeState(name, ready=name != "c") for name in "abc"}
    left_over = earlier(pods)
    own = [one.pod for one in pods if one.pod.uid not in left_over]
    verdict = merge(GangInput("ns/j", seen, own, nodes, POLICY, NOW_S)).verdict
    return verdict.cause, verdict.culprit.pod if verdict.culprit is not None else None


def test_earlier__what_is_left_of_the_run_before_on_a_lost_node_explains_no_hang_of_this_one() -> (
    None
):
    run = [GangPod(pod(number)) for number in (0, 1)]
    old = made(0, NOW_S - 900, NOW_S - 400, node="c")
    assert _judged(run) == (Cause.STOPPED, "j-1")
    assert _judged([*run, old]) == (Cause.STOPPED, "j-1")


def test_left__a_restart_waits_for_the_pods_of_its_run_and_for_none_of_the_run_before() -> None:
    began_s = NOW_S - 20
    words = RestartDetail(run_s=NOW_S - 300).words()
    action = RestartAction(RestartMethod.REPLACE, "Gone", 1, began_s, "", words)
    status = replace(Status(Phase.SHUTTING_DOWN), action=action)
    status = status.enter(Phase.SHUTTING_DOWN, began_s, "replace")
    run = [made(number, NOW_S - 300, began_s + 1) for number in (0, 1)]
    old = made(0, NOW_S - 900, NOW_S - 400)
    late = made(1, began_s + 3, began_s + 4)
    known = replace(world(), pods=(*run, old, late))
    context = RestartContext(status, known, FaultPolicy(), "inc", "ns/inc", SELECTOR)
    assert {one.pod.uid for one in stuck.left(context)} == {one.pod.uid for one in (*run, late)}, (
        "also those that a late pod of its controller came after"
    )


def test_is_meant__an_order_reaches_no_pod_that_was_made_since() -> None:
    order = Order("1", Verb.KILL, SELECTOR, 200.0, 300.0)
    labelled = replace(pod(0), labels=SELECTOR)
    assert is_meant(replace(labelled, created_s=199.0), order)
    assert not is_meant(replace(labelled, created_s=203.0), order)


def _raw(name: str, **entry: Any) -> dict[str, Any]:
    return {"name": name, "image": "i", **entry}


RANK = {"env": [{"name": "RANK", "value": "0"}]}
BESIDE: dict[str, tuple[dict[str, Any], list[str]]] = {
    "an init container": ({"initContainers": [_raw("prepare", **RANK)]}, ["pytorch"]),
    "istio as a sidecar of Kubernetes": (
        {"initContainers": [_raw("istio-proxy", restartPolicy="Always", **RANK)]},
        ["pytorch"],
    ),
    "an ephemeral container with the rank's environment": (
        {"ephemeralContainers": [_raw("debugger", targetContainerName="pytorch", **RANK)]},
        ["pytorch"],
    ),
    "a log shipper to which the controller gave a rank": (
        {"containers": [_raw("pytorch", **RANK), _raw("wandb", **RANK)]},
        ["pytorch"],
    ),
}


@pytest.mark.parametrize("beside", BESIDE)
def test_with_ranks__what_runs_before_or_beside_a_rank_is_none(beside: str) -> None:
    spec, wanted = BESIDE[beside]
    labels = {
        "training.kubeflow.org/job-name": "j",
        "training.kubeflow.org/operator-name": "pytorchjob-controller",
    }
    metadata = {"name": "j-0", "namespace": "ns", "uid": "u", "labels": labels}
    whole = {"containers": [_raw("pytorch", **RANK)], **spec}
    found = pod_of({"metadata": metadata, "spec": whole, "status": {"phase": "Running"}})
    assert [container.name for container in with_ranks(found)] == wanted


def test_pod_of__says_when_a_deletion_was_asked_for() -> None:
    metadata = {
        "name": "j-0",
        "uid": "u",
        "deletionTimestamp": "2026-01-01T00:00:31Z",
        "deletionGracePeriodSeconds": 1,
    }
    found = pod_of({"metadata": metadata})
    assert found.deleted_s is not None
    assert found.deletion_asked_s == found.deleted_s - 1
    assert pod_of({"metadata": {"name": "j-0", "uid": "u"}}).deletion_asked_s is None
