"""`SilenceSummary`, which the wire and the judge share."""

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
    """A clause for people."""


@dataclass(frozen=True, slots=True)
class SilenceSummary:
    """What patience follows from: as much of a record as a node reports."""

    observed_s: float = 0.0
    """Training that was observed, all incarnations together."""
    count: int = 0
    """Silences that ended by themselves, of those that are remembered."""
    longest_s: float = 0.0

    def patience(self, policy: Policy) -> Patience:
        """The length beyond which fewer silences are expected than the policy accepts restarts.

        Expected: those that the prior foresees, weighed down by the hours that were observed, and none of this job's
        own, so that the longest of them is exceeded by `SILENCE_MARGIN`.
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
