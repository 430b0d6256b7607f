"""What would repeat what was: a restart that would end as the last one did, and a line that an incident has. Pure."""

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
    """Why another restart would end as the last one did: the same crash, or a log that shows no progress since.

    None while that is not known. `last_restart_s`: None where there was none of late.
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
    """True where verdict, reason and time of the end are those of `old`; seconds that are left are others each time.

    Each word costs a write, and a line of the story. Whether there is an end at all, the reason says: definitions that
    are older than this controller drop the time when it is written, and who then saw a change in each reading would
    write without end.
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
    """Unix seconds; None where it is never acted on."""
    return status.verdict.acts_at_s if status.verdict is not None else None
