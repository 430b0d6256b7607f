"""Pods that do not go: which of them say something about their node, and which may be deleted by force."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml

from kcover_ebpf.api.fault_policy import FaultPolicy, NodeActions
from kcover_ebpf.api.fault_report import AckResult
from kcover_ebpf.api.incident import Phase, RestartMethod, RestartRecord
from kcover_ebpf.api.incident_parts import StuckState
from kcover_ebpf.model.verdict import Cause, Culprit
from kcover_ebpf.recovery.restart import context, machine
from tests.unit.support.judged import judged
from tests.unit.support.simulated_cluster import Sim
from tests.unit.support.simulated_world import SimPod


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
    sim = Sim(stuck_index=1, thaw_s=200, unreachable=frozenset({"n1"}), agents=frozenset({"n0"}))
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
        (
            Sim(
                stuck_index=1, policy=FORCE, unreachable=frozenset({"n1"}), agents=frozenset({"n0"})
            ),
            False,
        ),
        (Sim(stuck_index=1, policy=FORCE, unreachable=frozenset({"n1"})), True),
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
        "only its kubelet is down",
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
    status = judged(
        replace(
            first,
            action=replace(first.action, step="Progress"),
            restarts=(RestartRecord(RestartMethod.REPLACE, sim.now_s),),
        ),
        cause=cause,
        culprit=Culprit(rank=1, node="n1"),
    )
    after = machine.escalate(sim.turn(status), "again")
    assert after.action is not None
    assert (after.action.way, after.action.detail.get("elsewhere", "")) == (
        RestartMethod.REPLACE,
        elsewhere,
    )


@dataclass
class RenamingSim(Sim):
    """A batch Job: its new pods have other names, and do not wait for old ones."""

    waits: bool = False

    def world(self) -> context.RestartInput:
        seen = super().world()
        assert seen.top is not None
        return replace(seen, top=replace(seen.top, renames=not self.waits))

    def _job_controller(self) -> None:
        for pod in self.pods:
            if self.suspended and pod.deleted_s is None:
                self.mark(pod, pod.grace_s)
        if not self.suspended:
            here = {pod.index for pod in self.pods if pod.deleted_s is None}
            if len(here) < self.count:
                others = [pod for pod in self.pods if pod.deleted_s is not None]
                self.pods = [pod for pod in self.pods if pod.deleted_s is None]
                self.make_pods()
                self.pods += others


@pytest.mark.parametrize(
    ("sim", "continues"),
    [
        (RenamingSim(stuck_index=1), True),
        (RenamingSim(stuck_index=1, deaf=frozenset({"n1"})), False),
        (RenamingSim(stuck_index=1, agents=frozenset({"n0"})), False),
        (
            RenamingSim(stuck_index=1, unreachable=frozenset({"n1"}), agents=frozenset({"n0"})),
            False,
        ),
        (RenamingSim(stuck_index=1, unreachable=frozenset({"n1"})), True),
        (RenamingSim(stuck_index=1, waits=True), False),
        (
            RenamingSim(stuck_index=1, unreachable=frozenset({"n1"}), fenced=frozenset({"n1"})),
            True,
        ),
    ],
    ids=[
        "killed by its agent",
        "deaf",
        "no agent",
        "out of reach",
        "only its kubelet is down",
        "one that waits",
        "fenced",
    ],
)
def test_stuck_pods__a_job_continues_without_a_pod_that_cannot_compute_any_more(
    sim: RenamingSim, continues: bool
) -> None:
    sim.begin(RestartMethod.REPLACE)
    status = sim.run(150)
    assert (status.at(Phase.RECOVERING) is not None) is continues, "\n".join(sim.log)
    stuck = [pod for pod in sim.pods if pod.deleted_s is not None]
    assert [pod.index for pod in stuck] == [1], "its object is there, whatever became of the job"
    assert [pod.pod for pod in status.stuck] == ["j-1"]
    wanted = StuckState.PROVEN if continues or sim.waits else None
    assert wanted in (None, status.stuck[0].state)


LADDER: dict[str, tuple[Sim, StuckState, str, str]] = {
    "in state D": (
        Sim(stuck_index=1, deaf=frozenset({"n1"})),
        StuckState.UNKILLABLE,
        "its agent has not reported that its processes are gone",
        "a reboot of the node ends them",
    ),
    "killed": (
        Sim(stuck_index=1),
        StuckState.PROVEN,
        "SIGKILL was sent and that no process computes any more",
        "set forceDelete: true",
    ),
    "out of reach": (
        Sim(stuck_index=1, unreachable=frozenset({"n1"}), agents=frozenset({"n0"})),
        StuckState.UNKNOWN,
        "no agent reports from n1",
        "kubectl taint node n1 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute",
    ),
    "kept": (
        Sim(kept_s=150.0),
        StuckState.KEPT,
        "finalizers: example.com/kept",
        "must be removed by what put it there",
    ),
}


@pytest.mark.parametrize("case", LADDER)
def test_stuck_pods__the_status_says_what_is_known_and_what_comes_next(case: str) -> None:
    sim, state, known, comes_next = LADDER[case]
    sim.begin(RestartMethod.REPLACE)
    status = sim.run(100)
    found = next(pod for pod in status.stuck if pod.state is state)
    assert any(known in text for text in found.known), found
    assert comes_next in found.next


def test_stuck_pods__a_write_that_may_still_be_done_is_waited_for() -> None:
    """Its process is killed, and the storage may do what it was asked for once it answers again."""
    sim = RenamingSim(stuck_index=1)
    sim.begin(RestartMethod.REPLACE)
    first = judged(sim.read(), cause=Cause.STORAGE)
    sim.write(first)
    status = sim.run(150)
    assert status.at(Phase.RECOVERING) is None, "\n".join(sim.log)
    (stuck,) = status.stuck
    assert (stuck.state, stuck.next[:31]) == (StuckState.PROVEN, "its last write may still be don")


CRD = Path(__file__).resolve().parents[3] / "charts/kcover-ebpf/crds/incidents.yaml"
LONG = tuple(f"{letter * 253}/{letter * 63}" for letter in "abc")
"""The longest names that a finalizer may have."""


class KeptSim(Sim):
    """Its pods are kept by these."""

    def _pod(self, pod: SimPod) -> context.GangPod:
        found = super()._pod(pod)
        return replace(found, pod=replace(found.pod, finalizers=LONG))


def test_stuck_pods__long_names_of_finalizers_are_cut_to_what_the_definition_allows() -> None:
    """The API server refuses the whole status otherwise, and the restart ends there."""
    sim = KeptSim(kept_s=150.0)
    sim.begin(RestartMethod.REPLACE)
    schema = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    known = schema["properties"]["status"]["properties"]["stuck"]["items"]["properties"]["known"]
    texts = [text for pod in sim.run(100).stuck for text in pod.known]
    assert texts
    assert max(map(len, texts)) == known["items"]["maxLength"]
