"""The ranks of a gang are killed together or not at all, however late the controller continues; in a simulated cluster.

An agent resumes the ranks that it stopped when the order to stop expires. Nodes hear of an order at different moments.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from kcover_ebpf.api.incident import Phase, RestartMethod
from kcover_ebpf.gang.gang_input import GangVerdict
from kcover_ebpf.model.verdict import Cause, Verdict, VerdictKind
from kcover_ebpf.recovery.restart import context
from kcover_ebpf.tunables.recovery import LONGEST_STOP_S, STOP_EXPIRES_S
from tests.unit.support.simulated_cluster import Sim
from tests.unit.support.simulated_world import START_S, TICK_S

IN_PLACE, REPLACE = RestartMethod.IN_PLACE, RestartMethod.REPLACE


@dataclass
class JudgedSim(Sim):
    """A cluster in which the reports of a gang say this."""

    kind: VerdictKind = VerdictKind.HUNG

    def world(self) -> context.RestartInput:
        verdict = Verdict(
            job="j",
            incident="i",
            kind=self.kind,
            cause=Cause.STOPPED if self.kind.is_fault else Cause.TRAINING,
            time_s=self.now_s,
            since_s=START_S - 60,
        )
        return replace(super().world(), gang_verdict=GangVerdict(verdict))


def continued_after(seconds: float, kind: VerdictKind = VerdictKind.HUNG) -> JudgedSim:
    """A controller begins a restart in place, and the next one continues so many seconds later."""
    sim = JudgedSim(outages=(), kind=kind)
    sim.begin(IN_PLACE)
    while sim.now_s - START_S < seconds:
        sim.tick()
    sim.reconcile()
    return sim


def until(sim: Sim, seconds: float, deaf: frozenset[str]) -> None:
    """Let time pass until so many seconds after the start; agents of `deaf` hear nothing."""
    sim.deaf = deaf
    while sim.now_s - START_S < seconds:
        sim.tick()
    sim.deaf = frozenset()


@pytest.mark.parametrize("seconds", [LONGEST_STOP_S, 9.5, STOP_EXPIRES_S, 30.0])
def test_in_place__a_controller_that_continues_too_late_ends_no_rank(seconds: float) -> None:
    sim = continued_after(seconds)
    assert sim.read().action is not None
    sim.tick()
    until(sim, max(seconds, STOP_EXPIRES_S) + TICK_S, deaf=frozenset({"n1"}))
    assert {pod.process for pod in sim.pods} == {"running"}
    assert {pod.restarts for pod in sim.pods} == {0}, sim.log
    status = sim.run()
    assert status.phase is Phase.RECOVERED, sim.log
    assert [restart.way for restart in status.restarts] == [REPLACE]
    noticed = f"the controller noticed {seconds:.1f} s after the order that all ranks are stopped"
    assert any(noticed in (moment.text or "") for moment in status.timeline)


def test_in_place__an_order_to_kill_reaches_every_node_before_its_stop_ends() -> None:
    sim = continued_after(LONGEST_STOP_S - TICK_S)
    until(sim, STOP_EXPIRES_S - 2 * TICK_S, deaf=frozenset({"n1"}))
    status = sim.run()
    assert status.phase is Phase.RECOVERED, sim.log
    assert [restart.way for restart in status.restarts] == [IN_PLACE]
    assert {pod.restarts for pod in sim.pods} == {1}


def test_in_place__ranks_that_work_again_meanwhile_are_left_alone() -> None:
    sim = continued_after(3600.0, VerdictKind.WORKING)
    status = sim.run()
    assert status.phase is Phase.OBSERVED, sim.log
    assert status.restarts == ()
    assert {(pod.process, pod.restarts) for pod in sim.pods} == {("running", 0)}
    assert (sim.version, sim.suspended) == (1, False), "the job object is not touched"
