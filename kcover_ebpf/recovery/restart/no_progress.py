"""Why another restart would end as the last one did: the same crash, or a log that shows no progress since. Pure."""

from __future__ import annotations

from kcover_ebpf.api.incident import Status
from kcover_ebpf.gang import job_rules
from kcover_ebpf.model.verdict import VerdictKind
from kcover_ebpf.recovery.restart import repeated_crash
from kcover_ebpf.recovery.restart.machine import RestartContext

_SILENT = (VerdictKind.HUNG, VerdictKind.DEADLOCK)
"""Faults of a job that runs and does nothing. After others, such as a device's, another node may do better."""


def why_hopeless(context: RestartContext, last_restart_s: float | None) -> str | None:
    """The reason, in words; None while that is not known. `last_restart_s`: None where there was none of late."""
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
