"""The steps that replace all pods of a gang: suspend the job, await the end of the old pods, let the job make new ones.

Never a kill before the deletion is marked: it would be counted as a failure. Never a new pod before the
old ones are gone: it would fail the job, or share a device with a rank that still lives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kcover_ebpf.api.fault_report import AckResult
from kcover_ebpf.api.incident import Phase
from kcover_ebpf.api.order import Verb
from kcover_ebpf.diagnosis.verdict import Cause
from kcover_ebpf.recovery.context import (
    Command,
    Cordon,
    Delete,
    DeleteAll,
    GangPod,
    Suspension,
    replace_method_of,
)
from kcover_ebpf.recovery.machine import (
    RestartContext,
    Transition,
    escalate,
    fail,
    preflight_of,
)
from kcover_ebpf.recovery.methods import ReplaceMethod
from kcover_ebpf.recovery.steps import Step
from kcover_ebpf.tunables.recovery import (
    CALL_CHECKED_S,
    DELETION_CHECKED_S,
    GRACE_MARGIN_S,
    JOB_CONTROLLER_ACTS_S,
    JOB_CONTROLLER_S,
    LARGE_GANG_PODS,
    NEW_PODS_CHECKED_S,
    ORDER_RENEWED_BEFORE_S,
    PODS_PER_REQUEST,
    REQUESTS_AT_ONCE,
    SLOW_RESCHEDULE_S,
    STUCK_CHECKED_S,
)


def suspend(turn: RestartContext) -> Transition:
    """Suspend the job; the annotation in the same request distinguishes ours from that of another client."""
    top = turn.world.top
    if top is None or top.target is None:
        return Transition(fail(turn, "the job is gone"))
    if top.ended:
        return Transition(fail(turn, f"the job ended by itself ({top.ended})"))
    if top.target.suspended and top.target.suspended_by == turn.mark:
        return Transition(
            turn.go(
                Step.TERMINATE, "replace: the job is suspended; waiting for its pods to be deleted"
            )
        )
    if top.target.suspended:
        who = top.target.suspended_by or "another client"
        return Transition(fail(turn, f"the job was suspended by {who}; it is left unchanged"))
    return Transition(
        calls=(Suspension(top.target, suspended=True), *_cordon(turn)), wake_s=CALL_CHECKED_S
    )


def terminate(turn: RestartContext) -> Transition:
    """Wait until every pod is marked for deletion."""
    live, marked = turn.world.live, [each for each in turn.world.pods if each.is_leaving]
    if _let_go(turn):
        return Transition(turn.go(Step.RELEASE, "replace: another client resumed the job"))
    if not live:
        return _gone_next(turn)
    if turn.elapsed_s >= JOB_CONTROLLER_S:
        return Transition(
            turn.go(
                Step.ABANDON, f"the controller of the job does not delete pod {live[0].pod.name}"
            )
        )
    if len(live) + len(marked) > LARGE_GANG_PODS and marked:
        return Transition(
            calls=(DeleteAll(turn.selector, shares(live)),), wake_s=DELETION_CHECKED_S
        )
    return Transition(wake_s=JOB_CONTROLLER_S - turn.elapsed_s)


def shares(pods: Sequence[GangPod]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The pods in several parts, by the label that distinguishes most of them; empty where one request will do."""
    wanted = min(len(pods) // PODS_PER_REQUEST, REQUESTS_AT_ONCE)
    common = set.intersection(*(set(each.pod.labels) for each in pods)) if pods else set()
    values = {label: sorted({each.pod.labels[label] for each in pods}) for label in sorted(common)}
    label = max(values, key=lambda each: len(values[each]), default="")
    wanted = min(wanted, len(values.get(label, ())))
    if wanted < 2:
        return ()
    return tuple((label, tuple(values[label][part::wanted])) for part in range(wanted))


def delete(turn: RestartContext) -> Transition:
    """Delete the pods of a kind that makes them again by itself."""
    top = turn.world.top
    if top is None:
        return Transition(fail(turn, "the job was deleted"))
    if top.ended:
        return Transition(fail(turn, f"the job ended by itself ({top.ended})"))
    old = [each for each in turn.world.live if turn.is_old(each)]
    if not old:
        return _gone_next(turn)
    method = replace_method_of(top)
    if method is ReplaceMethod.COMMAND and top.version <= turn.detail.version:
        return Transition(
            calls=(Command(_command_name(turn), top.ref), *_cordon(turn)), wake_s=DELETION_CHECKED_S
        )
    if method is ReplaceMethod.COMMAND and turn.elapsed_s < JOB_CONTROLLER_ACTS_S:
        return Transition(wake_s=JOB_CONTROLLER_ACTS_S - turn.elapsed_s)
    if method is ReplaceMethod.LEADER and top.row is not None and top.row.leader is not None:
        key, value = top.row.leader
        leaders = [each for each in old if each.pod.labels.get(key) == value]
        if leaders:
            return Transition(
                calls=(_delete(leaders, foreground=True), *_cordon(turn)), wake_s=CALL_CHECKED_S
            )
        if turn.elapsed_s < JOB_CONTROLLER_ACTS_S:
            return Transition(wake_s=JOB_CONTROLLER_ACTS_S - turn.elapsed_s)
    return Transition(calls=(_delete(old), *_cordon(turn)), wake_s=CALL_CHECKED_S)


def _delete(pods: list[GangPod], foreground: bool = False) -> Delete:
    named = tuple((each.pod.name, each.pod.uid) for each in pods)
    return Delete(named, grace_s=1, foreground=foreground)


def _command_name(turn: RestartContext) -> str:
    return f"{turn.name}-{turn.action.attempt}"


def _gone_next(turn: RestartContext) -> Transition:
    status = turn.go(
        Step.GONE, "replace: every old pod is marked for deletion; killing what is left of them"
    )
    return Transition(turn.order(status, Verb.KILL_TERMINATING))


def gone(turn: RestartContext) -> Transition:
    """Wait until no old pod is left."""
    left = _left(turn)
    if not left:
        return _up_again(turn)
    if _let_go(turn):
        return Transition(turn.go(Step.RELEASE, "replace: another client resumed the job"))
    fresh = [each for each in left if each.is_live]
    if fresh and turn.world.top is not None and turn.world.top.target is not None:
        # a controller that was late made another pod before it saw the suspension
        return Transition(
            turn.go(Step.TERMINATE, f"replace: pod {fresh[0].pod.name} was created late")
        )
    limit_s = turn.detail.grace_s + GRACE_MARGIN_S
    if turn.elapsed_s >= limit_s:
        return Transition(turn.go(Step.STUCK, _why_left(turn, left)))
    order = turn.status.order
    if order is not None and turn.world.now_s >= order.expires_s - ORDER_RENEWED_BEFORE_S:
        # agents carry out an order once; one that was restarted meanwhile gets another
        count = turn.detail.renewed + 1
        action = turn.keep(replace(turn.detail, renewed=count))
        status = replace(turn.status, action=action)
        return Transition(turn.order(status, Verb.KILL_TERMINATING, f"-{count}"))
    wait_s = limit_s - turn.elapsed_s
    return Transition(wake_s=min(wait_s, 5.0))


def stuck(turn: RestartContext) -> Transition:
    """Pods whose processes cannot be killed: cordon; delete by force only where the policy says so, and it is safe."""
    left = _left(turn)
    if not left:
        return _up_again(turn)
    calls: list[Cordon | Delete] = []
    nodes = sorted({each.pod.node for each in _unkillable(turn, left)})
    if nodes:
        calls.append(Cordon(tuple(nodes), "a process on this node cannot be killed"))
    forced = [each for each in left if each.is_leaving and _is_fenced(turn, each)]
    if turn.policy.force_delete and forced:
        named = tuple((each.pod.name, each.pod.uid) for each in forced)
        calls.append(Delete(named, grace_s=0))
    return Transition(calls=tuple(calls), wake_s=STUCK_CHECKED_S)


def _unkillable(turn: RestartContext, left: Sequence[GangPod]) -> list[GangPod]:
    """Pods that still run although their kubelet, which answers, had all the time to end them."""
    return [each for each in left if not each.pod.ended and each.pod.node in turn.world.ready]


def _is_fenced(turn: RestartContext, each: GangPod) -> bool:
    """True if no rank of the pod can continue computing beside the one that takes its place.

    Its kubelet answers and the agent there reports of this pod that none of its processes computes any more (what is in
    state D with a SIGKILL pending does nothing), or the node is marked to be out of service. A node that is only out of
    reach may run the rank for hours, and an order that was refused has killed nothing.
    """
    node, uid = each.pod.node, each.pod.uid
    acked = any(
        ack.result is AckResult.DONE
        and uid in ack.pods
        and turn.is_of(ack.order, Verb.KILL_TERMINATING)
        for seen in turn.world.reports
        for ack in seen.report.acks
        if seen.report.node == node
    )
    return node in turn.world.fenced or (acked and node in turn.world.ready & turn.world.agents)


def _why_left(turn: RestartContext, left: Sequence[GangPod]) -> str:
    alive = _unkillable(turn, left)
    lost = [each for each in left if not each.pod.ended and each not in alive]
    kept = [each for each in left if each.pod.ended]
    parts = []
    if alive:
        parts.append(
            f"these pods cannot be terminated: {_names(alive)}; their processes may be stuck in the kernel (state D)"
        )
    if lost:
        parts.append(
            f"it is unknown whether these pods still run: {_names(lost)}; their nodes are not ready. If a machine is "
            "powered off, declare it: kubectl taint node NAME node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
        )
    if kept:
        whose = sorted({name for each in kept for name in each.pod.finalizers})
        why = f"kept by finalizers ({', '.join(whose[:4])})" if whose else "not removed yet"
        parts.append(f"these pods have ended and are {why}: {_names(kept)}")
    return "; ".join(parts)


def _names(pods: Sequence[GangPod]) -> str:
    return ", ".join(f"{each.pod.name} on {each.pod.node}" for each in pods[:8])


def pause(turn: RestartContext) -> Transition:
    """The pause that the policy wants between restarts of one job."""
    if turn.elapsed_s < turn.detail.pause_s:
        return Transition(wake_s=turn.detail.pause_s - turn.elapsed_s)
    return Transition(turn.go(Step.RELEASE, "replace: resuming the job"))


def release(turn: RestartContext) -> Transition:
    """Let the job continue, if it is still suspended by us."""
    top = turn.world.top
    if top is None:
        return Transition(fail(turn, "the job is gone"))
    if top.target is not None and top.target.suspended_by == turn.mark:
        return Transition(calls=(Suspension(top.target, suspended=False),), wake_s=CALL_CHECKED_S)
    return Transition(turn.go(Step.RETURN, "replace: the job is resumed; waiting for its new pods"))


def back(turn: RestartContext) -> Transition:
    """Wait until as many new pods run as there were."""
    top = turn.world.top
    if top is None:
        return Transition(fail(turn, "the job is gone"))
    if top.ended:
        return Transition(fail(turn, f"the job is {top.ended}"))
    new = [
        each for each in turn.world.live if turn.detail.before_s is None or not turn.is_old(each)
    ]
    ready = [each for each in new if each.pod.ready]
    if len(ready) == len(new) and len(new) >= max(1, turn.detail.pods):
        detail = replace(turn.detail, returned_s=turn.world.now_s)
        return Transition(
            turn.go(
                Step.PROGRESS,
                "replace: all pods are running again",
                Phase.RECOVERING,
                detail,
            )
        )
    waiting = preflight_of(turn.world)
    if waiting is not None and waiting.pod_uid in {each.pod.uid for each in new}:
        return Transition(escalate(turn, f"node {waiting.node} also failed its preflight"))
    if turn.elapsed_s >= SLOW_RESCHEDULE_S and not turn.detail.is_slow:
        text = f"replace: {len(ready)} of {turn.detail.pods} pods are running after {SLOW_RESCHEDULE_S:.0f} s"
        return Transition(turn.go(Step.RETURN, text, detail=replace(turn.detail, is_slow=True)))
    return Transition(wake_s=NEW_PODS_CHECKED_S)


def abandon(turn: RestartContext) -> Transition:
    """The job's own controller does not work: give the job back as it was."""
    top = turn.world.top
    if top is not None and top.target is not None and top.target.suspended_by == turn.mark:
        return Transition(calls=(Suspension(top.target, suspended=False),), wake_s=CALL_CHECKED_S)
    return Transition(fail(turn, f"the job could not be replaced: {turn.status.message}"))


def final_stop(turn: RestartContext) -> Transition:
    """A job that crashes again and again under a rule that restarts it for ever: suspend it for good, and say so."""
    top = turn.world.top
    if top is None or top.ended:
        return Transition(fail(turn, f"the job is {top.ended if top else 'gone'}"))
    if top.target is None:
        return Transition(fail(turn, f"{turn.action.reason}; this kind cannot be suspended"))
    if top.target.suspended:
        return Transition(
            fail(turn, f"{turn.action.reason}; the job stays suspended until it is resumed by hand")
        )
    return Transition(calls=(Suspension(top.target, suspended=True),), wake_s=CALL_CHECKED_S)


def _up_again(turn: RestartContext) -> Transition:
    top = turn.world.top
    if top is None or top.target is None:
        return Transition(
            turn.go(Step.RETURN, "replace: the old pods are gone; waiting for new ones")
        )
    if turn.detail.pause_s > 0:
        text = f"replace: the old pods are gone; pausing for {turn.detail.pause_s:g} s"
        return Transition(turn.go(Step.PAUSE, text))
    return Transition(turn.go(Step.RELEASE, "replace: the old pods are gone; resuming the job"))


def _left(turn: RestartContext) -> list[GangPod]:
    suspendable = turn.world.top is not None and turn.world.top.target is not None
    pods = turn.world.pods
    if suspendable:
        return [each for each in pods if each.is_leaving or each.is_live]
    return [each for each in pods if turn.is_old(each) and (each.is_leaving or each.is_live)]


def _let_go(turn: RestartContext) -> bool:
    """True if another client resumed the job that we had suspended."""
    target = turn.world.top.target if turn.world.top is not None else None
    return target is not None and not target.suspended


def _cordon(turn: RestartContext) -> tuple[Cordon, ...]:
    node = turn.detail.elsewhere
    if not node:
        return ()
    if turn.status.cause is Cause.PREFLIGHT:
        return (Cordon((node,), "a job was not started there: the node failed its preflight"),)
    return (Cordon((node,), "two restarts of a job made no progress with this node"),)
