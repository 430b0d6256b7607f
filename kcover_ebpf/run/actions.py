"""What may be done about a verdict: write a bundle, end the job, start it again within a budget.

Together with the keeper (`host.supervisor`), which does the ending with the rights of the user, this is
the only place that changes anything.
"""

from __future__ import annotations

import time

from kcover_ebpf.errors import ActionError
from kcover_ebpf.host.supervisor_client import Supervisor
from kcover_ebpf.settings import Policy


class RestartBudget:
    """How often, and after which pause, a job may be started again. Pure."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.count = 0
        """Restarts so far."""

    def refusal(self, *, made_progress: bool) -> str | None:
        """Why the job must not be started again; None if it may.

        `made_progress`: since its last start. Without progress a second restart would end the same
        way.
        """
        if self.count >= self._policy.max_restarts:
            return f"all {self._policy.max_restarts} restarts are used up"
        if self.count and not made_progress:
            return "no progress since the last restart"
        return None

    def spend(self) -> float:
        """Count one restart; the pause before it in seconds, twice as long each time."""
        pause_s = self._policy.backoff_s * 2.0**self.count
        self.count += 1
        return min(pause_s, self._policy.backoff_max_s)


def end_job(keeper: Supervisor) -> str:
    """Stop all processes of the job, then kill them at once; says how it went.

    Raises `ActionError` when processes are left that do not die, or the keeper is lost.
    """
    begin_s = time.monotonic()
    left = keeper.kill_and_wait()
    took_s = time.monotonic() - begin_s
    if left:
        pids = ", ".join(map(str, left))
        raise ActionError(f"pid {pids} did not die of SIGKILL in {took_s:.1f}s (state D?)")
    return f"stopped and killed the whole job in {took_s * 1000:.0f} ms"
