"""Circuit breaker: how many jobs may be restarted at once in the cluster, and in one namespace."""

from __future__ import annotations

from dataclasses import field

from kcover_ebpf.api.fault_policy import Bounds
from kcover_ebpf.api.incident import Phase
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.recovery.restart.guards import ClusterLimits
from kcover_ebpf.tunables.controller import RESERVED_S


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on decisions, set by the operator."""

    dry_run: bool = False
    jobs: int = 10
    """Circuit breaker: the most jobs restarted within the window."""
    window_s: float = 300.0
    only: frozenset[str] = frozenset()
    """Namespaces to read; an empty set means all."""
    namespace_percent: float = 50.0
    """Share of the breaker that the jobs of one namespace may use; one job is always allowed."""
    bounds: Bounds = field(default_factory=Bounds)
    incidents: int = 100
    """The most incidents of one namespace that are not closed."""

    @property
    def jobs_here(self) -> int:
        """The most jobs of one namespace that may be restarted within the window."""
        return max(1, int(self.jobs * self.namespace_percent / 100))


def acting(cache: ObjectCache, window_s: float) -> dict[str, str]:
    """Jobs that are being shut down, or were restarted within the window: uid -> namespace."""
    since_s = cache.wall() - window_s
    return {
        incident.job.uid: incident.namespace
        for incident in list(cache.incidents.values())
        if (status := incident.status) is not None
        and (
            status.phase is Phase.SHUTTING_DOWN
            or any(one.time_s >= since_s for one in status.restarts)
        )
    }


class Breaker:
    """Counts jobs that are being restarted; the caller holds a lock from `gates` to `reserve`."""

    def __init__(self, cache: ObjectCache, limits: Limits) -> None:
        self._store, self._limits = cache, limits
        self._reserved: dict[str, tuple[float, str]] = {}
        """Uid of a job -> (time, namespace) of a decision to restart it that the cache does not show yet."""

    def gates(self, uid: str, namespace: str) -> ClusterLimits:
        """What the other jobs leave for this one."""
        limits, now_s = self._limits, self._store.wall()
        # a later moment than now: the clock was set back since
        self._reserved = {
            text: (min(at_s, now_s), where)
            for text, (at_s, where) in self._reserved.items()
            if now_s - at_s < RESERVED_S
        }
        restarted = acting(self._store, limits.window_s) | {
            text: where for text, (_, where) in self._reserved.items()
        }
        restarted.pop(uid, None)
        here = sum(text == namespace for text in restarted.values())
        bounds = limits.bounds
        return ClusterLimits(
            limits.dry_run,
            len(restarted),
            limits.jobs,
            here,
            limits.jobs_here,
            bounds.max_restarts,
            bounds.backoff_seconds,
        )

    def reserve(self, uid: str, namespace: str) -> None:
        """Count a job that is about to be restarted."""
        self._reserved[uid] = self._store.wall(), namespace
