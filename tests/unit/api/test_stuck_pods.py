"""Pods that do not go: which of them say something about their node, and which may be deleted by force."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.api.fault_policy import FaultPolicy, NodeActions
from kcover_ebpf.api.fault_report import AckResult
from kcover_ebpf.api.incident import Phase, RestartMethod, RestartRecord
from kcover_ebpf.model.verdict import Cause, Culprit
from kcover_ebpf.recovery.restart import machine
from tests.unit.simulated_cluster import Sim


def test_stuck_pods__a_finalizer_is_named_and_no_node_is_cordoned() -> None:
    sim = Sim(kept_s=150.0)
    sim.begin(RestartMethod.REPLACE)
    status = sim.run(100)
    assert status.action is not None
    assert status.action.step == "Stuck"
    assert "kept by finalizers (example.com/kept): j-0 on n0" in status.message
    assert "state D" not in status.message
    assert sim.run(200).phase is Phase.RECOVERED
    assert sim.cordoned == set()


def test_stuck_pods__a_node_out_of_reach_is_named_and_not_cordoned() -> None:
    sim = Sim(stuck_index=1, thaw_s=200, unreachable=frozenset({"n1"}))
    sim.begin(RestartMethod.REPLACE)
    status = sim.run(100)
    assert "it is unknown whether these pods still run: j-1 on n1" in status.message
    assert "out-of-service" in status.message
    assert sim.cordoned == set()


def test_stuck_pods__the_policy_of_the_job_does_not_decide_about_nodes() -> None:
    sim = Sim(stuck_index=1, thaw_s=200, policy=FaultPolicy(node=NodeActions(cordon=False)))
    sim.begin(RestartMethod.REPLACE)
    sim.run(100)
    assert sim.cordoned == {"n1"}, "whether it is done is a question for the operator's policy"


FORCE = FaultPolicy(force_delete=True)


@pytest.mark.parametrize(
    ("sim", "deleted"),
    [
        (Sim(stuck_index=1, policy=FORCE), True),
        (Sim(stuck_index=1, policy=FORCE, unreachable=frozenset({"n1"})), False),
        (Sim(stuck_index=1, policy=FORCE, deaf=frozenset({"n1"})), False),
        (Sim(stuck_index=1, policy=FORCE, agents=frozenset({"n0"})), False),
        (Sim(stuck_index=1, policy=FORCE, refuses={"n1": AckResult.REFUSED}), False),
        (Sim(stuck_index=1, policy=FORCE, refuses={"n1": AckResult.PARTIAL}), False),
        (Sim(stuck_index=1, policy=FORCE, refuses={"n1": AckResult.DONE}), False),
        (
            Sim(
                stuck_index=1,
                policy=FORCE,
                unreachable=frozenset({"n1"}),
                fenced=frozenset({"n1"}),
            ),
            True,
        ),
    ],
    ids=[
        "killed by its agent",
        "out of reach",
        "no order carried out",
        "no agent",
        "refused",
        "in part",
        "of no pod",
        "fenced",
    ],
)
def test_stuck_pods__a_pod_is_deleted_by_force_only_where_its_rank_cannot_continue(
    sim: Sim, deleted: bool
) -> None:
    sim.begin(RestartMethod.REPLACE)
    status = sim.run(150)
    assert (status.phase is Phase.RECOVERED) is deleted, "\n".join(sim.log)


@pytest.mark.parametrize(
    ("cause", "elsewhere"),
    [
        (Cause.DRIVER_STUCK, "n1"),
        (Cause.PEER_GONE, "n1"),
        (Cause.EXITED, ""),
        (Cause.KILLED, ""),
        (Cause.STOPPED, ""),
        (Cause.DEVICE, ""),
    ],
)
def test_escalate__a_node_is_cordoned_for_causes_that_concern_nodes(
    cause: Cause, elsewhere: str
) -> None:
    sim = Sim()
    sim.begin(RestartMethod.REPLACE)
    first = sim.read()
    assert first.action is not None
    status = replace(
        first,
        action=replace(first.action, step="Progress"),
        cause=cause,
        culprit=Culprit(rank=1, node="n1"),
        restarts=(RestartRecord(RestartMethod.REPLACE, sim.now_s),),
    )
    after = machine.escalate(sim.turn(status), "again")
    assert after.action is not None
    assert (after.action.way, after.action.detail.get("elsewhere", "")) == (
        RestartMethod.REPLACE,
        elsewhere,
    )
