"""Prometheus metrics of an uploader (docs/metrics.md)."""

from __future__ import annotations

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    ProcessCollector,
    disable_created_metrics,
)

from kcover_ebpf.stores.uploader import Uploader, UploadResult


class UploadMetrics:
    """Of one uploader."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        text = (
            "Attempts to copy a part of an archive: copied, known (it was there), failed (it is tried again), "
            "refused (no archive, or too large)."
        )
        self._uploads = Counter("kcover_uploads", text, ["result"], registry=self.registry)
        for result in UploadResult:
            self._uploads.labels(result.value)
        text = "Parts of archives that are not copied yet."
        self._waiting = Gauge("kcover_uploads_waiting", text, registry=self.registry)

    def on_result(self, result: UploadResult) -> None:
        """Count an attempt."""
        self._uploads.labels(result.value).inc()

    def follow(self, uploader: Uploader) -> None:
        """Show how many parts of this one wait."""
        self._waiting.set_function(lambda: uploader.waiting)
