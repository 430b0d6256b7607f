"""Delays of reports and of objects from the API server, although no two clocks agree. Pure.

A report contains the time at which it was made, by its node's clock. The least observed difference of arrival and that
time is the difference of the two clocks. What a report takes beyond it is its delay: in the agent, on the wire and in
the API server.
"""

from __future__ import annotations

from collections.abc import Callable

from kcover_ebpf.tunables.controller import REPORT_LATE_S, WRITTEN_SPAN_S
from kcover_ebpf.tunables.recovery import DELAY_SPAN_S, LONGEST_DELAY_S


class Delays:
    """The delays of the reports of all nodes. Not thread-safe."""

    def __init__(self) -> None:
        self._nodes: dict[str, Least] = {}

    def delay_s(self, node: str, made_s: float, arrived_s: float) -> float | None:
        """Seconds from making to arrival of a node's newest report; None for the first one known of it.

        None also for the first one after its clock was set back by more than `LONGEST_DELAY_S`, or ours forward:
        otherwise every later report would seem old, and a pause that has just begun would seem a hang.
        """
        known_least = self._nodes.get(node)
        if known_least is not None:
            is_same = made_s == known_least.made_s
            late_s = known_least.above_least(made_s, arrived_s)
            if is_same or late_s <= LONGEST_DELAY_S:
                return min(LONGEST_DELAY_S, late_s)
        # a report that was really this late is followed by one that is not, and the least falls
        # again
        self._nodes[node] = Least(made_s, arrived_s)
        return None


class Least:
    """The least of the recent differences of two clocks, over the last one to two spans.

    After a pause of any length, the least of the span before it still counts.
    """

    def __init__(self, made_s: float, arrived_s: float, span_s: float = DELAY_SPAN_S) -> None:
        """Begin with an object that was made and arrived at these times, each by one of the clocks."""
        self.made_s = made_s
        """Time at which the newest object was made, by its own clock."""
        self._span_s, self._began_s = span_s, arrived_s
        self._now_s = self._before_s = arrived_s - made_s

    def above_least(self, made_s: float, arrived_s: float) -> float:
        """Take another object; seconds by which its difference exceeds the least one."""
        self.made_s, value_s = made_s, arrived_s - made_s
        if arrived_s - self._began_s > self._span_s:
            self._began_s, self._before_s, self._now_s = arrived_s, self._now_s, value_s
        self._now_s = min(self._now_s, value_s)
        return value_s - min(self._now_s, self._before_s)


class ServerClock:
    """Delay with which objects written by the API server arrive here. Not thread-safe.

    Our own clock is one that is never set. If the server's is set back, all that it writes seems old for up to two
    spans.
    """

    def __init__(self, elapsed_s: Callable[[], float]) -> None:
        """`elapsed_s`: a monotonic clock, in seconds."""
        self._elapsed_s = elapsed_s
        self._least: Least | None = None

    def arrived_s(self, written_s: float | None, now_s: float) -> float:
        """When an object was written, by our date; `now_s`, unless it was delayed.

        `written_s`: by the server's date, unix seconds; None if it does not say.
        """
        if written_s is None:
            return now_s
        elapsed_s = self._elapsed_s()
        self._least = self._least or Least(written_s, elapsed_s, WRITTEN_SPAN_S)
        late_s = self._least.above_least(written_s, elapsed_s)
        return now_s if late_s < REPORT_LATE_S else now_s - late_s
