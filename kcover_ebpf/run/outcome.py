"""Why a run ended, with its exit code, and whether a job may be started again. Pure."""

from __future__ import annotations

import signal
from enum import Enum

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.diagnosis.failures.exits import signal_name
from kcover_ebpf.errors import ActionError, KcoverError
from kcover_ebpf.settings import RestartBudget

EXIT_SHUT_DOWN = 75
"""EX_TEMPFAIL: the job was shut down on a verdict and may be tried again."""


class Reason(Enum):
    """Why a run ended; values as in the JSON event "end"."""

    EXITED = "exited"
    """The job ended by itself, with its own code."""
    SHUTDOWN = "shutdown"
    """We ended it on a verdict."""
    RESTARTS = "no_more_restarts"
    """We ended it on a verdict, and may not or cannot restart it."""
    SIGNAL = "signal"
    """The user asked us to stop."""
    TIME = "time"
    """The time given with `--for` is over."""
    GONE = "gone"
    """The watched job has no process left."""
    LOST = "lost"
    """The supervisor died, so the end of the job is unknown."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Reason, exit code and message of a run's end."""

    reason: Reason
    exit_code: int
    text: str
    job_code: int | None = None
    """Exit code of the job's first process, or minus the signal; None if unknown or not our job."""


def exited(job_code: int, left_behind_count: int) -> Outcome:
    """The job ended by itself: its exit code is ours, 128 + signal if a signal ended it."""
    if job_code < 0:
        text = f"the job was killed by {signal_name(-job_code)}"
        code = 128 - job_code
    else:
        text = f"the job ended with exit code {job_code}"
        code = job_code
    if left_behind_count:
        text += f"; {left_behind_count} processes it left behind were killed"
    return Outcome(Reason.EXITED, code, text, job_code)


def shut_down(reason: Reason, why: str) -> Outcome:
    """We ended the job on a verdict."""
    return Outcome(reason, EXIT_SHUT_DOWN, why)


def signalled(number: signal.Signals, *, ended_job: bool) -> Outcome:
    """The user ended the run by a signal."""
    what = "the job was shut down" if ended_job else "the job continues unwatched"
    return Outcome(Reason.SIGNAL, 128 + number, f"{number.name}: {what}")


def time_over(*, is_faulty: bool, ended_job: bool) -> Outcome:
    """The time given with `--for` is over."""
    state = "a fault is open" if is_faulty else "no fault is open"
    what = ", the job was shut down" if ended_job else ""
    return Outcome(Reason.TIME, int(is_faulty), f"time is over: {state}{what}")


def gone() -> Outcome:
    """The watched job, not started by us, has no process left."""
    return Outcome(Reason.GONE, 0, "the job is gone: it has no process left")


def lost() -> Outcome:
    """The supervisor is lost, so the job's exit code is unknown."""
    return Outcome(
        Reason.LOST, 1, "the supervisor of the job was killed; the job continues unwatched"
    )


def not_restarted(error: KcoverError) -> Outcome:
    """We ended the job on a verdict, and its start failed.

    Without an answer of the supervisor the job may run, so no code may invite to try it again.
    """
    text = f"not restarted: {error}"
    if isinstance(error, ActionError):
        return Outcome(Reason.LOST, 1, text)
    return shut_down(Reason.RESTARTS, text)


def refusal(budget: RestartBudget, earlier: int, *, made_progress: bool) -> str | None:
    """Why a job must not be restarted after this many restarts; None if it may.

    `made_progress`: since its last start. Without progress, a second restart would end the same way.
    """
    if earlier >= budget.max:
        return f"all {budget.max} restarts are used up"
    if earlier and not made_progress:
        return "no progress since the last restart"
    return None
