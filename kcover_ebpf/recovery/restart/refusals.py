"""What a restart does about a call that the API server refuses: it reports that, tries again, and then ends. Pure.

An admission policy or a missing permission refuses until a person changes it. Until then the job stays as broken as it
is, and takes a place of the breaker. Only a job that we have suspended is resumed however long that takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from kcover_ebpf.api.incident import Status
from kcover_ebpf.recovery.restart.machine import RestartContext, Transition, fail
from kcover_ebpf.recovery.restart.steps import Step, step_of
from kcover_ebpf.tunables.recovery import CALL_REFUSED_S, REFUSED_AGAIN_S, STUCK_CHECKED_S


def after(context: RestartContext, text: str) -> Transition:
    """What follows a refused call of the present step; `text`: the request and the answer."""
    now_s, detail = context.world.now_s, context.detail
    if not context.action.started_s <= detail.refused_s <= now_s:
        noted = replace(detail, refused_s=now_s, why=text)
        status = replace(context.status, action=context.keep(noted))
        text = f"refused by the API server, trying again: {text}"
        return Transition(status.enter(status.phase, now_s, text), wake_s=REFUSED_AGAIN_S)
    if now_s - detail.refused_s < CALL_REFUSED_S:
        return Transition(wake_s=REFUSED_AGAIN_S)
    step = step_of(context.action.step)
    end = _ENDS.get(step) if step is not None else None
    return Transition(wake_s=STUCK_CHECKED_S) if end is None else Transition(end(context, text))


def _not_suspended(context: RestartContext, text: str) -> Status:
    # a request that seemed to be refused may have been carried out: that is undone first
    return context.go(Step.ABANDON, f"the job cannot be suspended: {text}")


def _not_deleted(context: RestartContext, text: str) -> Status:
    return fail(context, f"the pods cannot be deleted: {text}")


def _not_stopped(context: RestartContext, text: str) -> Status:
    return fail(context, f"{context.action.reason}; the job cannot be suspended: {text}")


_ENDS: Mapping[Step, Callable[[RestartContext, str], Status]] = {
    Step.SUSPEND: _not_suspended,
    Step.DELETE: _not_deleted,
    Step.FINAL_STOP: _not_stopped,
}
"""Other steps with calls have an end without them, or must not end: the job is suspended by us."""
