"""Protects the work of a job before its ranks are ended, as far as the policy allows. Pure.

Healthy ranks may be asked by a signal to save; a checkpoint that a rank is writing is awaited; and if a fault is only
inferred, unsaved work justifies some patience. Checkpoints are known from the logs of containers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kcover_ebpf.api.incident import Phase, RestartAction, RestartMethod, Status
from kcover_ebpf.api.log_report import ContainerLog
from kcover_ebpf.api.order import Verb
from kcover_ebpf.model.verdict import Cause, Certainty
from kcover_ebpf.recovery.restart.machine import MOST_NODES, RestartContext, Transition, start
from kcover_ebpf.recovery.restart.steps import RestartDetail, Step
from kcover_ebpf.tunables.recovery import SAVE_CHECKED_S

_MOST_REASON = 1024
_PHASES = frozenset({"checkpoint", "save", "saving"})
"""Names of announced phases in which a program saves a checkpoint (hints/)."""


def first(
    context: RestartContext, method: RestartMethod, reason: str, elsewhere: str = ""
) -> Status:
    """The status at the first step of a method, or at a save before it."""
    text = _why_save(context)
    if text is None:
        return start(context, method, reason, elsewhere)
    now_s, policy = context.world.now_s, context.policy.save
    detail = RestartDetail(pods=len(context.world.live), elsewhere=elsewhere).words()
    word = context.word_of(Step.SAVE)
    attempt = context.next_attempt
    action = RestartAction(method, word, attempt, now_s, reason[:_MOST_REASON], detail)
    nodes = context.world.nodes[:MOST_NODES] or context.status.nodes
    status = replace(context.status, action=action, order=None, nodes=nodes)
    status = status.enter(Phase.SHUTTING_DOWN, now_s, text)
    if policy.signal is None:
        return status
    status = replace(context, status=status).order(status, Verb.SAVE)
    assert status.order is not None
    order = replace(status.order, signal=policy.signal, spared=_spared(context))
    return replace(status, order=order)


def wait(context: RestartContext) -> Transition:
    """Wait until the checkpoint is complete, or its time is over; then the restart begins."""
    if _is_over(context):
        text = "a rank saved, and the ranks make progress again: nothing was ended"
        return Transition(context.go(Step.DONE, text, Phase.OBSERVED))
    left_s = context.policy.save.seconds - context.elapsed_s
    ended = _why_ended(context)
    if ended is None and left_s > 0:
        return Transition(wake_s=min(left_s, SAVE_CHECKED_S))
    text = ended or f"no checkpoint was complete within {context.policy.save.seconds} s"
    status = context.status.enter(context.status.phase, context.world.now_s, f"save: {text}")
    action = context.action
    ready = replace(context, status=status)
    return Transition(start(ready, action.way, action.reason or "", context.detail.elsewhere))


def why_not_yet(context: RestartContext) -> str | None:
    """Reason for more patience with an inferred fault; None if too little work would be lost, or that is unknown."""
    gang_verdict, bound_s = context.world.gang_verdict, context.policy.save.unsaved_seconds
    if gang_verdict is None or gang_verdict.verdict.certainty is not Certainty.INFERRED:
        return None
    since_s = gang_verdict.verdict.since_s
    complete_s = max(_complete_s(context), default=None)
    if complete_s is None:
        return None
    unsaved_s = max(0.0, since_s - complete_s)
    patience_s = min(unsaved_s, float(bound_s))
    if context.world.now_s - since_s >= patience_s:
        return None
    return (
        f"waiting: {unsaved_s:.0f} s of work since the last complete checkpoint would be lost; "
        f"the job is ended after {patience_s:.0f} s of silence"
    )


def _why_save(context: RestartContext) -> str | None:
    """Reason to wait before the ranks are ended; None if there is none."""
    policy = context.policy.save
    if not policy.seconds:
        return None
    healthy = {pod.pod.uid for pod in context.world.live} - set(_spared(context))
    if policy.signal is not None and healthy:
        return (
            f"save: sending {policy.signal.value} to the healthy ranks; "
            f"waiting at most {policy.seconds} s for a checkpoint"
        )
    pod = _saving_pod(context)
    if pod is None:
        return None
    return f"save: pod {pod} is writing a checkpoint; waiting at most {policy.seconds} s for it"


def _spared(context: RestartContext) -> tuple[str, ...]:
    """Uids of pods whose ranks are not healthy."""
    culprit = context.status.culprit
    return (culprit.pod_uid,) if culprit is not None and culprit.pod_uid else ()


def _saving_pod(context: RestartContext) -> str | None:
    """Name of a pod that is writing a checkpoint by its log; the culprit's may itself be the fault and is ignored."""
    if context.status.cause is Cause.STORAGE:
        return None
    live = {pod.pod.uid: pod.pod.name for pod in context.world.live}
    names = {uid: name for uid, name in live.items() if uid not in _spared(context)}
    most_s = context.policy.save.seconds
    saving = (
        names.get(log.pod_uid) for log, late_s in _logs(context) if _is_saving(log, late_s, most_s)
    )
    return next((name for name in saving if name is not None), None)


def _is_saving(log: ContainerLog, late_s: float, most_s: float) -> bool:
    """True if a save has begun recently; an older one was never reported complete and does not count as running."""
    phase, progress = log.phase, log.progress
    if phase is not None and phase.name.lower() in _PHASES and not phase.refused:
        return phase.left_s > late_s
    age_s = progress.saving_age_s if progress is not None else None
    return age_s is not None and age_s + late_s < most_s


def _why_ended(context: RestartContext) -> str | None:
    """Reason why no checkpoint is awaited any more; None while one is."""
    began_s, signal = context.action.started_s, context.policy.save.signal
    if any(at_s >= began_s for at_s in _complete_s(context)):
        return "a checkpoint is complete"
    if signal is None:
        return "no rank is writing a checkpoint any more" if not _saving_pod(context) else None
    counts = _signalled(context)
    if counts.keys() >= set(context.status.nodes) and not any(counts.values()):
        return f"no healthy rank handles {signal.value}"
    return None


def _signalled(context: RestartContext) -> dict[str, int]:
    """Node -> number of ranks that got the signal, for nodes that have answered."""
    order = context.order_id(Verb.SAVE)
    return {
        seen.report.node: ack.processes or 0
        for seen in context.world.reports
        for ack in seen.report.acks
        if ack.order == order
    }


def _complete_s(context: RestartContext) -> Iterator[float]:
    """Times at which checkpoints were reported complete; unix seconds."""
    for log, late_s in _logs(context):
        age_s = log.progress.checkpoint_age_s if log.progress is not None else None
        if age_s is not None:
            yield context.world.now_s - late_s - age_s


def _logs(context: RestartContext) -> Iterator[tuple[ContainerLog, float]]:
    """The logs of all containers, each with the seconds since its report was made."""
    for received in context.world.reports:
        late_s = received.since_made_s(context.world.now_s)
        for log in received.report.logs:
            yield log, late_s


def _is_over(context: RestartContext) -> bool:
    """True if the fault is over. False if ranks were asked to save: what they do then is no progress."""
    gang_verdict = context.world.gang_verdict
    if context.policy.save.signal is not None or context.status.cause is Cause.REQUESTED:
        return False
    return gang_verdict is None or not gang_verdict.verdict.opens_incident
