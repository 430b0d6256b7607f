"""How often an agent may write, so that all agents of a large cluster together stay within what it can take. Pure.

The API server's cost is the number of writes of all agents. So intervals grow with the number of agents; up to some
hundred nodes they are as short as useful.
"""

from __future__ import annotations

import math

from kcover_ebpf.api.fault_report import FaultReport
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.model.roles import Role
from kcover_ebpf.tunables.agent import (
    COMPARED_HEARTBEAT_S,
    COMPARED_HEARTBEATS_PER_S,
    DETAILS_GAP_S,
    DETAILS_PER_S,
    GANG_HEARTBEATS_PER_S,
    GANG_REFRESHES_PER_S,
    GANG_REPORTS_PER_S,
    HEARTBEAT_S,
    HEARTBEATS_PER_S,
    LONGEST_HEARTBEAT_S,
    REFRESH_S,
    REFRESHES_PER_S,
    REPORT_BURST,
    REPORT_PAUSE_S,
    REPORT_RESERVE,
    STALLED_HEARTBEAT_S,
    STALLED_HEARTBEATS_PER_S,
    STALLED_REFRESH_S,
    VALID_PERIODS,
)


@dataclass(frozen=True, slots=True)
class Pace:
    """The intervals for one size of a cluster, in seconds."""

    agents: int = 1

    @property
    def heartbeat_s(self) -> float:
        """Interval of Lease renewals while all is calm."""
        return max(HEARTBEAT_S, min(self.agents / HEARTBEATS_PER_S, LONGEST_HEARTBEAT_S))

    @property
    def refresh_s(self) -> float:
        """Interval of whole reports without a change."""
        return max(REFRESH_S, self.agents / REFRESHES_PER_S)

    def stalled_refresh_s(self, nodes: int | None) -> float:
        """As `refresh_s` while a gang on this number of nodes has stalled; None: it may be on all nodes."""
        gang = self.agents if nodes is None else nodes
        return max(STALLED_REFRESH_S, gang / GANG_REFRESHES_PER_S)

    @property
    def details_s(self) -> float:
        """Interval of reports about ranks that have not stalled and whose details change."""
        return max(HEARTBEAT_S, self.agents / DETAILS_PER_S)

    @property
    def compared_s(self) -> float:
        """Interval of renewals while ranks are compared with those on other nodes."""
        return max(COMPARED_HEARTBEAT_S, self.agents / COMPARED_HEARTBEATS_PER_S)

    def fast_s(self, nodes: int | None) -> float:
        """Interval of renewals while a gang on this number of nodes has stalled; None: it may be on all nodes."""
        gang = self.agents if nodes is None else nodes
        return max(
            STALLED_HEARTBEAT_S,
            gang / GANG_HEARTBEATS_PER_S,
            self.agents / STALLED_HEARTBEATS_PER_S,
        )

    def refill_s(self, nodes: int | None) -> float:
        """Interval of reports about a gang on this number of nodes that changes all the time."""
        gang = self.agents if nodes is None else nodes
        return max(REPORT_PAUSE_S, gang / GANG_REPORTS_PER_S)


def valid_s(period_s: float, *, fast: bool) -> int:
    """Seconds for which a renewal is valid if the next one comes after `period_s`."""
    return math.ceil(period_s * VALID_PERIODS + 1 if fast else period_s * 1.5)


def nodes_of(report: FaultReport) -> int | None:
    """Number of nodes on which the gang of a report trains, from its world size; None if unknown."""
    ranks = [rank for rank in report.ranks if rank.role is Role.RANK]
    size = max((rank.world_size or 0 for rank in ranks), default=0)
    return math.ceil(size / len(ranks)) if size and ranks else None


class Allowance:
    """Token bucket of reports about one gang: a burst, then one per refill. Monotonic seconds."""

    def __init__(self) -> None:
        self._left = float(REPORT_BURST)
        self._counted_s: float | None = None
        self._sent_s: float | None = None

    def may_send(self, now_s: float, refill_s: float, *, is_news: bool) -> bool:
        """True if a report may be sent; `is_news`: it is not only about details."""
        if self._counted_s is not None:
            gained = (now_s - self._counted_s) / refill_s
            self._left = min(float(REPORT_BURST), self._left + gained)
        self._counted_s = now_s
        if is_news:
            return self._left >= 1
        soon = self._sent_s is not None and now_s - self._sent_s < DETAILS_GAP_S
        return not soon and self._left >= 1 + REPORT_RESERVE

    def spend(self, now_s: float) -> None:
        """Count one report as sent."""
        self._left = max(0.0, self._left - 1)
        self._sent_s = now_s
