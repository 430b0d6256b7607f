"""How often an agent may write, so that all agents of a large cluster together write no more than it can take. Pure.

What costs the API server something is the number of writes of all agents. So each takes more time the more
of them there are: up to some hundred nodes nothing is slower than it could be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kcover_ebpf.api.fault_report import FaultReport
from kcover_ebpf.diagnosis.roles import Role

HEARTBEAT_S = 30.0
"""Between renewals of the Lease while no job here has stalled."""
_HEARTBEATS = 50.0
"""A second, of all agents: a third of what kubelets renew for 1,500 nodes."""
_FAST_S = 3.0
"""The same while one has stalled: a controller believes a snapshot for 10 s without it."""
_OF_A_GANG, _OF_ALL = 200.0, 300.0
"""Renewals a second for one stalled gang, and for all of them: a third of a core of the API server."""
_REFRESH_S = 600.0
"""Between whole reports in which nothing changes; an object that somebody altered is repaired by it."""
_REFRESHES = 5.0
"""A second, of all agents."""
_DETAILS = 25.0
"""Reports a second, of all agents, about ranks of which it is not known whether they make progress."""
_REFILL_S = 5.0
_REPORTS = 100.0
"""A second, of one gang whose state keeps changing: half a core of the API server."""
_BURST = 6
_RESERVE = 3
"""Of these for news: details must not use up what a verdict needs."""
_GAP_S = 1.0
"""Between two reports with different details."""
_VALID_PERIODS = 3


@dataclass(frozen=True, slots=True)
class Pace:
    """The periods for one size of a cluster, in seconds."""

    agents: int = 1

    @property
    def heartbeat_s(self) -> float:
        """Between renewals while all is calm."""
        return max(HEARTBEAT_S, self.agents / _HEARTBEATS)

    @property
    def refresh_s(self) -> float:
        """Between whole reports without a change."""
        return max(_REFRESH_S, self.agents / _REFRESHES)

    @property
    def details_s(self) -> float:
        """Between reports about ranks whose details change and that have not stalled."""
        return max(HEARTBEAT_S, self.agents / _DETAILS)

    def fast_s(self, nodes: int | None) -> float:
        """Between renewals while a gang on so many nodes has stalled; None: it may be on all of them."""
        gang = self.agents if nodes is None else nodes
        return max(_FAST_S, gang / _OF_A_GANG, self.agents / _OF_ALL)

    def refill_s(self, nodes: int | None) -> float:
        """Between reports about a gang on so many nodes that changes all the time."""
        gang = self.agents if nodes is None else nodes
        return max(_REFILL_S, gang / _REPORTS)


def valid_s(period_s: float, *, fast: bool) -> int:
    """For how long a renewal counts when the next one comes after `period_s`."""
    return math.ceil(period_s * _VALID_PERIODS + 1 if fast else period_s * 1.5)


def nodes_of(report: FaultReport) -> int | None:
    """On how many nodes the gang of a report trains, by the size of its world; None if that is not known."""
    ranks = [each for each in report.ranks if each.role is Role.RANK]
    size = max((each.world_size or 0 for each in ranks), default=0)
    return math.ceil(size / len(ranks)) if size and ranks else None


class Allowance:
    """How many reports about one gang may be sent now: some at once, then one for each refill. Monotonic seconds."""

    def __init__(self) -> None:
        self._left = float(_BURST)
        self._counted_s: float | None = None
        self._sent_s: float | None = None

    def may_send(self, now_s: float, refill_s: float, *, is_news: bool) -> bool:
        """True if a report may be sent; `is_news`: it is not only about details."""
        if self._counted_s is not None:
            gained = (now_s - self._counted_s) / refill_s
            self._left = min(float(_BURST), self._left + gained)
        self._counted_s = now_s
        if is_news:
            return self._left >= 1
        soon = self._sent_s is not None and now_s - self._sent_s < _GAP_S
        return not soon and self._left >= 1 + _RESERVE

    def spend(self, now_s: float) -> None:
        """One was sent."""
        self._left = max(0.0, self._left - 1)
        self._sent_s = now_s
