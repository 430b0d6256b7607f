"""The steps that replace all pods of a gang: suspend the job, wait for the end of the old pods, resume the job.

No pod is killed before its deletion is marked: that would be counted as a failure. No new pod is created before the old
ones are gone: it would fail the job, or share a device with a rank that still lives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kcover_ebpf.api.incident import Phase, RestartMethod
from kcover_ebpf.api.job_kinds import NO_LABELS
from kcover_ebpf.api.order import Verb
from kcover_ebpf.model.verdict import Cause
from kcover_ebpf.recovery.restart import stuck
from kcover_ebpf.recovery.restart.context import (
    Command,
    Cordon,
    Delete,
    DeleteAll,
    GangPod,
    Suspension,
    replace_method_of,
)
from kcover_ebpf.recovery.restart.machine import (
    RestartContext,
    Transition,
    escalate,
    fail,
    preflight_of,
)
from kcover_ebpf.recovery.restart.methods import ReplaceMethod
from kcover_ebpf.recovery.restart.steps import Step
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
    PROVEN_S,
    REQUESTS_AT_ONCE,
    SLOW_RESCHEDULE_S,
    STUCK_CHECKED_S,
)


def suspend(context: RestartContext) -> Transition:
    """Suspend the job; the annotation in the same request distinguishes ours from that of another client."""
    top = context.world.top
    if top is None or top.target is None:
        return Transition(fail(context, "the job is gone"))
    if top.ended:
        return Transition(fail(context, f"the job ended by itself ({top.ended})"))
    if top.target.suspended and top.target.suspended_by == context.mark:
        text = "replace: the job is suspended; waiting for its pods to be deleted"
        # the order to save evidence: an agent may see no version of the Incident but the last
        return Transition(replace(context.go(Step.TERMINATE, text), order=context.status.order))
    if top.target.suspended:
        who = top.target.suspended_by or "another client"
        return Transition(fail(context, f"the job was suspended by {who}; it is left unchanged"))
    return Transition(
        calls=(Suspension(top.target, suspended=True), *cordon(context)), wake_s=CALL_CHECKED_S
    )


def terminate(context: RestartContext) -> Transition:
    """Wait until every pod is marked for deletion."""
    live, marked = context.world.live, [pod for pod in context.world.pods if pod.is_leaving]
    if _let_go(context):
        return Transition(context.go(Step.RELEASE, "replace: another client resumed the job"))
    if not live:
        return _gone_next(context)
    if context.elapsed_s >= JOB_CONTROLLER_S:
        return Transition(
            context.go(
                Step.ABANDON, f"the controller of the job does not delete pod {live[0].pod.name}"
            )
        )
    by_labels = not NO_LABELS & set(context.selector)
    if len(live) + len(marked) > LARGE_GANG_PODS and marked and by_labels:
        return Transition(
            calls=(DeleteAll(context.selector, shares(live)),), wake_s=DELETION_CHECKED_S
        )
    return Transition(wake_s=JOB_CONTROLLER_S - context.elapsed_s)


def shares(pods: Sequence[GangPod]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The pods in several parts, by the label that distinguishes most of them; empty if one request is enough."""
    wanted = min(len(pods) // PODS_PER_REQUEST, REQUESTS_AT_ONCE)
    common = set.intersection(*(set(pod.pod.labels) for pod in pods)) if pods else set()
    values = {label: sorted({pod.pod.labels[label] for pod in pods}) for label in sorted(common)}
    label = max(values, key=lambda value: len(values[value]), default="")
    wanted = min(wanted, len(values.get(label, ())))
    if wanted < 2:
        return ()
    return tuple((label, tuple(values[label][part::wanted])) for part in range(wanted))


def delete(context: RestartContext) -> Transition:
    """Delete the pods of a kind that recreates them by itself."""
    top = context.world.top
    if top is None:
        return Transition(fail(context, "the job was deleted"))
    if top.ended:
        return Transition(fail(context, f"the job ended by itself ({top.ended})"))
    old = [pod for pod in context.world.live if context.is_old(pod)]
    if not old:
        return _gone_next(context)
    method = replace_method_of(top)
    if method is ReplaceMethod.COMMAND and top.version <= context.detail.version:
        return Transition(
            calls=(Command(_command_name(context), top.ref), *cordon(context)),
            wake_s=DELETION_CHECKED_S,
        )
    if method is ReplaceMethod.COMMAND and context.elapsed_s < JOB_CONTROLLER_ACTS_S:
        return Transition(wake_s=JOB_CONTROLLER_ACTS_S - context.elapsed_s)
    if method is ReplaceMethod.LEADER and top.method is not None and top.method.leader is not None:
        key, value = top.method.leader
        leaders = [pod for pod in old if pod.pod.labels.get(key) == value]
        if leaders:
            return Transition(
                calls=(_delete(leaders, foreground=True), *cordon(context)), wake_s=CALL_CHECKED_S
            )
        if context.elapsed_s < JOB_CONTROLLER_ACTS_S:
            return Transition(wake_s=JOB_CONTROLLER_ACTS_S - context.elapsed_s)
    return Transition(calls=(_delete(old), *cordon(context)), wake_s=CALL_CHECKED_S)


def _delete(pods: list[GangPod], foreground: bool = False) -> Delete:
    named = tuple((pod.pod.name, pod.pod.uid) for pod in pods)
    return Delete(named, grace_s=1, foreground=foreground)


def _command_name(context: RestartContext) -> str:
    return f"{context.name}-{context.action.attempt}"


def _gone_next(context: RestartContext) -> Transition:
    status = context.go(
        Step.GONE, "replace: every old pod is marked for deletion; killing what is left of them"
    )
    return Transition(context.order(status, Verb.KILL_TERMINATING))


def gone(context: RestartContext) -> Transition:
    """Wait until no old pod is left."""
    left = stuck.left(context)
    if not left:
        return up_again(context)
    if _let_go(context):
        return Transition(context.go(Step.RELEASE, "replace: another client resumed the job"))
    fresh = [pod for pod in left if pod.is_live]
    if fresh and context.world.top is not None and context.world.top.target is not None:
        # a late controller created another pod before it saw the suspension
        return Transition(
            context.go(Step.TERMINATE, f"replace: pod {fresh[0].pod.name} was created late")
        )
    limit_s = context.detail.grace_s + GRACE_MARGIN_S
    if stuck.may_stay(context, left):
        limit_s = PROVEN_S
    if context.elapsed_s >= limit_s:
        status = context.go(Step.STUCK, stuck.why_left(context, left))
        return Transition(replace(status, stuck=stuck.ladder(context, left)))
    order = context.status.order
    if order is not None and context.world.now_s >= order.expires_s - ORDER_RENEWED_BEFORE_S:
        # agents carry out an order once; one that was restarted meanwhile gets another order
        count = context.detail.renewed + 1
        action = context.keep(replace(context.detail, renewed=count))
        status = replace(context.status, action=action)
        return Transition(context.order(status, Verb.KILL_TERMINATING, f"-{count}"))
    wait_s = limit_s - context.elapsed_s
    return Transition(wake_s=min(wait_s, 5.0))


def wait_for_stuck(context: RestartContext) -> Transition:
    """Pods that do not go: escalate as `stuck` allows, and continue without those that cannot compute any more."""
    left = stuck.left(context)
    if not left or stuck.may_stay(context, left):
        transition = up_again(context)
        assert transition.status is not None
        return Transition(replace(transition.status, stuck=stuck.ladder(context, left)))
    seen = stuck.ladder(context, left)
    if seen != context.status.stuck:
        return Transition(replace(context.status, stuck=seen))
    return Transition(calls=stuck.calls(context, left), wake_s=STUCK_CHECKED_S)


def pause(context: RestartContext) -> Transition:
    """Wait for the pause that the policy requires between restarts of one job."""
    if context.elapsed_s < context.detail.pause_s:
        return Transition(wake_s=context.detail.pause_s - context.elapsed_s)
    return Transition(context.go(Step.RELEASE, "replace: resuming the job"))


def release(context: RestartContext) -> Transition:
    """Resume the job, if it is still suspended by us."""
    top = context.world.top
    if top is None:
        return Transition(fail(context, "the job is gone"))
    if top.target is not None and top.target.suspended_by == context.mark:
        return Transition(calls=(Suspension(top.target, suspended=False),), wake_s=CALL_CHECKED_S)
    return Transition(
        context.go(Step.RETURN, "replace: the job is resumed; waiting for its new pods")
    )


def back(context: RestartContext) -> Transition:
    """Wait until as many new pods run as there were."""
    top = context.world.top
    if top is None:
        return Transition(fail(context, "the job is gone"))
    if top.ended:
        return Transition(fail(context, f"the job is {top.ended}"))
    new = [
        pod
        for pod in context.world.live
        if context.detail.before_s is None or not context.is_old(pod)
    ]
    ready = [pod for pod in new if pod.pod.ready]
    if len(ready) == len(new) and len(new) >= max(1, context.detail.pods):
        detail = replace(context.detail, returned_s=context.world.now_s)
        return Transition(
            context.go(
                Step.PROGRESS,
                "all pods are running again",
                Phase.RECOVERING,
                detail,
            )
        )
    waiting = preflight_of(context.world)
    if waiting is not None and waiting.pod_uid in {pod.pod.uid for pod in new}:
        return Transition(escalate(context, f"node {waiting.node} also failed its preflight"))
    if context.elapsed_s >= SLOW_RESCHEDULE_S and not context.detail.is_slow:
        text = f"replace: {len(ready)} of {context.detail.pods} pods are running after {SLOW_RESCHEDULE_S:.0f} s"
        return Transition(
            context.go(Step.RETURN, text, detail=replace(context.detail, is_slow=True))
        )
    return Transition(wake_s=NEW_PODS_CHECKED_S)


def abandon(context: RestartContext) -> Transition:
    """The job's own controller does not work: resume the job as it was, and fail the restart."""
    top = context.world.top
    if top is not None and top.target is not None and top.target.suspended_by == context.mark:
        return Transition(calls=(Suspension(top.target, suspended=False),), wake_s=CALL_CHECKED_S)
    return Transition(fail(context, f"the job could not be replaced: {context.status.message}"))


def final_stop(context: RestartContext) -> Transition:
    """Suspend for good a job that crashes repeatedly under a rule that restarts it endlessly, and report that."""
    top = context.world.top
    if top is None or top.ended:
        return Transition(fail(context, f"the job is {top.ended if top else 'gone'}"))
    if top.target is None:
        return Transition(fail(context, f"{context.action.reason}; this kind cannot be suspended"))
    if top.target.suspended:
        return Transition(
            fail(
                context,
                f"{context.action.reason}; the job stays suspended until it is resumed by hand",
            )
        )
    return Transition(calls=(Suspension(top.target, suspended=True),), wake_s=CALL_CHECKED_S)


def up_again(context: RestartContext) -> Transition:
    """The next step once none of the old pods blocks a new one."""
    top = context.world.top
    if top is None or top.target is None:
        return Transition(
            context.go(Step.RETURN, "replace: the old pods are gone; waiting for new ones")
        )
    if context.detail.pause_s > 0:
        text = f"replace: the old pods are gone; pausing for {context.detail.pause_s:g} s"
        return Transition(context.go(Step.PAUSE, text))
    return Transition(context.go(Step.RELEASE, "replace: the old pods are gone; resuming the job"))


def _let_go(context: RestartContext) -> bool:
    """True if another client resumed the job that we had suspended."""
    target = context.world.top.target if context.world.top is not None else None
    return target is not None and not target.suspended


def cordon(context: RestartContext) -> tuple[Cordon, ...]:
    """Cordon of the node that new pods are to avoid; empty if there is none."""
    node = context.detail.elsewhere
    if not node:
        return ()
    if context.status.cause is Cause.PREFLIGHT:
        return (Cordon((node,), "a job was not started there: the node failed its preflight"),)
    if context.action.way is RestartMethod.HYBRID:
        return (Cordon((node,), f"a pod of a job moved away from it: {context.action.reason}"),)
    return (Cordon((node,), "two restarts of a job made no progress with this node"),)
