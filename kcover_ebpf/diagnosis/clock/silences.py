"""The silences of a job that ended by themselves, over days; the patience with the job is computed from them. Pure.

A job that was silent for a minute at each evaluation is given more than a minute. How much more depends on how often
the policy accepts a needless restart. While the record is short, a prior is used (`PRIOR_RATE_PER_H`, `PRIOR_SHAPE`).

The record keeps the longest silences of each place separately: a hundred long evaluations must not displace the one
long checkpoint, because both will happen again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.model.silence_summary import PlaceSilences, SilenceSummary
from kcover_ebpf.tunables.certainty import SILENCE_FLOOR_S
from kcover_ebpf.tunables.sampling import PLACES_REPORTED, SILENCES_KEPT

_MOST_S, _MOST_OBSERVED_S = 1e6, 1e9
"""Bounds of what a report says: seconds of a silence, twelve days, and of training, some thirty years."""
MOST_PLACE = 64
"""Characters of the name of a place that is read."""


@dataclass(frozen=True, slots=True)
class Silence:
    """One silence that ended by itself."""

    place: str
    """Cause of the finding during the silence, such as "blocked_lock": what the rank did that the others waited for."""
    length_s: float
    at_s: float
    """Seconds of training observed before it."""


@dataclass(slots=True)
class Silences:
    """The record of one job; it survives restarts of the agent and of the job."""

    observed_s: float = 0.0
    """Seconds of training observed, over all starts of the job."""
    kept: list[Silence] = field(default_factory=list)
    """The longest silences of each place, `SILENCES_KEPT` at most; longest first."""

    def observe(self, seconds: float) -> None:
        """Add seconds in which the job was seen to train."""
        self.observed_s += max(0.0, seconds)

    def learn(self, place: str, length_s: float) -> None:
        """Record a silence that ended by itself. One shorter than `SILENCE_FLOOR_S` is a step and is ignored."""
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
        """The part of the record that is reported, and that the patience is computed from."""
        lengths: dict[str, list[float]] = {}
        for silence in self.kept:
            lengths.setdefault(silence.place, []).append(silence.length_s)
        found = [
            PlaceSilences(place, len(of_place), round(max(of_place), 1))
            for place, of_place in lengths.items()
        ]
        places = _longest_first(found)
        longest_s = max((silence.length_s for silence in self.kept), default=0.0)
        return SilenceSummary(
            round(self.observed_s), len(self.kept), round(longest_s, 1), places=places
        )

    @classmethod
    def of(cls, summary: SilenceSummary) -> Silences:
        """A record that continues what another node reported; the shorter silences of a place count as its longest.

        Values of no plausible size are ignored: a report may say anything.
        """
        record = cls(
            observed_s=summary.observed_s if 0 <= summary.observed_s < _MOST_OBSERVED_S else 0.0
        )
        # an older agent reports no places
        unplaced = PlaceSilences("", 1, summary.longest_s)
        for place in summary.places[:PLACES_REPORTED] or (unplaced,):
            if place.longest_s < _MOST_S:
                for _ in range(min(max(place.count, 1), SILENCES_KEPT)):
                    record.learn(place.place[:MOST_PLACE], place.longest_s)
        return record


def _longest_first(places: Iterable[PlaceSilences]) -> tuple[PlaceSilences, ...]:
    found = sorted(places, key=lambda place: (-place.longest_s, place.place))
    return tuple(found[:PLACES_REPORTED])


def joined(summaries: Iterable[SilenceSummary]) -> SilenceSummary:
    """The record of one job as several nodes saw it: each sees the same silences, some for longer than others."""
    seen = list(summaries) or [SilenceSummary()]
    time_outs = [summary.gives_up_s for summary in seen if summary.gives_up_s is not None]
    places: dict[str, PlaceSilences] = {}
    for place in (place for summary in seen for place in summary.places):
        other = places.get(place.place, place)
        count, longest_s = max(place.count, other.count), max(place.longest_s, other.longest_s)
        places[place.place] = PlaceSilences(place.place, count, longest_s)
    return SilenceSummary(
        max(summary.observed_s for summary in seen),
        max(summary.count for summary in seen),
        max(summary.longest_s for summary in seen),
        min(time_outs, default=None),
        max(summary.start_s for summary in seen),
        max(summary.step_s for summary in seen),
        _longest_first(places.values()),
    )


def bounded_s(read_s: float) -> float:
    """Seconds of a silence that was read; 0, as if none was known, for a value of no plausible size."""
    return read_s if 0 <= read_s < _MOST_S else 0.0
