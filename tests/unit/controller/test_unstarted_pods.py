"""The incident of a gang whose ranks wait for a pod that does not run: it opens soon, and ends when the pod runs."""

from __future__ import annotations

from types import SimpleNamespace

from kcover_ebpf.api.job_kinds import GangId
from kcover_ebpf.api.pod_waits import PodWait
from kcover_ebpf.api.pods import Container, ContainerKind, Pod
from kcover_ebpf.controller.context_builder import ContextBuilder
from kcover_ebpf.model.silence_summary import StartWait
from kcover_ebpf.model.verdict import Cause, Certainty, VerdictKind
from kcover_ebpf.recovery.restart.context import GangPod
from tests.unit.support.kept_incidents import KEY, LABELS, NOW_S, World

PULL = PodWait("ErrImagePull", "container main")


def pod(index: int, wait: PodWait | None = None) -> Pod:
    started_s = None if wait is not None else NOW_S - 30
    main = Container("main", ContainerKind.MAIN, started_s=started_s)
    phase = "Pending" if wait is not None else "Running"
    name, uid, node = f"j-{index}", f"u{index}", f"n{index}"
    return Pod(
        "ns", name, uid, node, phase, NOW_S - 40, None, LABELS, {}, (), (main,), wait=wait
    )  # fmt: skip


def waiting(*pods: Pod) -> World:
    """A gang of two pods; the rank of the first has waited for 3 s for the other."""
    world = World(*pods)
    world.report(trained=False, start_wait=StartWait(3.0, 1, 2))
    return world


def pass_by(world: World, seconds: float) -> None:
    """So many seconds, with a pass whenever the controller asks for one."""
    end_s = world.now_s + seconds
    while world.now_s < end_s:
        world.now_s += min(world.jobs.reconcile(KEY) or 5.0, 5.0) or 0.1


def test_reconcile__a_pod_that_does_not_run_is_said_within_2_s_and_taken_back() -> None:
    world = waiting(pod(0), pod(1, PULL))
    pass_by(world, 2.0)
    (status,) = world.statuses
    verdict = status.verdict
    assert verdict is not None
    assert (verdict.kind, verdict.cause) == (VerdictKind.UNKNOWN, Cause.MISSING_RANK)
    assert (verdict.certainty, verdict.acts_at_s) == (Certainty.SUSPECTED, None)
    assert "in pod j-1 on n1: pod j-1 does not run: ErrImagePull" in status.message
    pass_by(world, 60.0)
    assert [status.is_closed for status in world.statuses] == [False], "it does not run yet"
    world.pods = tuple(GangPod(pod(index)) for index in (0, 1))
    pass_by(world, 12.0)
    assert [(status.is_closed, status.restarts) for status in world.statuses] == [(True, ())]


def test_reconcile__a_start_of_which_all_pods_run_opens_nothing() -> None:
    world = waiting(pod(0), pod(1))
    pass_by(world, 60.0)
    assert world.statuses == []


def test_is_suspected__pods_are_asked_for_only_where_ranks_wait_to_begin() -> None:
    world = World()
    contexts = ContextBuilder(world.store, SimpleNamespace())  # type: ignore[arg-type]
    asked: list[GangId] = []

    def pods_of(gang_id: GangId) -> tuple[GangPod, ...] | None:
        asked.append(gang_id)
        return None

    world.report(trained=False)
    assert not contexts.is_suspected(KEY, pods_of)
    assert asked == []
    world.report(trained=False, start_wait=StartWait(3.0, 1, 2))
    assert contexts.is_suspected(KEY, pods_of), "while they are not known"
    assert asked == [KEY]
