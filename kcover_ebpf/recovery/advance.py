"""The restart of a whole gang, step by step. Pure: what is seen goes in, a status and calls come out.

in place   Stop -> Kill -> Progress               (Stop -> Resume -> replace, where a node does not answer)
a crash    Settle -> Progress                     (-> Stop, where only some pods restarted)
replace    Suspend -> Terminate -> Gone -> [Pause] -> Release -> Return -> Progress
without a switch to suspend by: Delete -> Gone -> Return -> Progress

`steps.TRANSITIONS` has all of them, with the reason for each; no step changes otherwise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from kcover_ebpf.api.incident import Lost, Phase, Status
from kcover_ebpf.api.job_kinds import must_train
from kcover_ebpf.diagnosis.verdict import Certainty
from kcover_ebpf.recovery import in_place, repeated_crash, replacement
from kcover_ebpf.recovery.machine import (
    RestartContext,
    Transition,
    escalate,
    fail,
    final_stop,
    why_not_in_place,
)
from kcover_ebpf.recovery.steps import Step, step_of
from kcover_ebpf.tunables.recovery import LOGS_AGAIN_S, PODS_CHECKED_S, RECOVERED_UNSEEN_S

HANDLERS: Mapping[Step, Callable[[RestartContext], Transition]] = {
    Step.STOP: in_place.stop,
    Step.RESUME: in_place.resume,
    Step.KILL: in_place.kill,
    Step.SETTLE: in_place.settle,
    Step.SUSPEND: replacement.suspend,
    Step.TERMINATE: replacement.terminate,
    Step.DELETE: replacement.delete,
    Step.GONE: replacement.gone,
    Step.STUCK: replacement.stuck,
    Step.PAUSE: replacement.pause,
    Step.RELEASE: replacement.release,
    Step.RETURN: replacement.back,
    Step.ABANDON: replacement.abandon,
    Step.FINAL_STOP: replacement.final_stop,
}
HOLDS = frozenset({Step.SUSPEND, Step.RELEASE, Step.ABANDON, Step.FINAL_STOP})
"""Steps that change the switch of the job: they must see it as it is now."""
_MOST_BUNDLES = 64
_AFTER_CRASH = frozenset({Step.SETTLE, Step.RETURN, Step.PROGRESS})
"""Steps in which the ranks run, or their kubelets start them: a crash here is one of the new start."""
_DOWN = frozenset({Step.KILL, Step.PAUSE, Step.RELEASE, Step.RETURN})
"""Steps that begin when nothing of the old ranks is left (or, in place, is about to be)."""


def advance(turn: RestartContext) -> Transition:
    """The next move of an incident in phase ShuttingDown or Recovering."""
    noted = repeated_crash.with_logs(turn.status, turn.world)
    if noted is not turn.status:
        return Transition(noted)
    move = _given_up(turn) or _advance(turn)
    if move.status is None or move.status.phase is turn.status.phase is Phase.RECOVERING:
        return move
    status = with_bundles(move.status, turn)
    return dataclasses.replace(move, status=_account(status, turn.world.now_s))


def _given_up(turn: RestartContext) -> Transition | None:
    """The end of a restart that did not help, because the program failed in the same place; None: none of that."""
    if step_of(turn.action.step) not in _AFTER_CRASH:
        return None
    if repeated_crash.awaits_logs_again(turn.status, turn.crashes, turn.world):
        return Transition(wake_s=LOGS_AGAIN_S)
    hopeless = repeated_crash.why_hopeless(turn.status, turn.crashes)
    if hopeless is None:
        return None
    if turn.world.top is None or turn.world.top.ended or why_not_in_place(turn.world, turn.policy):
        return Transition(fail(turn, hopeless))
    return Transition(final_stop(turn, hopeless))


def with_bundles(status: Status, turn: RestartContext) -> Status:
    """The status with the evidence that nodes say they kept for this incident, as NODE:PATH."""
    reported = (
        f"{seen.report.node}:{ack.bundle}"
        for seen in turn.world.reports
        for ack in seen.report.acks
        if ack.bundle and ack.order.startswith(f"{turn.name}-")
    )
    kept = tuple(dict.fromkeys((*status.bundles, *reported)))
    return dataclasses.replace(status, bundles=kept[:_MOST_BUNDLES])


def _account(status: Status, now_s: float) -> Status:
    """The status with the seconds lost so far, by phase."""
    lost = status.lost or Lost()
    began_s, back_s = status.at(Phase.SHUTTING_DOWN), status.at(Phase.RECOVERING)
    step = step_of(status.action.step) if status.action is not None else None
    if lost.shut_down_s is None and began_s is not None and step in _DOWN | {Step.PROGRESS}:
        lost = dataclasses.replace(lost, shut_down_s=now_s - began_s)
    if lost.reschedule_s is None and began_s is not None and back_s is not None:
        lost = dataclasses.replace(lost, reschedule_s=back_s - began_s - (lost.shut_down_s or 0.0))
    if status.phase is Phase.RECOVERED and back_s is not None:
        lost = dataclasses.replace(lost, first_progress_s=now_s - back_s)
    return dataclasses.replace(status, lost=lost)


def _advance(turn: RestartContext) -> Transition:
    if turn.status.phase is Phase.RECOVERING:
        return _progress(turn)
    known = step_of(turn.action.step)
    step = HANDLERS.get(known) if known is not None else None
    if step is None:
        return Transition(fail(turn, f"unknown step {turn.action.step!r}, left by another version"))
    return step(turn)


def _progress(turn: RestartContext) -> Transition:
    world, returned_s = turn.world, turn.detail.returned_s
    if world.top is None:
        return Transition(fail(turn, "the job is gone"))
    if world.top.ended:
        if world.top.ended == "Failed":
            return Transition(fail(turn, "the job failed after the restart"))
        return Transition(_recovered(turn, f"the job is {world.top.ended}"))
    merged = world.merged
    if merged is not None and merged.verdict.kind.is_fault and not merged.depends:
        certain = merged.verdict.certainty in (Certainty.ANNOUNCED, Certainty.PROVEN)
        due = merged.verdict.acts_at_s is not None and merged.verdict.acts_at_s <= world.now_s
        if (certain or due) and merged.verdict.since_s >= returned_s:
            cause = f"{merged.verdict.kind.value} {merged.verdict.cause.value}"
            return Transition(escalate(turn, f"{cause} again before any progress"))
    nodes = {each.pod.node for each in world.live if each.pod.node and must_train(each.pod)}
    reported_by = {
        each.report.node: each.report.trained and not each.report.suspicious
        for each in world.reports
        if each.current_s > returned_s and each.report.node in nodes
    }
    ready = bool(world.live) and all(each.pod.ready for each in world.live)
    seen = nodes & world.agents
    if seen and seen <= set(reported_by) and all(reported_by.values()):
        return Transition(_recovered(turn, "the ranks are making progress"))
    if ready and not seen and turn.elapsed_s >= RECOVERED_UNSEEN_S:
        return Transition(
            _recovered(turn, "all pods are running; no agent can observe their progress")
        )
    return Transition(wake_s=PODS_CHECKED_S)


def _recovered(turn: RestartContext, text: str) -> Status:
    return turn.go(Step.DONE, text, Phase.RECOVERED)
