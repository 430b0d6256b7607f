"""The silences of a job, summarised as agents report them, and the patience that the judge derives from them.

The summary is also what an incident keeps of them, so that agents of other nodes, to which the job is moved, know it.
The silence before the first step of a job is a `StartWait`.
"""

from __future__ import annotations

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.settings import Policy
from kcover_ebpf.tunables.certainty import (
    GIVES_UP_MARGIN_S,
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
    gives_up_s: float | None = None
    """Seconds of silence after which the job's framework gives up by itself; None if unknown."""


@dataclass(frozen=True, slots=True)
class PlaceSilences:
    """The silences of one place."""

    place: str
    """As in `Silence`."""
    count: int
    longest_s: float


@dataclass(frozen=True, slots=True)
class SilenceSummary:
    """The part of a job's record of silences that a node reports; the patience with the job is computed from it."""

    observed_s: float = 0.0
    """Seconds of training observed, over all restarts of the job."""
    count: int = 0
    """Remembered silences that ended by themselves."""
    longest_s: float = 0.0
    gives_up_s: float | None = None
    """Default time-out, in seconds, of the job's framework; None if unknown."""
    start_s: float = 0.0
    """Longest silence of a rank before the job trained, in its last start; 0 before the first."""
    step_s: float = 0.0
    """Longest remembered silence of a healthy rank while the job trained; 0 before any."""
    places: tuple[PlaceSilences, ...] = ()
    """The same silences by place, `PLACES_REPORTED` at most; those of the longest one first."""

    def patience(self, policy: Policy) -> Patience:
        """Seconds after which so few silences are expected that the policy's rate of false restarts is not exceeded.

        The expected rate is that of the prior, weighed down by the hours observed. This job's own silences are not part
        of it; the result is at least `SILENCE_MARGIN` times the longest of them. It ends before the framework gives up.
        """
        weight = PRIOR_HOURS / (PRIOR_HOURS + self._hours)
        foreseen_s = (PRIOR_RATE_PER_H * weight / policy.false_restarts_per_h) ** (1 / PRIOR_SHAPE)
        own_s = SILENCE_MARGIN * self.longest_s
        seconds = min(max(foreseen_s, own_s, policy.act_floor_s), policy.act_cap_s)
        # a job that was silent for long and continued must not be ended sooner, whatever the cap
        seconds, why = max(seconds, own_s), self._why(by_own=own_s >= foreseen_s)
        limit_s = self.time_out_s
        if limit_s is not None and limit_s - GIVES_UP_MARGIN_S < seconds:
            seconds = max(limit_s - GIVES_UP_MARGIN_S, policy.act_floor_s)
            why = f"{why}; its framework gives up after {limit_s:.0f} s"
        return Patience(round(seconds, 1), why, limit_s)

    @property
    def time_out_s(self) -> float | None:
        """Seconds of silence after which the job's framework gives up by itself; None if unknown.

        A job that was silent for that long and continued has another time-out than the default.
        """
        limit_s = self.gives_up_s
        is_known = limit_s is not None and self.longest_s < limit_s - GIVES_UP_MARGIN_S
        return limit_s if is_known else None

    @property
    def _hours(self) -> float:
        return self.observed_s / 3600

    def _why(self, *, by_own: bool) -> str:
        if not self.count:
            return f"no silence was seen to end by itself in {self._hours:.1f} h: little is known of this job"
        times = "once" if self.count == 1 else f"{self.count} times"
        text = f"{times} in {self._hours:.1f} h it continued by itself, after at most {self.longest_s:.0f} s"
        return text if by_own else f"{text}; a job like it may be silent for longer"


@dataclass(frozen=True, slots=True)
class StartWait:
    """All ranks of a node wait for those that have not started, and their job has not made a step."""

    age_s: float
    """Seconds since the last of them began to wait; at least `ARRIVAL_FLOOR_S`."""
    ranks: int
    """Number of these ranks."""
    world_size: int | None = None
    """Number of ranks in the whole job, as their own environment says; None if unknown."""
