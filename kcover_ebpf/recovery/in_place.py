"""The steps of a restart in place: stop every rank, and only when all nodes have said so, kill.

A stopped rank cannot see its peer die and leave with another code. Whatever goes wrong before the
kill ends in SIGCONT, by order and, without any order, by the agents' own clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kcover_ebpf.api.fault_report import AckResult
from kcover_ebpf.api.incident import Phase, RestartMethod
from kcover_ebpf.api.order import Verb
from kcover_ebpf.recovery.machine import RestartContext, Transition, escalate, has_restarted, start
from kcover_ebpf.recovery.steps import Step
from kcover_ebpf.tunables.recovery import (
    CLOCKS_APART_S,
    KUBELET_RESTART_S,
    LONGEST_STOP_S,
    PODS_CHECKED_S,
    RESTARTED_BY_ITSELF_S,
    RESUME_S,
    STOP_EACH_S,
    STOP_S,
)


def stop(turn: RestartContext) -> Transition:
    """Wait until all nodes have stopped their ranks."""
    acks = _acks(turn)
    bad = sorted(node for node, result in acks.items() if result is not AckResult.DONE)
    waiting = sorted(set(turn.status.nodes) - set(acks))
    lost = _lost(turn)
    limit_s = min(STOP_S + STOP_EACH_S * len(turn.status.nodes), LONGEST_STOP_S)
    if bad or lost or (waiting and turn.elapsed_s >= limit_s):
        why = lost or (
            f"node {bad[0]} could not stop its ranks"
            if bad
            else f"node {waiting[0]} did not stop its ranks within {limit_s:.1f} s"
        )
        text = f"in-place restart aborted, resuming ranks: {why}"
        status = turn.go(Step.RESUME, text, detail=replace(turn.detail, why=why))
        return Transition(turn.order(status, Verb.RESUME))
    if waiting:
        return Transition(wake_s=limit_s - turn.elapsed_s)
    text = f"in place: all ranks on {len(turn.status.nodes)} nodes are stopped; killing them"
    status = turn.go(Step.KILL, text)
    if not status.restarts:
        # what the kubelets began after a crash is one restart with what we add to it
        status = status.begin(RestartMethod.IN_PLACE, turn.world.now_s)
    return Transition(turn.order(status, Verb.KILL))


def resume(turn: RestartContext) -> Transition:
    """Undo a stop that is not followed by a kill."""
    waiting = set(turn.status.nodes) - set(_acks(turn))
    if waiting and turn.elapsed_s < RESUME_S:
        return Transition(wake_s=RESUME_S - turn.elapsed_s)
    return Transition(escalate(turn, turn.detail.why or "the ranks could not be stopped"))


def kill(turn: RestartContext) -> Transition:
    """Wait until every pod has restarted where it is."""
    text = turn.detail.restarts
    live = turn.world.live
    lost = _lost(turn)
    if lost:
        return Transition(escalate(turn, lost))
    back = [each for each in live if has_restarted(each, text)]
    if len(back) == len(live):
        if all(each.pod.ready for each in live):
            return _returned(turn, "in place: all pods are running again")
        return Transition(wake_s=PODS_CHECKED_S)
    if turn.elapsed_s >= KUBELET_RESTART_S:
        missing = next(each.pod.name for each in live if each not in back)
        return Transition(escalate(turn, f"pod {missing} did not restart in place"))
    return Transition(wake_s=KUBELET_RESTART_S - turn.elapsed_s)


def settle(turn: RestartContext) -> Transition:
    """After a crash: the kubelets restart the gang by themselves; wait for it, and help if they do not."""
    live = turn.world.live
    lost = _lost(turn)
    if lost:
        return Transition(escalate(turn, lost))
    since_s = turn.detail.crashed_s - CLOCKS_APART_S
    back = [each for each in live if each.started_s is not None and each.started_s >= since_s]
    if len(back) == len(live) and all(each.pod.ready for each in live):
        return _returned(turn, "the kubelets restarted every pod in place")
    if turn.elapsed_s < RESTARTED_BY_ITSELF_S:
        return Transition(wake_s=RESTARTED_BY_ITSELF_S - turn.elapsed_s)
    behind = next((each.pod.name for each in live if each not in back), "")
    if not behind:
        # restarted, and not ready yet: init containers may wait for each other
        return Transition(wake_s=PODS_CHECKED_S)
    making = next((each.pod.name for each in live if each.started_s is None), "")
    if making and turn.elapsed_s < KUBELET_RESTART_S:
        # containers that are killed while they are made end their pod, and with it the job
        return Transition(wake_s=KUBELET_RESTART_S - turn.elapsed_s)
    if making:
        return Transition(escalate(turn, f"pod {making} did not start again"))
    return Transition(
        start(turn, RestartMethod.IN_PLACE, f"pod {behind} did not restart with the others")
    )


def _returned(turn: RestartContext, text: str) -> Transition:
    detail = replace(turn.detail, returned_s=turn.world.now_s)
    return Transition(turn.go(Step.PROGRESS, text, Phase.RECOVERING, detail))


def _acks(turn: RestartContext) -> Mapping[str, AckResult]:
    order = turn.status.order
    return turn.world.acks(order.id) if order is not None else {}


def _lost(turn: RestartContext) -> str | None:
    """Why the gang cannot be restarted in place any more; None while it can."""
    failed = next((each for each in turn.world.pods if each.pod.phase == "Failed"), None)
    if failed is not None:
        return f"pod {failed.pod.name} failed"
    if turn.world.top is not None and turn.world.top.ended:
        return f"the job is {turn.world.top.ended}"
    if len(turn.world.live) < turn.detail.pods:
        return "a pod is gone"
    return None
