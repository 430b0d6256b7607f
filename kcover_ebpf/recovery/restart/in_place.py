"""The steps of a restart in place: stop every rank, and kill them only once all nodes have reported that.

A stopped rank cannot notice that its peer died and exit with another code. Any failure before the kill ends in SIGCONT,
by order or, without an order, by the agents' own clock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from kcover_ebpf.api.fault_report import AckResult
from kcover_ebpf.api.incident import Phase, RestartMethod
from kcover_ebpf.api.order import Verb
from kcover_ebpf.model.verdict import VerdictKind
from kcover_ebpf.recovery.restart import hybrid
from kcover_ebpf.recovery.restart.machine import (
    RestartContext,
    Transition,
    escalate,
    has_restarted,
    start,
)
from kcover_ebpf.recovery.restart.steps import Step
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


def stop(context: RestartContext) -> Transition:
    """Wait until all nodes have stopped their ranks."""
    acks, limit_s = context.acks, _limit_s(context)
    nodes = set(context.status.nodes) - _left_behind(context)
    why = _lost(context) or _why_not_stopped(context, nodes, acks)
    if why:
        text = f"in-place restart aborted, resuming ranks: {why}"
        status = context.go(Step.RESUME, text, detail=replace(context.detail, why=why))
        return Transition(context.order(status, Verb.RESUME))
    if not nodes <= set(acks):
        return Transition(wake_s=limit_s - context.elapsed_s)
    if context.detail.moved:
        return Transition(hybrid.begin(context))
    text = f"in place: all ranks on {len(context.status.nodes)} nodes are stopped; killing them"
    status = context.go(Step.KILL, text)
    if not status.restarts:
        # a restart that the kubelets began after a crash, and ours on top of it, count as one
        status = status.begin(RestartMethod.IN_PLACE, context.world.now_s)
    return Transition(context.order(status, Verb.KILL))


def _limit_s(context: RestartContext) -> float:
    """Seconds within which all nodes must have stopped their ranks."""
    return min(STOP_S + STOP_EACH_S * len(context.status.nodes), LONGEST_STOP_S)


def _why_not_stopped(
    context: RestartContext, nodes: Collection[str], acks: Mapping[str, AckResult]
) -> str | None:
    """Reason why the ranks on these nodes will not be stopped at the same time; None while they may be, or are."""
    bad = sorted(node for node in nodes if acks.get(node, AckResult.DONE) is not AckResult.DONE)
    waiting = sorted(node for node in nodes if node not in acks)
    elapsed_s, limit_s = context.elapsed_s, _limit_s(context)
    if bad:
        return f"node {bad[0]} could not stop its ranks"
    if waiting and elapsed_s >= limit_s:
        return f"node {waiting[0]} did not stop its ranks within {limit_s:.1f} s"
    if elapsed_s >= LONGEST_STOP_S:
        # on some nodes they may run again before an order to kill arrives, and only the others would end
        return (
            f"the controller noticed {elapsed_s:.1f} s after the order that all ranks are stopped"
        )
    return None


def resume(context: RestartContext) -> Transition:
    """Undo a stop that is not followed by a kill."""
    waiting = set(context.status.nodes) - set(context.acks)
    if waiting and context.elapsed_s < RESUME_S:
        return Transition(wake_s=RESUME_S - context.elapsed_s)
    if _work_again(context):
        text = "the ranks were resumed and work again: nothing was ended"
        return Transition(context.go(Step.DONE, text, Phase.OBSERVED))
    return Transition(escalate(context, context.detail.why or "the ranks could not be stopped"))


def kill(context: RestartContext) -> Transition:
    """Wait until every pod has restarted in place."""
    text = context.detail.restarts
    live = hybrid.staying(context)
    lost = _lost(context)
    if lost:
        return Transition(escalate(context, lost))
    back = [pod for pod in live if has_restarted(pod, text)]
    if len(back) == len(live):
        if all(pod.pod.ready for pod in live):
            if context.detail.moved:
                return Transition(hybrid.waits_for_moved(context))
            return _returned(context, "in place: all pods are running again")
        return Transition(wake_s=PODS_CHECKED_S)
    if context.elapsed_s >= KUBELET_RESTART_S:
        missing = next(pod.pod.name for pod in live if pod not in back)
        return Transition(escalate(context, f"pod {missing} did not restart in place"))
    return Transition(wake_s=KUBELET_RESTART_S - context.elapsed_s)


def settle(context: RestartContext) -> Transition:
    """After a crash: wait until the kubelets have restarted the gang by themselves, and help if they do not."""
    live = context.world.live
    lost = _lost(context)
    if lost:
        return Transition(escalate(context, lost))
    since_s = context.detail.crashed_s - CLOCKS_APART_S
    back = [pod for pod in live if pod.started_s is not None and pod.started_s >= since_s]
    if len(back) == len(live) and all(pod.pod.ready for pod in live):
        return _returned(context, "the kubelets restarted every pod in place")
    if context.elapsed_s < RESTARTED_BY_ITSELF_S:
        return Transition(wake_s=RESTARTED_BY_ITSELF_S - context.elapsed_s)
    behind = next((pod.pod.name for pod in live if pod not in back), "")
    if not behind:
        # restarted, and not ready yet: init containers may wait for each other
        return Transition(wake_s=PODS_CHECKED_S)
    making = next((pod.pod.name for pod in live if pod.started_s is None), "")
    if making and context.elapsed_s < KUBELET_RESTART_S:
        # containers that are killed while they are created end their pod, and with it the job
        return Transition(wake_s=KUBELET_RESTART_S - context.elapsed_s)
    if making:
        return Transition(escalate(context, f"pod {making} did not start again"))
    return Transition(
        start(context, RestartMethod.IN_PLACE, f"pod {behind} did not restart with the others")
    )


def _returned(context: RestartContext, text: str) -> Transition:
    detail = replace(context.detail, returned_s=context.world.now_s)
    return Transition(context.go(Step.PROGRESS, text, Phase.RECOVERING, detail))


def _work_again(context: RestartContext) -> bool:
    """True if the ranks work: their agents resumed them while no controller wrote."""
    gang_verdict, top = context.world.gang_verdict, context.world.top
    is_there = top is not None and not top.ended
    return (
        is_there and gang_verdict is not None and gang_verdict.verdict.kind is VerdictKind.WORKING
    )


def _left_behind(context: RestartContext) -> set[str]:
    """Nodes on which no pod stays: whether their agents obey does not matter."""
    moved = context.detail.moved_uids
    pods = context.world.live
    left = {pod.pod.node for pod in pods if pod.pod.uid in moved}
    return left - {pod.pod.node for pod in pods if pod.pod.uid not in moved}


def _lost(context: RestartContext) -> str | None:
    """Reason why the pods that stay can no longer be restarted in place; None while they can."""
    moved = context.detail.moved_uids
    failed = next(
        (
            pod
            for pod in context.world.pods
            if pod.pod.phase == "Failed" and pod.pod.uid not in moved
        ),
        None,
    )
    if failed is not None:
        return f"pod {failed.pod.name} failed"
    if context.world.top is not None and context.world.top.ended:
        return f"the job is {context.world.top.ended}"
    if len(hybrid.staying(context)) < context.detail.pods - len(moved):
        return "a pod is gone"
    return None
