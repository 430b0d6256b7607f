"""The pods on a faulty node move, all others restart in place: in a simulated cluster, broken off at every point."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from kcover_ebpf.api.fault_policy import FaultPolicy
from kcover_ebpf.api.incident import Phase, RestartMethod, Status
from kcover_ebpf.gang.gang_input import GangVerdict
from kcover_ebpf.model.verdict import Cause, Culprit, Verdict, VerdictKind
from kcover_ebpf.recovery.restart import context, machine
from kcover_ebpf.recovery.restart.gang_pods import moved_pods
from kcover_ebpf.recovery.restart.machine import why_not_hybrid
from kcover_ebpf.recovery.restart.methods import MovesBy
from tests.unit.support.simulated_cluster import Sim
from tests.unit.support.simulated_world import START_S, SimPod

DEVICE = Culprit(node="n1", pod="j-1", pod_uid="u2", device="gpu-3")
IN_PLACE, REPLACE, HYBRID = RestartMethod.IN_PLACE, RestartMethod.REPLACE, RestartMethod.HYBRID


ALL_WAYS = FaultPolicy(ways=(IN_PLACE, HYBRID, REPLACE))


@dataclass
class MovingSim(Sim):
    """A kind whose controller makes a deleted pod again after `again_s`; a device of node n1 is at fault."""

    method: str = "delete"
    policy: FaultPolicy = ALL_WAYS
    again_s: float = 1.0
    room_s: float = 0.0
    """From then on a node has room."""
    dns_s: float = 0.5
    culprit: Culprit = DEVICE
    agents: frozenset[str] = frozenset({"n0", "n1", "n2"})

    def world(self) -> context.RestartInput:
        verdict = Verdict(
            job="j",
            incident="i",
            kind=VerdictKind.DEVICE_FAULT,
            cause=Cause.DEVICE,
            time_s=START_S,
            since_s=START_S,
            culprit=self.culprit,
        )
        seen = super().world()
        assert seen.top is not None
        top = replace(seen.top, moves=MovesBy.DELETE)
        known = (pod for pod in self.pods if self._is_known(pod, self.dns_s))
        return replace(
            seen,
            top=top,
            gang_verdict=GangVerdict(verdict),
            ready=seen.ready | {"n2"},
            published={"j": frozenset(pod.uid for pod in known)},
        )

    def begin(self, method: RestartMethod) -> None:
        status = Status(Phase.DECIDED).enter(Phase.OPEN, self.now_s, "")
        self.write(machine.start(self.turn(status), method, "a device", self.culprit.node or ""))

    def _is_known(self, pod: SimPod, after_s: float) -> bool:
        return bool(pod.node) and self.now_s - pod.created_s >= after_s and pod.deleted_s is None

    def _pod(self, pod: SimPod) -> context.GangPod:
        made = super()._pod(pod)
        address = f"10.0.0.{pod.uid}" if self._is_known(pod, 0.25) else ""
        return replace(made, pod=replace(made.pod, address=address))

    def make_pods(self) -> None:
        if self.now_s > START_S and self.now_s < self._lost_s() + self.again_s:
            return
        before = set(map(id, self.pods))
        super().make_pods()
        for pod in self.pods:
            if id(pod) not in before and pod.node in self.cordoned:
                pod.node = "n2" if self.now_s - START_S >= self.room_s else ""

    def _lost_s(self) -> float:
        gone = [float(line.split()[0]) for line in self.log if " gone " in line]
        return START_S + max(gone, default=0.0)

    def tick(self) -> None:
        super().tick()
        for pod in self.pods:
            if not pod.node and self.now_s - START_S >= self.room_s:
                pod.node, pod.created_s = "n2", self.now_s
            pod.ready = pod.ready and bool(pod.node)


def story(sim: Sim) -> str:
    return "\n".join(sim.log)


def moved(sim: MovingSim) -> Status:
    """Run it; what stayed stayed, and one pod is new on another node."""
    before = {pod.index: pod.uid for pod in sim.pods}
    sim.begin(HYBRID)
    status = sim.run()
    assert status.phase is Phase.RECOVERED, story(sim)
    after = {pod.index: pod for pod in sim.pods}
    assert sorted(after) == sorted(before)
    assert [index for index in before if after[index].uid != before[index]] == [1], story(sim)
    assert after[1].node == "n2"
    assert all(after[index].restarts == 1 for index in (0, 2, 3)), story(sim)
    assert [restart.way for restart in status.restarts] == [HYBRID], story(sim)
    assert sim.ended is None
    return status


def test_hybrid__one_pod_moves_and_the_others_restart_in_place() -> None:
    sim = MovingSim()
    status = moved(sim)
    back_s = status.at(Phase.RECOVERING)
    assert back_s is not None
    assert back_s - START_S < 8, story(sim)
    assert sim.cordoned == {"n1"}


def test_hybrid__the_others_are_killed_once_the_new_address_is_published() -> None:
    sim = MovingSim(dns_s=4.0)
    moved(sim)
    times = {line.split(" ", 1)[1]: float(line.split()[0]) for line in sim.log}
    assert times["n0 Kill"] - times["new u5"] >= 4.0, story(sim)


def test_hybrid__ranks_stay_stopped_while_a_batch_job_waits() -> None:
    sim = MovingSim(again_s=12.0)
    moved(sim)
    assert story(sim).count("n0 Stop") >= 2, "the order is given anew before it expires"
    assert "Resume" not in story(sim)


def test_hybrid__ranks_that_were_resumed_while_no_controller_wrote_are_stopped_again() -> None:
    sim = MovingSim()
    sim.begin(HYBRID)
    while not any(" gone " in line for line in sim.log):
        sim.reconcile()
        sim.tick()
    while sim.now_s - START_S < 15.0:
        sim.tick()
    assert {pod.process for pod in sim.pods if pod.index != 1} == {"running"}
    status = sim.run()
    assert status.phase is Phase.RECOVERED, story(sim)
    assert [restart.way for restart in status.restarts] == [HYBRID], story(sim)
    stops = [float(line.split()[0]) for line in sim.log if "n0 Stop" in line]
    (kill,) = [float(line.split()[0]) for line in sim.log if "n0 Kill" in line]
    assert 15.0 <= stops[-1] < kill, story(sim)


def test_hybrid__a_pod_that_may_not_be_deleted_holds_up_the_others_for_a_short_time() -> None:
    """As with a disruption budget, which refuses every eviction."""
    sim = MovingSim(refused=lambda call: isinstance(call, context.Delete))
    sim.policy = FaultPolicy(ways=(HYBRID,))
    before = {pod.uid for pod in sim.pods}
    sim.begin(HYBRID)
    status = sim.run()
    assert status.phase is Phase.FAILED, story(sim)
    assert "pod j-1 is not deleted (Delete: 403 denied)" in status.message
    assert {(pod.process, pod.restarts) for pod in sim.pods} == {("running", 0)}
    assert {pod.uid for pod in sim.pods} == before
    assert story(sim).count("n0 Stop") >= 2, "the order is given anew before it expires"
    assert story(sim).count("n0 Resume") == 1
    assert status.last_s - START_S < 30.0


def test_hybrid__without_room_the_others_do_not_stay_stopped() -> None:
    sim = MovingSim(room_s=90.0)
    status = moved(sim)
    said = [moment.text or "" for moment in status.timeline]
    assert any("not moved within 40 s (no node has room)" in text for text in said)
    times = {line.split(" ", 1)[1]: float(line.split()[0]) for line in sim.log}
    assert times["n0 Kill"] < 50


def test_hybrid__a_node_whose_agent_is_deaf_is_left_behind() -> None:
    sim = MovingSim(count=2, deaf=frozenset({"n1"}))
    sim.begin(HYBRID)
    status = sim.run()
    assert status.phase is Phase.RECOVERED, story(sim)
    assert [restart.way for restart in status.restarts] == [HYBRID]


def test_hybrid__a_pod_that_does_not_end_leads_to_replacing() -> None:
    sim = MovingSim(stuck_index=1, thaw_s=40.0)
    sim.begin(HYBRID)
    status = sim.run()
    assert [restart.way for restart in status.restarts] == [HYBRID, REPLACE], story(sim)
    assert any("pod j-1 does not end" in (moment.text or "") for moment in status.timeline)


@pytest.mark.parametrize("point", range(1, 30))
def test_hybrid__another_controller_continues_wherever_one_was_killed(point: int) -> None:
    status = moved(MovingSim(crashes={point}))
    assert status.stuck == ()


WHY: dict[str, tuple[MovingSim, dict[str, object], str | None]] = {
    "it can": (MovingSim(), {}, None),
    "a policy without it": (
        MovingSim(policy=FaultPolicy(ways=(IN_PLACE, REPLACE))),
        {},
        "the policy does not allow it",
    ),
    "no device or node": (
        MovingSim(culprit=Culprit(node="n1", pod="j-1", pod_uid="u2")),
        {},
        "no device or node is at fault",
    ),
    "all of it": (
        MovingSim(count=1, culprit=Culprit(node="n0", device="gpu-0")),
        {},
        "all pods of the job are on what is at fault",
    ),
    "a node that is gone": (
        MovingSim(unreachable=frozenset({"n1"})),
        {},
        "node n1 does not answer: its pods may still run",
    ),
    "pods without the rule": (
        MovingSim(in_place_rule=False),
        {},
        "not every pod carries the rule RestartAllContainers",
    ),
    "a node without an agent": (
        MovingSim(agents=frozenset({"n1"})),
        {},
        "no agent reports from node n0",
    ),
    "a kind that counts it": (
        MovingSim(),
        {"moves": MovesBy.NONE, "moves_not": "it counts"},
        "it counts",
    ),
    "a launcher": (
        MovingSim(launcher=1, culprit=Culprit(node="n9", device="gpu-0")),
        {},
        "the launcher of the job is on what is at fault",
    ),
}


@pytest.mark.parametrize("case", WHY)
def test_hybrid__why_not(case: str) -> None:
    sim, of_top, why = WHY[case]
    seen = sim.world()
    assert seen.top is not None
    seen = replace(seen, top=replace(seen.top, **of_top))  # type: ignore[arg-type]
    assert why_not_hybrid(seen, sim.policy) == why


def test_hybrid__of_a_node_all_its_pods_move_and_of_a_device_the_one_that_has_it() -> None:
    of_device = MovingSim().world()
    assert [pod.pod.name for pod in moved_pods(of_device)] == ["j-1"]
    assert of_device.gang_verdict is not None
    verdict = replace(of_device.gang_verdict.verdict, cause=Cause.DRIVER_STUCK)
    of_node = replace(of_device, gang_verdict=replace(of_device.gang_verdict, verdict=verdict))
    assert [pod.pod.name for pod in moved_pods(of_node)] == ["j-1", "j-3"]


def test_hybrid__a_pod_whose_device_is_called_unhealthy_moves_too() -> None:
    """Whatever the gang's fault is: a pod that restarts in place keeps its device."""
    sim = MovingSim(culprit=Culprit(node="n0", pod="j-0", pod_uid="u1"))
    seen = sim.world()
    seen = replace(seen, gang_verdict=GangVerdict(replace(_verdict(seen), cause=Cause.STOPPED)))
    assert machine.why_not_in_place(seen, sim.policy) is None
    assert moved_pods(seen) == ()
    sick = tuple(
        replace(pod, pod=replace(pod.pod, unhealthy=("acme.example/gpu 7",)))
        if pod.pod.name == "j-1"
        else pod
        for pod in seen.pods
    )
    seen = replace(seen, pods=sick)
    why = machine.why_not_in_place(seen, sim.policy)
    assert why == "pod j-1 has the unhealthy device acme.example/gpu 7"
    assert [pod.pod.name for pod in moved_pods(seen)] == ["j-1"]
    assert why_not_hybrid(seen, sim.policy) is None
    turn = replace(sim.turn(Status(Phase.DECIDED)), world=seen)
    assert machine.avoided_node(turn) == "n1"


def _verdict(seen: context.RestartInput) -> Verdict:
    assert seen.gang_verdict is not None
    return seen.gang_verdict.verdict
