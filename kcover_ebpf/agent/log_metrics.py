"""Metrics of the reading of containers' logs."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter


class LogMetrics:
    """What was read, and what was not."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._read = Counter(
            "kcover_log_read_bytes", "Bytes of containers' logs that were read.", registry=registry
        )
        self._skipped = Counter(
            "kcover_log_skipped_bytes",
            "Bytes of containers' logs that were skipped because the log grew faster than the read limit.",
            registry=registry,
        )
        self._before = (0, 0)

    def update(self, read_bytes: int, skipped_bytes: int) -> None:
        """The sums now."""
        self._read.inc(read_bytes - self._before[0])
        self._skipped.inc(skipped_bytes - self._before[1])
        self._before = (read_bytes, skipped_bytes)
