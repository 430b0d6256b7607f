"""The restart of a whole gang, in a simulated cluster: each method, and every point at which things may break off."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import Phase as Part
from hypothesis import strategies as st

from kcover_ebpf.api.fault_policy import FaultPolicy
from kcover_ebpf.api.incident import Phase, RestartMethod, Status
from kcover_ebpf.recovery.restart import replacement
from kcover_ebpf.recovery.restart.context import GangPod
from kcover_ebpf.settings import RestartBudget
from tests.unit.support.report_builders import pod
from tests.unit.support.simulated_cluster import Sim
from tests.unit.support.simulated_world import START_S


def story(sim: Sim) -> str:
    return "\n".join(sim.log)


def took_s(status: Status) -> float:
    back_s = status.at(Phase.RECOVERING)
    assert back_s is not None
    return back_s - START_S


@pytest.mark.parametrize("method", ["suspend", "delete", "leader"])
def test_restart_machine__a_gang_is_replaced(method):
    sim = Sim(method)
    before = {pod.uid for pod in sim.pods}
    sim.begin(RestartMethod.REPLACE)
    status = sim.run()
    assert status.phase is Phase.RECOVERED, story(sim)
    assert sim.ended is None
    assert not before & {pod.uid for pod in sim.pods}
    assert len(sim.pods) == sim.count
    assert (sim.suspended, sim.suspended_by) == (False, None)
    assert [restart.way for restart in status.restarts] == [RestartMethod.REPLACE]
    assert took_s(status) < 5, story(sim)


def test_restart_machine__a_gang_is_restarted_in_place():
    sim = Sim()
    before = {pod.uid for pod in sim.pods}
    sim.begin(RestartMethod.IN_PLACE)
    status = sim.run()
    assert status.phase is Phase.RECOVERED, story(sim)
    assert {pod.uid for pod in sim.pods} == before
    assert all(pod.restarts == 1 for pod in sim.pods)
    assert sim.version == 1, "the job object is not touched"
    assert took_s(status) < 4
    lost = status.lost
    assert lost is not None
    assert lost.shut_down_s is not None
    assert lost.reschedule_s is not None
    assert lost.first_progress_s is not None


def test_restart_machine__a_gang_that_its_kubelets_restart_is_left_to_them():
    sim = Sim()
    sim.begin_crash(0, 1, 2, 3)
    status = sim.run()
    assert status.phase is Phase.RECOVERED, story(sim)
    assert not any("Stop" in line for line in sim.log), story(sim)
    assert [restart.way for restart in status.restarts] == [RestartMethod.IN_PLACE]


@pytest.mark.parametrize("making_s", [0.5, 3.0, 9.0, 20.0])
def test_restart_budget__ranks_that_hang_after_a_crash_are_killed_once_no_container_is_being_made(
    making_s,
):
    sim = Sim(making_s=making_s, policy=FaultPolicy(restarts=RestartBudget(max=1)))
    sim.begin_crash(1)
    status = sim.run()
    assert status.phase is Phase.RECOVERED, story(sim)
    assert [restart.way for restart in status.restarts] == [RestartMethod.IN_PLACE]
    (stopped, *_) = [float(line.split()[0]) for line in sim.log if "n0 Stop" in line]
    assert stopped >= max(5.0, 0.5 + making_s)
    assert all(pod.restarts >= 1 for pod in sim.pods)


def test_restart_machine__a_pod_that_does_not_come_up_after_a_crash_leads_to_replacing():
    sim = Sim(making_s=1e9)
    sim.begin_crash(1)
    status = sim.run()
    assert status.phase is Phase.RECOVERED, story(sim)
    assert [restart.way for restart in status.restarts] == [
        RestartMethod.IN_PLACE,
        RestartMethod.REPLACE,
    ]
    assert any("pod j-1 did not start again" in line for line in sim.log)
    assert not any("Stop" in line for line in sim.log), story(sim)


def test_restart_machine__a_container_that_is_just_being_made_counts_as_restarted_once_it_runs():
    """A rank hangs while the kubelet restarts another: that one is not killed, and its count stays."""
    sim = Sim(making_s=3.0)
    for sim_pod in sim.pods:
        if sim_pod.index == 1:
            sim_pod.process, sim_pod.died_s = "dead", sim.now_s - 1.0
    sim.tick()
    assert [other_sim_pod.process for other_sim_pod in sim.pods].count("making") == 1
    sim.begin(RestartMethod.IN_PLACE)
    status = sim.run()
    assert status.phase is Phase.RECOVERED, story(sim)
    assert [restart.way for restart in status.restarts] == [RestartMethod.IN_PLACE]
    assert [other_sim_pod.restarts for other_sim_pod in sim.pods] == [1, 1, 1, 1]


@pytest.mark.parametrize("method", [RestartMethod.IN_PLACE, RestartMethod.REPLACE])
def test_restart_machine__nothing_trains_on_the_node_of_a_launcher(method):
    sim = Sim(launcher=0, agents=frozenset({"n0", "n1", "n9"}))
    sim.begin(method)
    status = sim.run()
    assert status.phase is Phase.RECOVERED, story(sim)
    assert "n9" in status.nodes


def test_restart_machine__a_node_that_does_not_answer_a_stop_leads_to_replacing():
    sim = Sim(deaf=frozenset({"n1"}))
    sim.begin(RestartMethod.IN_PLACE)
    status = sim.run()
    assert status.phase is Phase.RECOVERED, story(sim)
    assert [restart.way for restart in status.restarts] == [RestartMethod.REPLACE]
    assert all(pod.restarts == 0 for pod in sim.pods)
    assert any("n0 Resume" in line for line in sim.log), story(sim)


def test_restart_machine__without_agents_it_takes_the_grace_period():
    sim = Sim(agents=frozenset())
    sim.begin(RestartMethod.REPLACE)
    status = sim.run()
    assert status.phase is Phase.RECOVERED, story(sim)
    assert 30 < took_s(status) < 35
    assert "no agent" in status.message


def test_restart_machine__a_restart_that_does_not_help_escalates_to_the_end():
    sim = Sim(helps=False)
    sim.begin(RestartMethod.IN_PLACE)
    sim.run(100)
    status = sim.run(100)
    assert status.phase is Phase.RECOVERING, "no fault was reported again: nothing more is done"


def test_restart_machine__a_rank_in_state_d_is_reported_and_cordoned_and_waited_for():
    sim = Sim(stuck_index=1, thaw_s=200)
    sim.begin(RestartMethod.REPLACE)
    status = sim.run(100)
    assert status.phase is Phase.SHUTTING_DOWN
    assert "cannot be terminated: j-1 on n1" in status.message
    assert sim.cordoned == {"n1"}
    assert sim.suspended, "while the rank lives no new one may be started"
    assert sim.run(200).phase is Phase.RECOVERED, story(sim)
    assert not sim.suspended


def test_restart_machine__a_rank_in_state_d_is_deleted_by_force_only_by_policy():
    sim = Sim(stuck_index=1, policy=FaultPolicy(force_delete=True))
    sim.begin(RestartMethod.REPLACE)
    assert sim.run(100).phase is Phase.RECOVERED, story(sim)


def test_restart_machine__a_job_suspended_by_another_client_is_left_alone():
    sim = Sim()
    sim.begin(RestartMethod.REPLACE)
    sim.suspended = True
    status = sim.run()
    assert status.phase is Phase.FAILED
    assert "suspended by another client" in status.message
    assert (sim.suspended, sim.suspended_by) == (True, None)


def test_restart_machine__another_client_that_resumes_the_job_is_not_fought():
    sim = Sim("suspend", agents=frozenset())
    sim.begin(RestartMethod.REPLACE)
    for _ in range(8):
        sim.reconcile()
        sim.tick()
    assert sim.suspended
    sim.suspended = False
    versions = sim.version
    sim.reconcile()
    assert sim.suspended is False
    assert sim.version <= versions + 1, "only our own mark is taken away"
    assert sim.suspended_by is None


def test_restart_machine__an_unknown_step_of_another_version_fails_with_a_word():
    sim = Sim()
    sim.begin(RestartMethod.REPLACE)
    assert sim.status is not None
    sim.status = {**sim.status, "action": {**sim.status["action"], "step": "Fly"}}
    status = sim.run()
    assert status.phase is Phase.FAILED
    assert "Fly" in status.message


def cases() -> st.SearchStrategy[Sim]:
    return st.builds(
        Sim,
        method=st.sampled_from(["suspend", "delete", "leader"]),
        count=st.integers(2, 5),
        agents=st.sampled_from([frozenset(), frozenset({"n0"}), frozenset({"n0", "n1"})]),
        deaf=st.sampled_from([frozenset(), frozenset({"n0"}), frozenset({"n1"})]),
        stuck_index=st.sampled_from([None, None, None, 1]),
        thaw_s=st.just(120.0),
        crashes=st.sets(st.integers(1, 60), max_size=12),
        outages=st.lists(
            st.tuples(st.floats(0, 60), st.floats(1, 60)).map(lambda x: (x[0], x[0] + x[1])),
            max_size=2,
        ).map(tuple),
        policy=st.builds(FaultPolicy, restarts=st.builds(RestartBudget, max=st.integers(2, 4))),
    )


# a story of 1,000 ticks takes minutes to shrink, and shows enough as it is
@settings(
    max_examples=2 * settings().max_examples,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Part.explicit, Part.reuse, Part.generate),
)
@given(sim=cases(), method=st.sampled_from([RestartMethod.IN_PLACE, RestartMethod.REPLACE]))
def test_restart_machine__whatever_breaks_off_nothing_is_left_half_done(sim, method):
    if method is RestartMethod.IN_PLACE and sim.agents != {"n0", "n1"}:
        method = RestartMethod.REPLACE
    sim.begin(method)
    status = sim.run(1500)
    said = story(sim)
    assert status.phase.is_over, said
    assert status.phase is Phase.RECOVERED, said
    assert (sim.suspended, sim.suspended_by) == (False, None), said
    assert all(pod.process != "stopped" for pod in sim.pods), said
    assert sim.ended is None, said
    assert len([pod for pod in sim.pods if pod.deleted_s is None]) == sim.count, said
    assert len(status.restarts) <= sim.policy.restarts.max, said
    # each pod was made new at most once for each replacement that was counted
    replaced = sum(restart.way is RestartMethod.REPLACE for restart in status.restarts)
    assert sum(" new u" in line for line in sim.log) <= sim.count * (replaced + 1), said
    killed = sum(restart.way is RestartMethod.IN_PLACE for restart in status.restarts)
    assert all(pod.restarts <= killed for pod in sim.pods), said
    assert dataclasses.is_dataclass(status)


def gang_pods(count: int, **labels: str) -> list[GangPod]:
    pods = (pod(number) for number in range(count))
    return [
        GangPod(replace(other_pod, labels={"job": "j", "index": other_pod.name} | labels))
        for other_pod in pods
    ]


@pytest.mark.parametrize(("count", "parts"), [(0, 0), (1, 0), (127, 0), (128, 2), (1000, 8)])
def test_shares__a_large_gang_is_deleted_in_parts_that_hold_every_pod_once(
    count: int, parts: int
) -> None:
    pods = gang_pods(count)
    found = replacement.shares(pods)
    assert len(found) == parts
    assert {label for label, _ in found} <= {"index"}
    meant = sorted(value for _, values in found for value in values)
    assert meant == (sorted(gang_pod.pod.name for gang_pod in pods) if parts else [])


def test_shares__a_gang_whose_pods_cannot_be_distinguished_is_deleted_at_once() -> None:
    pods = [
        replace(gang_pod, pod=replace(gang_pod.pod, labels={"job": "j"}))
        for gang_pod in gang_pods(200)
    ]
    pods[0] = replace(pods[0], pod=replace(pods[0].pod, labels={"job": "j", "odd": "1"}))
    assert replacement.shares(pods) == ()


def test_restart_machine__an_incident_says_what_was_kept_and_where() -> None:
    sim = Sim()
    sim.begin(RestartMethod.IN_PLACE)
    status = sim.run()
    assert status.phase is Phase.RECOVERED
    assert set(status.bundles) == {"n0:/state/inc-1-stop", "n1:/state/inc-1-stop"}
    replaced = Sim()
    replaced.begin(RestartMethod.REPLACE)
    kept = {"n0:/state/inc-1-snapshot-replace", "n1:/state/inc-1-snapshot-replace"}
    assert set(replaced.run().bundles) == kept
    replaced = Sim(agents=frozenset())
    replaced.begin(RestartMethod.REPLACE)
    assert replaced.run().bundles == ()
