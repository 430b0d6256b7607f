"""A job whose program crashed, and what is asked about it."""

from __future__ import annotations

from dataclasses import replace

from kcover_ebpf.api.incident_parts import CrashRecord
from kcover_ebpf.api.log_report import LoggedTraceback
from kcover_ebpf.model.verdict import Cause, EvidenceKind, VerdictKind
from kcover_ebpf.recovery.restart.context import RestartInput
from kcover_ebpf.recovery.restart.guards import RestartRequest
from tests.unit.support.guard_inputs import ask, world
from tests.unit.support.log_builders import BUG, log, seen
from tests.unit.support.report_builders import NOW_S, local

AGE_S = 1.5
EXITED = local(VerdictKind.CRASHED, Cause.EXITED, 1, AGE_S, EvidenceKind.EVENT)
STEP_30 = replace(BUG, step=30)
"""Read 2.1 s ago; the rank ended 2 s ago."""


def record(**more) -> CrashRecord:
    """The crash that this job had an hour ago, in the first start of the same pod."""
    made = CrashRecord(
        BUG.fingerprint, "uid-1", 0, NOW_S - 3600, ("python_error",), "b", "train.py:71", 30,
        after_s=900.0,
    )  # fmt: skip
    return replace(made, **more)


def crashed(
    *traceback: LoggedTraceback, start: int = 1, age_s: float = AGE_S, **more
) -> RestartInput:
    """The rank on node b has just left with an error."""
    first, second = seen(log(1, *traceback, start=start))
    said = replace(EXITED, since_s=NOW_S - 0.5 - age_s)
    second = replace(second, report=replace(second.report, verdict=said))
    return world((first, second), **more)


def asked(restart_input: RestartInput, *earlier_record: CrashRecord, **more) -> RestartRequest:
    made = ask(restart_input, **more)
    return replace(made, context=replace(made.context, crashes=earlier_record))
