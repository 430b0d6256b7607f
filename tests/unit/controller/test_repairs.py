"""An operator's Jobs repair a node that was cordoned for a device: in order, within bounds, off by default."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.fault_policy import NodeActions
from kcover_ebpf.controller.repairs import Repairs
from kcover_ebpf.errors import ApiError, Forbidden, PolicyError, Unreachable
from kcover_ebpf.recovery import repair
from kcover_ebpf.recovery.nodes.node_plan import CORDONED, NodeView, view_of
from kcover_ebpf.recovery.repair import RepairLimits, RepairStep, limits_of
from kcover_ebpf.tunables.recovery import REPAIR_SETTLE_S
from tests.unit.support.node_bed import GPU, XID
from tests.unit.support.repair_yard import (
    JOB,
    LIMITS,
    TABLE,
    Drained,
    Yard,
    env,
    named,
    pod,
    steps,
)


def test_repairs__a_gpu_that_a_job_mends_returns_without_a_person() -> None:
    yard = Yard()
    yard.fail()
    assert yard.cordoned() == ["n0"]
    assert steps(yard) == ["ResetGPU"]
    (job,) = yard.jobs
    assert env(job) == {"KCOVER_NODE": "n0", "KCOVER_STEP": "ResetGPU", "KCOVER_DEVICES": GPU}
    assert job["spec"]["template"]["spec"]["nodeName"] == "n0"
    assert JOB["template"]["spec"]["containers"][0]["env"][0]["value"] == "x"
    yard.round(4)
    assert yard.cordoned() == []
    assert steps(yard) == ["ResetGPU"]


def test_repairs__what_a_step_does_not_mend_the_next_one_tries_and_a_person_is_last() -> None:
    yard = Yard(mended_by="none")
    yard.fail()
    yard.round(3)
    assert steps(yard) == ["ResetGPU", "Reboot"]
    yard.round(20)
    assert steps(yard) == ["ResetGPU", "Reboot", "Replace"]
    assert "nodeName" not in yard.jobs[2]["spec"]["template"]["spec"]
    assert yard.cordoned() == ["n0"]


def test_repairs__nothing_is_tried_by_default() -> None:
    yard = Yard(RepairLimits())
    yard.fail()
    yard.round(9)
    assert yard.jobs == []


def test_repairs__pods_of_jobs_end_first() -> None:
    yard = Yard(replace(LIMITS, repairs=LIMITS.repairs[1:]), mended_by="Reboot")
    yard.pods = [pod("a"), pod("b", owner="DaemonSet"), pod("c", namespace="kcover")]
    yard.fail()
    assert yard.jobs == []
    yard.pods = yard.pods[1:]
    yard.round()
    assert steps(yard) == ["Reboot"]


def test_repairs__a_reset_waits_for_those_alone_that_have_the_device() -> None:
    yard = Yard()
    yard.pods = [pod("a"), pod("b")]
    held = replace(XID, pods=("b",))
    yard.report(held)
    yard.repairs.reconcile("n0")
    assert yard.jobs == []
    yard.pods = [pod("a")]
    yard.repairs.reconcile("n0")
    assert steps(yard) == ["ResetGPU"]


def test_repairs__what_is_known_of_a_node_stays_known_after_a_note_on_it() -> None:
    yard = Yard()
    yard.fail()
    assert repair.attempts_of(view_of(yard.store.raw_nodes["n0"]))
    node = view_of(yard.store.raw_nodes["n0"])
    assert (node.boot_id, node.condition) == ("a", "True")


def test_repairs__another_controller_does_not_begin_it_again() -> None:
    yard = Yard(mended_by="none")
    yard.fail()
    other = Repairs(yard, yard.writing, yard.store, yard.nodes._limits, LIMITS, yard.nodes._notify)  # type: ignore[arg-type]
    other.reconcile("n0")
    assert steps(yard) == ["ResetGPU"]


@pytest.mark.parametrize("is_created_anyway", [False, True])
@pytest.mark.parametrize(
    "error", [Unreachable("503 leader changed", 503), Forbidden("403 denied", 403)]
)
def test_repairs__a_job_that_was_not_confirmed_is_requested_again_before_the_next_step(
    error: ApiError, is_created_anyway: bool
) -> None:
    yard = Yard()
    yard.errors, yard.is_created_anyway = [error], is_created_anyway
    yard.fail()
    assert steps(yard) == ["ResetGPU"] * is_created_anyway
    (attempt,) = repair.attempts_of(view_of(yard.store.raw_nodes["n0"]))
    assert attempt.is_pending, "other nodes wait for this one"
    yard.round(6)
    assert steps(yard) == ["ResetGPU"]
    assert yard.cordoned() == []


def test_repairs__a_job_that_is_refused_for_good_leads_to_no_heavier_step() -> None:
    yard = Yard()
    yard.errors = [Forbidden("403 denied", 403) for _ in range(100)]
    yard.fail()
    yard.round(20)
    assert yard.jobs == []
    assert yard.cordoned() == ["n0"]
    assert len(yard.errors) == 100 - 21, "each time the step is the same"


def test_repairs__another_controller_completes_what_was_noted_and_not_confirmed() -> None:
    yard = Yard(mended_by="none")
    yard.errors = [Unreachable("no answer")]
    yard.fail()
    other = Repairs(yard, yard.writing, yard.store, yard.nodes._limits, LIMITS, yard.nodes._notify)  # type: ignore[arg-type]
    other.reconcile("n0")
    other.reconcile("n0")
    assert steps(yard) == ["ResetGPU"]
    (attempt,) = repair.attempts_of(view_of(yard.store.raw_nodes["n0"]))
    assert not attempt.is_pending


NOW_S = 1_800_000_000.0


def node(name: str, tried: str = "[]") -> NodeView:
    annotations = {CORDONED: "2027-01-15T07:00:00Z xid_48", repair.REPAIRS: tried}
    return NodeView(name, name, True, annotations, (), "True")


def test_plan__is_bounded_over_all_nodes() -> None:
    limits = replace(LIMITS, repairs=LIMITS.repairs[1:])
    ours = node("a")
    assert repair.plan(ours, [ours], limits, NodeActions(), NOW_S).repair is not None
    now = repair.noted_attempts([repair.RepairAttempt(RepairStep.REBOOT, NOW_S - 60)])
    busy = repair.plan(ours, [ours, node("b", now)], limits, NodeActions(), NOW_S)
    assert "limit of nodes in repair" in busy.reason
    before = repair.noted_attempts(
        [repair.RepairAttempt(RepairStep.REBOOT, NOW_S - REPAIR_SETTLE_S - 1)]
    )
    many = repair.plan(
        ours,
        [ours, *(node(f"n{number}", before) for number in range(5))],
        limits,
        NodeActions(),
        NOW_S,
    )
    assert "within a day" in many.reason


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({}, "steps is a list"),
        ({"steps": [{"step": "Pray", "job": JOB}]}, "is not one of ResetGPU"),
        ({"steps": [{"step": "Reboot"}]}, "has a step and a job"),
        ({"steps": [{"step": "Reboot", "job": {}}]}, "has no containers"),
        ({"steps": TABLE["steps"][:1] * 2}, "twice"),
        ({**TABLE, "atOnce": 0}, "atOnce is from 1"),
        ({**TABLE, "hue": 1}, "unknown key 'hue'"),
    ],
)
def test_limits_of__a_wrong_file_is_refused_in_one_line(table: dict[str, Any], words: str) -> None:
    with pytest.raises(PolicyError, match=words) as caught:
        limits_of(table, "repairs x")
    assert str(caught.value).startswith("repairs x: ")
    assert "\n" not in str(caught.value)
    json.dumps(table)


# --- pods that a step would end


def test_repairs__a_reset_evicts_the_pods_that_have_the_gpu_and_no_others() -> None:
    yard = Drained()
    yard.pods = [named("a"), named("b"), named("d", owner="DaemonSet")]
    held = replace(XID, pods=("b", "d"))
    yard.report(held)
    yard.repairs.reconcile("n0")
    assert (yard.evicted, yard.jobs) == (["b"], [])
    assert repair.DRAINED in yard.notes("n0")
    yard.repairs.reconcile("n0")
    assert (yard.evicted, steps(yard)) == (["b"], ["ResetGPU"])
    assert repair.DRAINED not in yard.notes("n0")


def test_repairs__a_disruption_budget_keeps_its_pods() -> None:
    yard = Drained()
    yard.pods, yard.budget = [named("b")], {"b"}
    yard.report(replace(XID, pods=("b",)))
    yard.repairs.reconcile("n0")
    assert (yard.evicted, yard.jobs) == ([], [])
    yard.budget = set()
    yard.repairs.reconcile("n0")
    yard.repairs.reconcile("n0")
    assert (yard.evicted, steps(yard)) == (["b"], ["ResetGPU"])


def test_plan__a_node_that_is_drained_counts_as_being_repaired() -> None:
    ours, drained = node("a"), node("b")
    limits = replace(LIMITS, repairs=LIMITS.repairs[1:])
    note = {repair.DRAINED: rfc3339.to_text(NOW_S - 60)}
    drained = replace(drained, annotations={**drained.annotations, **note})
    found = repair.plan(ours, [ours, drained], limits, NodeActions(), NOW_S)
    assert "limit of nodes in repair" in found.reason
    assert repair.plan(drained, [ours, drained], limits, NodeActions(), NOW_S).repair is not None


def test_plan__a_node_that_is_drained_for_its_second_step_counts_as_being_repaired() -> None:
    before = repair.noted_attempts(
        [repair.RepairAttempt(RepairStep.REBOOT, NOW_S - REPAIR_SETTLE_S - 1)]
    )
    ours, drained = node("a"), node("b", before)
    note = {repair.DRAINED: rfc3339.to_text(NOW_S - 60)}
    drained = replace(drained, annotations={**drained.annotations, **note})
    limits = replace(LIMITS, repairs=LIMITS.repairs[1:])
    found = repair.plan(ours, [ours, drained], limits, NodeActions(), NOW_S)
    assert "limit of nodes in repair" in found.reason


def test_repairs__a_drain_for_an_earlier_cordon_is_noted_anew() -> None:
    """Otherwise other nodes would be drained at the same time."""
    yard = Drained()
    (raw,) = (raw for name, raw in yard.store.raw_nodes.items() if name == "n0")
    raw["metadata"].setdefault("annotations", {})[repair.DRAINED] = rfc3339.to_text(1.0)
    yard.pods, yard.budget = [named("b")], {"b"}
    yard.report(replace(XID, pods=("b",)))
    yard.repairs.reconcile("n0")
    assert repair.drained_since_s(view_of(yard.store.raw_nodes["n0"])) is not None


def test_repairs__a_node_that_fails_again_and_again_stays_out_and_says_why() -> None:
    yard = Yard()
    for _ in range(4):
        yard.is_broken = True
        yard.fail()
        yard.round(60)
        assert yard.cordoned() == []
    yard.is_broken = True
    yard.fail()
    yard.round(200)
    assert yard.cordoned() == ["n0"]
    assert len(yard.jobs) == 4, "the fifth time nothing is tried"
    why = yard.notes("n0")[CORDONED]
    assert "it was cordoned 5 times, every " in why
    assert "days on average (MTBF)" in why
