"""When a job is sampled, and in which passes its threads are read and it is judged. Pure except for random numbers.

The loop over a live job keeps this pace, and a bench that simulates a job in virtual time keeps the same.
"""

from __future__ import annotations

import random

from kcover_ebpf.diagnosis.clock.pass_slots import SLOT_S, next_pause_s
from kcover_ebpf.diagnosis.job import Job
from kcover_ebpf.model.verdict import Verdict, VerdictKind
from kcover_ebpf.settings import Settings
from kcover_ebpf.tunables.agent import JUDGED_PASSES
from kcover_ebpf.tunables.host import SUSPICIOUS_SPREAD


class Pacing:
    """Decides how often one job is sampled and judged."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._rest_count = 0
        self._is_announced = False
        self.is_attended = True
        """True if its threads were read and it was judged in the last pass."""

    @property
    def ease(self) -> float:
        """Factor by which the pause before the next pass may be longer than usual; 1 if it is urgent."""
        job = self._job
        return job.pace.ease(job.now_ns) * job.attention.ease(job.now_ns, job.pace.trained)

    def announce(self) -> None:
        """Note an announcement that should be judged at once."""
        self._is_announced = True

    def attend(self, reported_verdict: Verdict | None, *, needs_all: bool = False) -> bool:
        """Called once a pass, with its facts: True if its threads are to be read and the job judged as well.

        `reported_verdict`: the last one reported. `needs_all`: all readings of the job must be of one pass.
        """
        self._rest_count += 1
        may_rest = not needs_all and self._may_rest(reported_verdict)
        self.is_attended = self._rest_count >= JUDGED_PASSES or not may_rest
        if self.is_attended:
            self._rest_count, self._is_announced = 0, False
        return self.is_attended

    def _may_rest(self, reported_verdict: Verdict | None) -> bool:
        job = self._job
        is_calm = job.pace.trained and not job.attention.suspicious and not self._is_announced
        is_calm = is_calm and not job.pace.compares(job.now_ns)
        return (
            is_calm
            and not job.attention.learns_eagerly(job.now_ns)
            and reported_verdict is not None
            and reported_verdict.kind is VerdictKind.WORKING
        )


def pause_s(
    settings: Settings, ease: float, dice: random.Random, now_s: float, *, urgent: bool
) -> float:
    """Seconds from one pass to the next; `ease` as from `Pacing.ease`, `urgent` if any job is.

    `now_s`: unix seconds. Passes that are not urgent happen at the same moments on all nodes.
    """
    period_s = settings.suspicious_period_s if urgent else settings.period_s * ease
    if urgent or period_s < SLOT_S:
        return period_s * dice.uniform(1 - SUSPICIOUS_SPREAD, 1 + SUSPICIOUS_SPREAD)
    return next_pause_s(now_s, period_s)
