"""Remembers the passes of one job on this host, and decides how closely its ranks are compared."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice

from kcover_ebpf.diagnosis.clock.stragglers import (
    Pass,
    Place,
    Straggler,
    lasted_s,
    latest,
    seen,
    straggler,
)
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.tunables.stragglers import (
    COMPARED_PERIOD_MOST_S,
    COMPARED_PERIOD_S,
    COMPARED_S,
    LATE_LEAST_S,
    LONGEST_GAP_S,
    OTHERS_PART,
    PASSES_KEPT,
    RECENT_PASSES,
    SUSPECT_S,
    SUSPECT_SHARE,
    SUSPECT_STEPS,
    THROTTLED_OTHERS_SHARE,
    WAITED_BEFORE_S,
    WINDOWS_S,
)


class StepWatch:
    """Positions of the ranks of this host in healthy passes."""

    def __init__(self) -> None:
        self._passes: deque[Pass[Pid]] = deque(maxlen=PASSES_KEPT)
        self._late: deque[Pass[Pid]] = deque(maxlen=PASSES_KEPT)
        """Passes in which one rank was last."""
        self._compares_until_s = self._rests_until_s = -math.inf
        self._rest_s = COMPARED_PERIOD_S
        self._elsewhere = False
        self._slow: Straggler[Pid] | None = None
        """The slow rank found by the last search; None if there was none."""
        self._asked_s = 0.0
        """Time in seconds of the newest pass that this search included."""

    def observe(
        self, found: Mapping[Pid, float | Place], now_ns: int, *, elsewhere: bool = False
    ) -> None:
        """Take one pass over all living ranks: seconds for which a rank has waited for others, or what it does instead.

        `elsewhere`: other ranks are on other hosts, and all ranks here may be waiting for one of those.
        """
        self._elsewhere, now_s = elsewhere, now_ns / NS
        if self._passes and self._passes[-1].found.keys() != found.keys():
            self._passes.clear()
            self._late.clear()
            self._slow = None
        since_s = now_s - self._passes[-1].at_s if self._passes else LONGEST_GAP_S
        one_pass = seen(now_s, min(since_s, LONGEST_GAP_S), found)
        self._passes.append(one_pass)
        if one_pass.last is not None:
            self._late.append(one_pass)
        # only such a pass can begin a comparison, and few passes are like that: the others cost
        # nothing
        is_late = one_pass.last is not None or (elsewhere and not one_pass.working)
        if is_late and now_s >= self._rests_until_s and self._may_lag(now_s):
            self._compare(now_s)

    def _compare(self, now_s: float) -> None:
        in_vain = self._slow is None and now_s < self._rests_until_s + self._rest_s
        self._rest_s = (
            min(2 * self._rest_s, COMPARED_PERIOD_MOST_S) if in_vain else COMPARED_PERIOD_S
        )
        self._compares_until_s = now_s + COMPARED_S
        self._rests_until_s = now_s + (COMPARED_S if self._elsewhere else self._rest_s)

    def compares(self, now_ns: int) -> bool:
        """True while the ranks are to be sampled more often, to confirm that one of them is slow."""
        return now_ns < self._compares_until_s * NS

    @property
    def passes(self) -> Sequence[Pass[Pid]]:
        """Remembered passes, oldest first."""
        return self._passes

    def straggler(self) -> Straggler[Pid] | None:
        """The one rank here that the others wait for; None if there is none.

        Also None while ranks are elsewhere: a rank that waits in another pattern, as a server does, may delay no other
        rank.
        """
        if self._elsewhere or not self._late:
            self._slow = None
        elif self._slow is not None or self._late[-1].at_s > self._asked_s:
            # without a new pass in which one rank was last, none can have become slow
            self._asked_s = self._passes[-1].at_s
            known = None if self._slow is None else self._slow.rank
            self._slow = straggler(list(self._passes), self._asked_s, known)
        return self._slow

    def others_wait(self, pid: Pid) -> bool:
        """True if all other ranks, taken together, waited for a good part of the last few passes."""
        recent = list(islice(reversed(self._passes), RECENT_PASSES))
        others = [
            where for one_pass in recent for rank, where in one_pass.found.items() if rank != pid
        ]
        if len(recent) < RECENT_PASSES or not others:
            return False
        waiting = sum(not isinstance(where, Place) for where in others)
        return waiting >= THROTTLED_OTHERS_SHARE * len(others)

    def _may_lag(self, now_s: float) -> bool:
        """True if the ranks wait more than before: either all but one, in share of time, or all of them, in length."""
        recent, before = self._split(now_s)
        if self._elsewhere and _waits_longer(recent, before):
            return True
        late = latest(recent)
        if late is None or len(late.waited_s) < SUSPECT_STEPS:
            return False
        earlier_s = lasted_s(one_pass for one_pass in before if one_pass.last == late.rank)
        more = late.lasts_s / SUSPECT_S - earlier_s / max(SUSPECT_S, lasted_s(before))
        return late.other_steps <= OTHERS_PART * len(late.waited_s) and more >= SUSPECT_SHARE

    def _split(self, now_s: float) -> tuple[list[Pass[Pid]], list[Pass[Pid]]]:
        """The passes of the last seconds, and the ones before."""
        recent, before = list[Pass[Pid]](), list[Pass[Pid]]()
        for one_pass in reversed(self._passes):
            if one_pass.at_s <= now_s - WINDOWS_S[-1]:
                break
            (recent if one_pass.at_s > now_s - SUSPECT_S else before).append(one_pass)
        return recent[::-1], before


def _waits_longer(recent: Sequence[Pass[Pid]], before: Sequence[Pass[Pid]]) -> bool:
    """True if all ranks recently waited at once for longer than they ever did before."""
    longest_s = max((one_pass.waited_s for one_pass in before if not one_pass.working), default=0.0)
    is_known = lasted_s(before) >= WAITED_BEFORE_S
    return is_known and any(
        not one_pass.working and one_pass.waited_s > max(LATE_LEAST_S, longest_s)
        for one_pass in recent
    )
