"""Whether a job may be restarted, and how it is ended: by `host.supervisor`, as the user who started it."""

from __future__ import annotations

import time

from kcover_ebpf.errors import ActionError
from kcover_ebpf.host.supervisor_client import Supervisor
from kcover_ebpf.settings import RestartBudget


def refusal(budget: RestartBudget, earlier: int, *, made_progress: bool) -> str | None:
    """Why a job must not be restarted after this many restarts; None if it may.

    `made_progress`: since its last start. Without progress, a second restart would end the same way.
    """
    if earlier >= budget.max:
        return f"all {budget.max} restarts are used up"
    if earlier and not made_progress:
        return "no progress since the last restart"
    return None


def end_job(supervisor: Supervisor) -> str:
    """Stop all processes of the job, then kill them at once; returns a description of the result.

    Raises `ActionError` if processes remain that do not die, or the supervisor is lost.
    """
    begin_s = time.monotonic()
    left = supervisor.kill_and_wait()
    took_s = time.monotonic() - begin_s
    if left:
        pids = ", ".join(map(str, left))
        raise ActionError(f"pid {pids} did not die of SIGKILL in {took_s:.1f}s (state D?)")
    return f"stopped and killed the whole job in {took_s * 1000:.0f} ms"
