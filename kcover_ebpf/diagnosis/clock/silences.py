"""The silences of a job that ended by themselves, over days, and the patience that follows from them. Pure.

A job that was silent for a minute at each evaluation is given more than a minute; how much more follows from how often
the policy accepts a needless restart. While the record is short a prior is used (`PRIOR_RATE_PER_H`, `PRIOR_SHAPE`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.model.silence_summary import SilenceSummary
from kcover_ebpf.tunables.certainty import (
    SILENCE_FLOOR_S,
    SILENCES_KEPT,
)


@dataclass(frozen=True, slots=True)
class Silence:
    """One silence that ended by itself."""

    place: str
    """What the rank that the others waited for did: the cause of the finding that it led to, such as "blocked_lock"."""
    length_s: float
    at_s: float
    """Seconds of training observed before it."""


@dataclass(slots=True)
class Silences:
    """The record of one job; it outlives the agent and the job's restarts."""

    observed_s: float = 0.0
    """Training that was observed, all incarnations together."""
    kept: list[Silence] = field(default_factory=list)
    """The longest of each place, `SILENCES_KEPT` at most."""

    def observe(self, seconds: float) -> None:
        """The job was seen to train for so long."""
        self.observed_s += max(0.0, seconds)

    def learn(self, place: str, length_s: float) -> None:
        """A silence ended by itself; one shorter than `SILENCE_FLOOR_S` is a step."""
        if length_s < SILENCE_FLOOR_S:
            return
        self.kept.append(Silence(place, length_s, self.observed_s))
        self.kept.sort(key=lambda silence: -silence.length_s)
        places: dict[str, int] = {}
        fitting = []
        for silence in self.kept:
            places[silence.place] = places.get(silence.place, 0) + 1
            if places[silence.place] <= SILENCES_KEPT:
                fitting.append(silence)
        self.kept = fitting[: 4 * SILENCES_KEPT]

    @property
    def summary(self) -> SilenceSummary:
        """What patience follows from."""
        longest_s = max((silence.length_s for silence in self.kept), default=0.0)
        return SilenceSummary(round(self.observed_s), len(self.kept), round(longest_s, 1))


def joined(summaries: Iterable[SilenceSummary]) -> SilenceSummary:
    """What several nodes saw of one job: each sees the same silences, some for longer than others."""
    seen = list(summaries) or [SilenceSummary()]
    return SilenceSummary(
        max(summary.observed_s for summary in seen),
        max(summary.count for summary in seen),
        max(summary.longest_s for summary in seen),
    )
