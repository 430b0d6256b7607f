"""The silences of a job, summarised as agents report them, and the patience that the judge derives from them."""

from __future__ import annotations

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.settings import Policy
from kcover_ebpf.tunables.certainty import (
    PRIOR_HOURS,
    PRIOR_RATE_PER_H,
    PRIOR_SHAPE,
    SILENCE_MARGIN,
)


@dataclass(frozen=True, slots=True)
class Patience:
    """For how long a silence may last before an inferred fault ends the job."""

    seconds: float
    why: str
    """The reason for this length, as a clause for a message."""


@dataclass(frozen=True, slots=True)
class SilenceSummary:
    """The part of a job's record of silences that a node reports; the patience with the job is computed from it."""

    observed_s: float = 0.0
    """Seconds of training observed, over all restarts of the job."""
    count: int = 0
    """Remembered silences that ended by themselves."""
    longest_s: float = 0.0

    def patience(self, policy: Policy) -> Patience:
        """Seconds after which so few silences are expected that the policy's rate of false restarts is not exceeded.

        The expected rate is that of the prior, weighed down by the hours observed. This job's own silences are not part
        of it; the result is at least `SILENCE_MARGIN` times the longest of them.
        """
        weight = PRIOR_HOURS / (PRIOR_HOURS + self._hours)
        foreseen_s = (PRIOR_RATE_PER_H * weight / policy.false_restarts_per_h) ** (1 / PRIOR_SHAPE)
        own_s = SILENCE_MARGIN * self.longest_s
        seconds = min(max(foreseen_s, own_s, policy.act_floor_s), policy.act_cap_s)
        # a job that was silent for long and continued must not be ended sooner, whatever the cap
        return Patience(round(max(seconds, own_s), 1), self._why(by_own=own_s >= foreseen_s))

    @property
    def _hours(self) -> float:
        return self.observed_s / 3600

    def _why(self, *, by_own: bool) -> str:
        if not self.count:
            return f"no silence was seen to end by itself in {self._hours:.1f} h: little is known of this job"
        times = "once" if self.count == 1 else f"{self.count} times"
        text = f"{times} in {self._hours:.1f} h it continued by itself, after at most {self.longest_s:.0f} s"
        return text if by_own else f"{text}; a job like it may be silent for longer"
