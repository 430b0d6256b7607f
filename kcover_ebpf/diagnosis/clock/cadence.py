"""Learns the lengths of a healthy rank's silences, and from them the length that counts as a stall.

A job that slows down little by little learns each of its gaps, and so never stalls: `Frequency` compares its
minutes.
"""

from __future__ import annotations

from collections import deque
from statistics import fmean, median

from kcover_ebpf.tunables.diagnosis import LEARNED_GAPS, UNLEARNED_STALL_S
from kcover_ebpf.tunables.sampling import (
    CLOSER_BEFORE_UNLEARNED_S,
    CLOSER_FLOOR_S,
    EACH_PASS_S,
    PAYLOAD_MINUTES_KEPT,
    REMEMBERED_GAPS,
    UNUSUAL_FACTOR,
)
from kcover_ebpf.tunables.stragglers import KNOWN_MINUTES, STANDSTILL_MINUTES, STANDSTILL_SHARE


class Cadence:
    """The gaps between signs of progress of one rank; all times in seconds.

    The threshold is a multiple of the longest remembered gap, so a job with long silent steps is given long ones. Gaps
    of an incident must not be learned: `forget_current` drops the present gap.
    """

    def __init__(
        self, floor_s: float, factor: float, unlearned_s: float = UNLEARNED_STALL_S
    ) -> None:
        """`unlearned_s` is the threshold until enough gaps were observed."""
        self._floor_s, self._factor, self._unlearned_s = floor_s, factor, unlearned_s
        self._gaps: deque[float] = deque(maxlen=REMEMBERED_GAPS)
        self._longest_s: float | None = 0.0
        """The longest of the gaps; None while it must be computed again."""
        self._last_s: float | None = None
        self._began_s: float | None = None
        self._restarted = False

    @property
    def last_s(self) -> float | None:
        """Time of the last progress; None before the first."""
        return self._last_s

    def progress(self, now_s: float) -> None:
        """Note a sign of progress at `now_s`; signs that arrive in disorder are ignored."""
        self._began_s = now_s if self._began_s is None else self._began_s
        if self._last_s is not None and now_s > self._last_s:
            self._learn(now_s - self._last_s)
        if self._last_s is None or now_s > self._last_s:
            self._last_s = now_s

    def _learn(self, gap_s: float) -> None:
        if len(self._gaps) == REMEMBERED_GAPS and self._gaps[0] == self._longest_s:
            self._longest_s = None
        elif self._longest_s is not None and gap_s > self._longest_s:
            self._longest_s = gap_s
        self._gaps.append(gap_s)

    def forget_current(self, now_s: float) -> None:
        """Restart the present gap without learning it (the node slept, or the sensor was blind)."""
        self._last_s = None if self._last_s is None else max(now_s, self._last_s)

    def restart(self) -> None:
        """Forget all gaps: what was learned belongs to another phase of the job (its start)."""
        self._gaps.clear()
        self._longest_s = 0.0
        self._began_s, self._restarted = self._last_s, True

    def relearn(self, unlearned_s: float) -> None:
        """Forget all gaps; the threshold is at least `unlearned_s` until new ones are learned."""
        self.restart()
        self._unlearned_s = max(self._unlearned_s, unlearned_s)

    def expect(self, gap_s: float) -> None:
        """Until there are enough gaps, use the longest one of an earlier start of the job, in seconds."""
        self._unlearned_s = max(self._floor_s, self._factor * gap_s)

    @property
    def sign_count(self) -> int:
        """Number of gaps between signs of progress that are remembered."""
        return len(self._gaps)

    @property
    def alarm_s(self) -> float:
        """Silence in seconds from which on the rank is watched closely: just above the longest one observed.

        If every pass showed progress, one pass without it is already unusual. Before any did, only a silence close to a
        stall is.
        """
        if not self._gaps and not self._restarted:
            return max(CLOSER_FLOOR_S, self._unlearned_s - CLOSER_BEFORE_UNLEARNED_S)
        longest_s = self.longest_s
        return max(CLOSER_FLOOR_S, UNUSUAL_FACTOR * longest_s if longest_s > EACH_PASS_S else 0)

    @property
    def learned(self) -> bool:
        """True once the threshold is computed from this job's own gaps."""
        if self._last_s is None or self._began_s is None or len(self._gaps) < LEARNED_GAPS:
            return False
        return self._last_s - self._began_s >= 3 * self.longest_s

    @property
    def longest_s(self) -> float:
        """The longest healthy gap so far, in seconds; 0 before the first."""
        if self._longest_s is None:
            self._longest_s = max(self._gaps, default=0.0)
        return self._longest_s

    @property
    def threshold_s(self) -> float:
        """Silence in seconds from which on the rank has stalled."""
        if not self.learned:
            return max(self._unlearned_s, self._factor * self.longest_s)
        return max(self._floor_s, self._factor * self.longest_s)


class Frequency:
    """Rate of a job's progress, minute by minute, over the last hour in which it made progress; all times in seconds.

    Progress several times a second counts once, because passes are no more frequent. A minute ends with a sign of
    progress, so one silence lies in one minute, however long it is.
    """

    def __init__(self) -> None:
        self._per_s: deque[float] = deque(maxlen=PAYLOAD_MINUTES_KEPT)
        """Signs of progress per second in each minute, oldest first."""
        self._began_s: float | None = None
        self._counted_s = 0.0
        self._count = 0

    def progress(self, now_s: float) -> None:
        """Note that any rank made progress at `now_s`."""
        if self._began_s is None:
            self._began_s = self._counted_s = now_s
        if now_s - self._counted_s < 1.0:
            return
        self._counted_s, self._count = now_s, self._count + 1
        lasts_s = now_s - self._began_s
        if lasts_s >= 60.0:
            self._per_s.append(self._count / lasts_s)
            self._began_s, self._count = now_s, 0

    def forget_current(self) -> None:
        """Drop the present minute, because it was not observed as a whole."""
        self._began_s, self._count = None, 0

    @property
    def slower(self) -> float | None:
        """Factor by which progress is rarer than in the median minute; None if it is not far rarer."""
        if len(self._per_s) < KNOWN_MINUTES + STANDSTILL_MINUTES:
            return None
        now, usual = list(self._per_s)[-STANDSTILL_MINUTES:], median(self._per_s)
        return usual / fmean(now) if max(now) < STANDSTILL_SHARE * usual else None
