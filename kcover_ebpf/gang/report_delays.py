"""How long a report was on its way, and how late it came, although no two clocks agree. Pure.

A report carries the time at which it was made, by its node's clock. What arrival minus that time never falls below
is the difference of the clocks; what a report takes more than that is its delay in the agent, on the wire
and in the API server.
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
        """Seconds from making to arrival of the newest report of a node; None for the first one known of it.

        Also for the first one after its clock was set back by more than `LONGEST_DELAY_S`, or ours ahead: every later
        report would seem old, and a pause that has just begun a hang.
        """
        known_least = self._nodes.get(node)
        if known_least is not None:
            is_same = made_s == known_least.made_s
            late_s = known_least.above_least(made_s, arrived_s)
            if is_same or late_s <= LONGEST_DELAY_S:
                return min(LONGEST_DELAY_S, late_s)
        # if it was really so late, the next one is not, and is less again
        self._nodes[node] = Least(made_s, arrived_s)
        return None


class Least:
    """The least of the last differences of two clocks, of one to two spans.

    After a pause, however long, that of the span before it still counts.
    """

    def __init__(self, made_s: float, arrived_s: float, span_s: float = DELAY_SPAN_S) -> None:
        """Begin with one that was made and arrived then, each by one of the clocks."""
        self.made_s = made_s
        """Of the newest one."""
        self._span_s, self._began_s = span_s, arrived_s
        self._now_s = self._before_s = arrived_s - made_s

    def above_least(self, made_s: float, arrived_s: float) -> float:
        """Take another one; by how much its difference exceeds the least one."""
        self.made_s, value_s = made_s, arrived_s - made_s
        if arrived_s - self._began_s > self._span_s:
            self._began_s, self._before_s, self._now_s = arrived_s, self._now_s, value_s
        self._now_s = min(self._now_s, value_s)
        return value_s - min(self._now_s, self._before_s)


class ServerClock:
    """How late what the API server wrote comes to us. Not thread-safe.

    Our own clock is one that no one sets. Where the server's is set back, all that it writes seems old, and after two
    spans no longer.
    """

    def __init__(self, elapsed_s: Callable[[], float]) -> None:
        """`elapsed_s`: a clock that only advances, in seconds."""
        self._elapsed_s = elapsed_s
        self._least: Least | None = None

    def arrived_s(self, written_s: float | None, now_s: float) -> float:
        """When an object was written, by the date that we have; now, unless it waited somewhere.

        `written_s`: by the server's date, unix seconds; None where it does not say.
        """
        if written_s is None:
            return now_s
        elapsed_s = self._elapsed_s()
        self._least = self._least or Least(written_s, elapsed_s, WRITTEN_SPAN_S)
        late_s = self._least.above_least(written_s, elapsed_s)
        return now_s if late_s < REPORT_LATE_S else now_s - late_s
