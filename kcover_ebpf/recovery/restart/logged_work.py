"""What a restart costs in steps, from what the logs show before and after it. Pure."""

from __future__ import annotations

from dataclasses import replace

from kcover_ebpf.api.incident import Phase, Status
from kcover_ebpf.api.incident_parts import LoggedWork
from kcover_ebpf.gang.job_rules import LoggedProgress


def work_of(status: Status, progress: LoggedProgress) -> LoggedWork | None:
    """What is known by now; the same where that is nothing new. What was so at the fault stays."""
    if status.work is None:
        is_known = progress.step is not None and not status.restarts
        return _at_fault(progress) if is_known else None
    if status.work.redone_steps is not None or not status.restarts:
        return status.work
    began_s = status.at(Phase.SHUTTING_DOWN)
    is_again = began_s is not None and progress.first_s is not None and progress.first_s > began_s
    if not is_again or progress.first_step is None or status.work.step is None:
        return status.work
    return replace(status.work, redone_steps=max(0, status.work.step - progress.first_step + 1))


def _at_fault(progress: LoggedProgress) -> LoggedWork:
    return LoggedWork(
        step=progress.step,
        unsaved_steps=progress.unsaved_steps,
        step_s=progress.step_s,
        loss=progress.loss,
        tokens=progress.tokens,
    )
