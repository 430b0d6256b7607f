"""Metrics of the processes that read what tenants wrote."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge


class ReaderMetrics:
    """Whether they live, and are confined."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._ends = Counter(
            "kcover_reader_ends",
            "Times a process that reads what tenants wrote crashed, or was ended because it did not answer.",
            ["reader"],
            registry=registry,
        )
        self._left = Gauge(
            "kcover_helpers_left_behind",
            "Helper processes that were killed and have not ended: they hang in the kernel.",
            registry=registry,
        )
        self._guard = Gauge(
            "kcover_device_guard",
            "1 if the kernel refuses device nodes to the processes that read what tenants wrote.",
            registry=registry,
        )
        self._before: dict[str, int] = {}

    def begin(self, names: Iterable[str], *, refuses_devices: bool) -> None:
        """The readers there are."""
        for name in names:
            self._ends.labels(name)
        self._guard.set(int(refuses_devices))

    def update(self, ends: Mapping[str, int], left_behind: int) -> None:
        """The sums now."""
        for name, count in ends.items():
            self._ends.labels(name).inc(count - self._before.get(name, 0))
        self._before = dict(ends)
        self._left.set(left_behind)
