"""Writes the Lease of this node's agent, and learns from the Leases how many agents there are. Not thread-safe."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from kcover_ebpf.agent.reports.report_pace import Pace, valid_s
from kcover_ebpf.api.agent_lease import AgentLease, collection, name_of, object_of
from kcover_ebpf.api.fault_report import Ack, PodRef
from kcover_ebpf.errors import ApiError, NotFound, Unreachable
from kcover_ebpf.kube.client import segment
from kcover_ebpf.model.rank_snapshot import RankPace
from kcover_ebpf.tunables.agent import AGENTS_COUNTED_S, LEASE_REFUSED_S, RENEWED_EARLY


class LeaseApi(Protocol):
    """The requests by which a Lease is written."""

    def merge_patch(self, path: str, body: dict[str, object]) -> object:
        """Change some fields of an object."""
        ...

    def create(self, path: str, body: dict[str, object]) -> object:
        """Create an object in a collection."""
        ...

    def list(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, object]:
        """List one page of a collection."""
        ...


class LeaseWriter:
    """The Lease of one node; times are monotonic seconds."""

    def __init__(
        self,
        api: LeaseApi,
        namespace: str,
        node: str,
        on_error: Callable[[str, str, ApiError], None],
        owner_pod: PodRef | None = None,
    ) -> None:
        """`namespace`: of the agents; `on_error`: called with verb, resource and error.

        `owner_pod`: the pod of this agent.
        """
        self._api, self._node, self._on_error = api, node, on_error
        self._owner = owner_pod
        self._all = collection(segment(namespace))
        self._path = f"{self._all}/{segment(name_of(node))}"
        self._refused_until_s = 0.0
        self._count_at_s = 0.0
        self._next_s = 0.0
        self._period_s: float | None = None
        self.acks: tuple[Ack, ...] = ()
        """Acks of orders that the Lease contains."""
        self.pace = Pace()

    def is_usable(self, now_s: float) -> bool:
        """False after the API server refused the Lease; reports must then contain everything."""
        return now_s >= self._refused_until_s

    def is_due(self, now_s: float, period_s: float, acks: tuple[Ack, ...]) -> bool:
        """True if the Lease should be written now; `period_s`: interval while nothing happens."""
        if not self.is_usable(now_s):
            return False
        # a job has stalled since: the last renewal is valid for longer than a snapshot may be
        is_faster = self._period_s is not None and period_s < self._period_s
        return self.lacks(acks) or is_faster or now_s >= self._next_s

    def lacks(self, acks: Iterable[Ack]) -> bool:
        """True if the Lease does not contain all of these; what it need not contain any more is no reason to write."""
        return not set(acks) <= set(self.acks)

    def renew(
        self,
        now_s: float,
        period_s: float,
        current: Collection[int],
        acks: Sequence[Ack],
        paces: Mapping[int, tuple[RankPace, ...]],
    ) -> bool:
        """Write the Lease; False if it was refused; raises `Unreachable` if no answer came."""
        fast = period_s < self.pace.heartbeat_s
        lease = AgentLease(
            self._node,
            time.time(),
            valid_s(period_s, fast=fast),
            frozenset(current),
            tuple(acks),
            paces,
        )
        try:
            self._write(object_of(lease, self._owner))
        except ApiError as error:
            self._on_error("renew", "leases", error)
            if isinstance(error, Unreachable) and error.concerns_all:
                raise
            self._refused_until_s = now_s + LEASE_REFUSED_S
            self.acks = ()
            return False
        self.acks, self._period_s = tuple(acks), period_s
        self._next_s = now_s + period_s * random.uniform(RENEWED_EARLY, 1.0)
        if now_s >= self._count_at_s:
            self._count_at_s = now_s + AGENTS_COUNTED_S * random.uniform(1.0, 1.5)
            self._count()
        return True

    def _write(self, body: dict[str, object]) -> None:
        try:
            self._api.merge_patch(self._path, body)
        except NotFound:
            self._api.create(self._all, body)

    def _count(self) -> None:
        try:
            metadata = self._api.list(self._all, {"limit": "1"}).get("metadata")
        except ApiError as error:
            self._on_error("list", "leases", error)
            return
        left = metadata.get("remainingItemCount", 0) if isinstance(metadata, dict) else 0
        self.pace = Pace(1 + left) if isinstance(left, int) else self.pace
