"""The steps in which the pods on a faulty device or node move, and all others restart in place.

The others are stopped first, and killed once the moved pods have their new addresses: a rank that starts earlier would
find old addresses, or none. They keep their pod, its node, devices, volumes and page cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kcover_ebpf.api.fault_report import AckResult
from kcover_ebpf.api.incident import RestartMethod, Status
from kcover_ebpf.api.order import Verb
from kcover_ebpf.recovery.restart.context import Delete, Evict, GangPod
from kcover_ebpf.recovery.restart.machine import RestartContext, Transition, escalate
from kcover_ebpf.recovery.restart.methods import MovesBy
from kcover_ebpf.recovery.restart.replacement import cordon
from kcover_ebpf.recovery.restart.steps import Step
from kcover_ebpf.tunables.recovery import (
    ADDRESS_CHECKED_S,
    CALL_CHECKED_S,
    GRACE_MARGIN_S,
    MOVE_GRACE_S,
    MOVED_S,
    STOP_RENEWED_S,
)

_MOST_SERVICES = 12


def staying(context: RestartContext) -> tuple[GangPod, ...]:
    """Live pods that existed before the restart and do not move."""
    live = context.world.live
    moved = context.detail.moved_uids
    if not moved:
        return live
    return tuple(pod for pod in live if pod.pod.uid not in moved and context.is_old(pod))


def begin(context: RestartContext) -> Status:
    """The status once the ranks of all pods that stay are stopped."""
    moved = context.detail.moved_uids
    published = context.world.published
    services = sorted(service for service, uids in published.items() if uids & moved)
    detail = replace(context.detail, services=" ".join(services[:_MOST_SERVICES]))
    names = ", ".join(sorted(pod.pod.name for pod in context.world.live if pod.pod.uid in moved))
    text = f"hybrid: the ranks that stay are stopped; moving {names}"
    if detail.elsewhere:
        text += f" away from node {detail.elsewhere}"
    status = context.go(Step.MOVE, text, detail=detail)
    # agents keep ranks stopped until this order expires, unless it is renewed
    status = replace(status, order=context.status.order)
    return status.begin(RestartMethod.HYBRID, context.world.now_s)


def move(context: RestartContext) -> Transition:
    """Have the pods recreated elsewhere, and wait until the others know their addresses."""
    top, moved = context.world.top, context.detail.moved_uids
    if top is None or top.ended:
        return Transition(escalate(context, f"the job is {top.ended if top else 'gone'}"))
    if len(staying(context)) < context.detail.pods - len(moved):
        return Transition(escalate(context, "a pod that was to stay is gone"))
    old = [pod for pod in context.world.pods if pod.pod.uid in moved and not pod.pod.ended]
    alive = [pod for pod in old if pod.is_live]
    if old and context.elapsed_s >= GRACE_MARGIN_S:
        if alive:
            return Transition(_resume(context, alive[0].pod.name))
        return Transition(escalate(context, f"pod {old[0].pod.name} does not end"))
    if (stopped := _stopped_on(context)) is not None:
        return Transition(stopped)
    if alive:
        return Transition(calls=(*cordon(context), _call(top.moves, alive)), wake_s=CALL_CHECKED_S)
    fresh = [pod for pod in context.world.live if not context.is_old(pod)]
    if _is_reached(context, fresh) and _is_held(context):
        places = ", ".join(f"{pod.pod.name} on {pod.pod.node}" for pod in fresh[:4])
        return Transition(_kill(context, f"hybrid: {places}, its address is known"))
    if context.elapsed_s >= MOVED_S:
        why = "no node has room" if any(not pod.pod.node for pod in fresh) else "it takes too long"
        if len(fresh) < len(moved):
            why = "the controller of the job has not recreated it"
        return Transition(_kill(context, f"hybrid: not moved within {MOVED_S:.0f} s ({why})"))
    return Transition(wake_s=ADDRESS_CHECKED_S)


def _resume(context: RestartContext, name: str) -> Status:
    why = f"pod {name} is not deleted" + (f" ({context.detail.why})" if context.detail.why else "")
    text = f"hybrid restart aborted, resuming ranks: {why}"
    status = context.go(Step.RESUME, text, detail=replace(context.detail, why=why))
    return context.order(status, Verb.RESUME)


def _stopped_on(context: RestartContext) -> Status | None:
    """The status with another order to stop, if agents are about to resume their ranks; None if they are not."""
    order = context.status.order
    if order is not None and context.world.now_s < order.expires_s - STOP_RENEWED_S:
        return None
    count = context.detail.renewed + 1
    status = replace(context.status, action=context.keep(replace(context.detail, renewed=count)))
    return context.order(status, Verb.STOP, f"-{count}")


def _is_held(context: RestartContext) -> bool:
    """True once every node with pods that stay has carried out the present order to stop."""
    done = {node for node, result in context.acks.items() if result is AckResult.DONE}
    return {pod.pod.node for pod in staying(context)} <= done


def _is_reached(context: RestartContext, fresh: Sequence[GangPod]) -> bool:
    """True once the others can find all moved pods."""
    count = len(context.detail.moved_uids)
    return len(fresh) >= count and all(map(_has_address, fresh)) and _published(context, fresh)


def _call(moves: MovesBy, pods: Sequence[GangPod]) -> Delete | Evict:
    named = tuple((pod.pod.name, pod.pod.uid) for pod in pods)
    if moves is MovesBy.EVICT:
        return Evict(named, MOVE_GRACE_S)
    return Delete(named, MOVE_GRACE_S)


def _has_address(pod: GangPod) -> bool:
    return bool(pod.pod.node and pod.pod.address)


def _published(context: RestartContext, fresh: Sequence[GangPod]) -> bool:
    """True once each Service by which the others find the moved pods publishes their new addresses."""
    services = context.detail.services.split()
    uids = {pod.pod.uid for pod in fresh}
    here = [context.world.published.get(service, frozenset()) & uids for service in services]
    return all(here) and (not services or frozenset().union(*here) == uids)


def _kill(context: RestartContext, text: str) -> Status:
    status = context.go(Step.KILL, f"{text}; restarting all others in place")
    return context.order(status, Verb.KILL)


def waits_for_moved(context: RestartContext) -> Status:
    """The status once all pods that stay run again: the new ones are waited for as in a replacement."""
    detail = replace(context.detail, pods=len(context.detail.moved_uids))
    text = "hybrid: the pods that stayed are running again; waiting for those that moved"
    return context.go(Step.RETURN, text, detail=detail)
