"""The restart of a whole gang, step by step. Pure: observations go in, a status and calls come out.

any method may begin with Save
in place   Stop -> Kill -> Progress               (Stop -> Resume -> replace, where a node does not answer)
hybrid     Stop -> Move -> Kill -> Return -> Progress
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
from kcover_ebpf.gang.gang_input import GangVerdict
from kcover_ebpf.model.verdict import Certainty
from kcover_ebpf.recovery.restart import (
    hybrid,
    in_place,
    repeated_crash,
    replacement,
    same_fault,
    saving,
)
from kcover_ebpf.recovery.restart.machine import (
    RestartContext,
    Transition,
    escalate,
    fail,
    final_stop,
    why_not_in_place,
)
from kcover_ebpf.recovery.restart.steps import Step, step_of
from kcover_ebpf.tunables.recovery import (
    CLOCKS_APART_S,
    LOGS_AGAIN_S,
    PODS_CHECKED_S,
    RECOVERED_UNSEEN_S,
)

HANDLERS: Mapping[Step, Callable[[RestartContext], Transition]] = {
    Step.SAVE: saving.wait,
    Step.STOP: in_place.stop,
    Step.RESUME: in_place.resume,
    Step.MOVE: hybrid.move,
    Step.KILL: in_place.kill,
    Step.SETTLE: in_place.settle,
    Step.SUSPEND: replacement.suspend,
    Step.TERMINATE: replacement.terminate,
    Step.DELETE: replacement.delete,
    Step.GONE: replacement.gone,
    Step.STUCK: replacement.wait_for_stuck,
    Step.PAUSE: replacement.pause,
    Step.RELEASE: replacement.release,
    Step.RETURN: replacement.back,
    Step.ABANDON: replacement.abandon,
    Step.FINAL_STOP: replacement.final_stop,
}
HOLDS = frozenset({Step.SUSPEND, Step.RELEASE, Step.ABANDON, Step.FINAL_STOP})
"""Steps that change the switch of the job and so need its present state."""
_MOST_BUNDLES = 64
_AFTER_CRASH = frozenset({Step.SETTLE, Step.RETURN, Step.PROGRESS})
"""Steps in which the ranks run, or their kubelets start them: a crash then is one of the new start."""
_DOWN = frozenset({Step.KILL, Step.PAUSE, Step.RELEASE, Step.RETURN})
"""Steps that begin when no old rank is left (or, in place, none will be soon)."""


def advance(context: RestartContext) -> Transition:
    """The next transition of an incident in phase ShuttingDown or Recovering."""
    if context.elapsed_s < -CLOCKS_APART_S:
        return Transition(_begun_now(context))
    noted = repeated_crash.with_logs(context.status, context.world)
    if noted is not context.status:
        return Transition(noted)
    transition = _given_up(context) or _advance(context)
    if (
        transition.status is None
        or transition.status.phase is context.status.phase is Phase.RECOVERING
    ):
        return transition
    status = with_bundles(transition.status, context)
    return dataclasses.replace(transition, status=_account(status, context.world.now_s))


def _begun_now(context: RestartContext) -> Status:
    """The status of a step that began in the future: the clock was set back since, and the step counts from now.

    A pause of a suspended job would last as much longer as the clock was wrong.
    """
    now_s, detail = context.world.now_s, context.detail
    kept = context.keep(dataclasses.replace(detail, returned_s=min(detail.returned_s, now_s)))
    action = dataclasses.replace(kept, started_s=now_s)
    return dataclasses.replace(context.status, action=action)


def _given_up(context: RestartContext) -> Transition | None:
    """The end of a restart that did not help, because the program failed in the same place; None if it did not."""
    if step_of(context.action.step) not in _AFTER_CRASH:
        return None
    if repeated_crash.awaits_logs_again(context.status, context.crashes, context.world):
        return Transition(wake_s=LOGS_AGAIN_S)
    hopeless = repeated_crash.why_hopeless(context.status, context.crashes)
    if hopeless is None:
        return None
    if (
        context.world.top is None
        or context.world.top.ended
        or why_not_in_place(context.world, context.policy)
    ):
        return Transition(fail(context, hopeless))
    return Transition(final_stop(context, hopeless))


def with_bundles(status: Status, context: RestartContext) -> Status:
    """The status with the bundles that nodes report to have saved for this incident, as NODE:PATH."""
    reported = (
        f"{seen.report.node}:{ack.bundle}"
        for seen in context.world.reports
        for ack in seen.report.acks
        if ack.bundle and ack.order.startswith(f"{context.name}-")
    )
    kept = tuple(dict.fromkeys((*status.bundles, *reported)))
    return dataclasses.replace(status, bundles=kept[:_MOST_BUNDLES])


def _account(status: Status, now_s: float) -> Status:
    """The status with the seconds lost so far in each phase."""
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


def _advance(context: RestartContext) -> Transition:
    if context.status.phase is Phase.RECOVERING:
        return _progress(context)
    known_step = step_of(context.action.step)
    step = HANDLERS.get(known_step) if known_step is not None else None
    if step is None:
        return Transition(
            fail(context, f"unknown step {context.action.step!r}, left by another version")
        )
    return step(context)


def _progress(context: RestartContext) -> Transition:
    restart_input, returned_s = context.world, context.detail.returned_s
    if restart_input.top is None:
        return Transition(fail(context, "the job is gone"))
    if restart_input.top.ended:
        if restart_input.top.ended == "Failed":
            return Transition(fail(context, "the job failed after the restart"))
        return Transition(_recovered(context, f"the job is {restart_input.top.ended}"))
    gang_verdict = restart_input.gang_verdict
    if gang_verdict is not None and _has_failed_again(context, gang_verdict):
        cause = f"{gang_verdict.verdict.kind.value} {gang_verdict.verdict.cause.value}"
        return Transition(escalate(context, f"{cause} again before any progress"))
    nodes = {pod.pod.node for pod in restart_input.live if pod.pod.node and must_train(pod.pod)}
    reported_by = {
        report.report.node: report.report.trained and not report.report.suspicious
        for report in restart_input.reports
        if report.current_s > returned_s and report.report.node in nodes
    }
    ready = bool(restart_input.live) and all(pod.pod.ready for pod in restart_input.live)
    seen = nodes & restart_input.agents
    if seen and seen <= set(reported_by) and all(reported_by.values()):
        return Transition(_recovered(context, "the ranks are making progress"))
    if ready and not seen and context.elapsed_s >= RECOVERED_UNSEEN_S:
        return Transition(
            _recovered(context, "all pods are running; no agent can observe their progress")
        )
    return Transition(wake_s=PODS_CHECKED_S)


def _has_failed_again(context: RestartContext, gang_verdict: GangVerdict) -> bool:
    """True for a fault of the new run that is certain, or whose time is over.

    That time counts from the return at the earliest: before it, no rank could train.
    """
    verdict, returned_s = gang_verdict.verdict, context.detail.returned_s
    if not verdict.kind.is_fault or gang_verdict.unsaid:
        return False
    if not same_fault.is_of_new_run(gang_verdict, context.world, returned_s):
        return False
    early_s = max(0.0, returned_s - verdict.since_s)
    certain = not early_s and verdict.certainty in (Certainty.ANNOUNCED, Certainty.PROVEN)
    acts_at_s = verdict.acts_at_s
    return certain or (acts_at_s is not None and acts_at_s + early_s <= context.world.now_s)


def _recovered(context: RestartContext, text: str) -> Status:
    return context.go(Step.DONE, text, Phase.RECOVERED)
