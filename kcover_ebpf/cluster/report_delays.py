"""How long a report was on its way, although no two clocks agree. Pure.

A report carries the time at which it was made, by its node's clock. What arrival minus that time never falls below
is the difference of the clocks; what a report takes more than that is its delay in the agent, on the wire
and in the API server.
"""

from __future__ import annotations

from kcover_ebpf.tunables.recovery import DELAY_SPAN_S, LONGEST_DELAY_S


class Delays:
    """The delays of the reports of all nodes. Not thread-safe."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Least] = {}

    def delay_s(self, node: str, made_s: float, arrived_s: float) -> float | None:
        """Seconds from making to arrival of the newest report of a node; None for the first one known of it."""
        known = self._nodes.get(node)
        if known is None:
            self._nodes[node] = _Least(arrived_s, arrived_s - made_s)
            return None
        return min(LONGEST_DELAY_S, known.above_least(arrived_s, arrived_s - made_s))


class _Least:
    """The least of the last values, of one to two spans."""

    def __init__(self, now_s: float, value_s: float) -> None:
        self._began_s, self._now_s, self._before_s = now_s, value_s, value_s

    def above_least(self, now_s: float, value_s: float) -> float:
        """Take a value; by how much it exceeds the least one."""
        if now_s - self._began_s > DELAY_SPAN_S:
            self._began_s, self._before_s, self._now_s = now_s, self._now_s, value_s
        self._now_s = min(self._now_s, value_s)
        return value_s - min(self._now_s, self._before_s)
