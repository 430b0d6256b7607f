"""Detects repetitions: a restart that would end like the last one, and a timeline line that an incident already has.

Pure.
"""

from __future__ import annotations

import re

from kcover_ebpf.api.incident import Phase, Status
from kcover_ebpf.gang import job_rules
from kcover_ebpf.model.verdict import VerdictKind
from kcover_ebpf.recovery.restart import repeated_crash
from kcover_ebpf.recovery.restart.machine import RestartContext
from kcover_ebpf.tunables.recovery import FAULT_OVER_S

_SILENT = (VerdictKind.HUNG, VerdictKind.DEADLOCK)
"""Faults of a job that runs and does nothing. After others, such as a device's, another node may do better."""
_LEFT = re.compile(r"ended in \d+ s")


def why_hopeless(context: RestartContext, last_restart_s: float | None) -> str | None:
    """Reason why another restart would end like the last one: the same crash, or a log without progress since.

    None while that is not known. `last_restart_s`: unix seconds; None if there was no recent restart.
    """
    reason = repeated_crash.why_hopeless(context.status, context.crashes)
    if reason is not None or last_restart_s is None or not _may_repeat(context.status):
        return reason
    rules = [rule for rule in context.policy.job_rules if rule.is_clock]
    nodes = {pod.pod.uid: pod.pod.node for pod in context.world.live}
    reports, now_s = context.world.reports, context.world.now_s
    if not rules or not job_rules.has_begun(rules, reports, nodes, now_s):
        return None
    if job_rules.progress(reports, nodes, now_s, rules).moved_s is not None:
        return None
    names = ", ".join(rule.name for rule in rules)
    return f"no step and no line of the rules {names} since the last restart: no further restart"


def _may_repeat(status: Status) -> bool:
    return status.kind in _SILENT and status.failure not in repeated_crash.NOT_THE_PROGRAM


def is_said_before(old: Status, new: Status, phase: Phase, reason: str) -> bool:
    """True if verdict, reason and end are those of `old`; the number of seconds left is ignored.

    Each change costs a write, and a line of the timeline. The reason says whether there is an end at all. CRDs that are
    older than this controller drop the time of the end when it is written. Without this rule, a controller would then
    see a change at each read and write endlessly.
    """
    if old.phase is not phase or (old.failure, old.crashes) != (new.failure, new.crashes):
        return False
    if (old.kind, old.cause, old.culprit) != (new.kind, new.cause, new.culprit):
        return False
    before_s, now_s = _acts_at_s(old), _acts_at_s(new)
    if before_s is not None and now_s is not None and abs(before_s - now_s) >= FAULT_OVER_S:
        return False
    return _LEFT.sub("", old.message).endswith(_LEFT.sub("", reason))


def _acts_at_s(status: Status) -> float | None:
    """When the verdict is acted on, in unix seconds; None for never."""
    return status.verdict.acts_at_s if status.verdict is not None else None
