"""Copies the parts that an agent keeps to a store, one by one, until each is stored or deleted; with metrics.

It is a separate process that the agent does not know. It reads a folder, has the credentials of the store, and can
do nothing else. A copy is a tar file of the unchanged bundle, so every reader of bundles can read it.
"""

from __future__ import annotations

import gzip
import json
import logging
import threading
import time
from collections import Counter as Counts
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum
from pathlib import Path

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    ProcessCollector,
    disable_created_metrics,
)

from kcover_ebpf.archive.manifest import MANIFEST, SCHEMA
from kcover_ebpf.errors import StoreError, UsageError
from kcover_ebpf.output import archives
from kcover_ebpf.output.bundles import bundle_bytes, bundle_paths
from kcover_ebpf.output.log_lines import about
from kcover_ebpf.stores.store import PartStore, part_key
from kcover_ebpf.tunables.sending import (
    COPIED_MOST_BYTES,
    LONGEST_RETRY_S,
    PARTS_REMEMBERED,
    RETRY_S,
    SEARCH_S,
)

_LOG = logging.getLogger(__name__)


class UploadResult(Enum):
    """Result of an attempt to copy one part; a label of a metric."""

    COPIED = "copied"
    KNOWN = "known"
    """An earlier uploader has already stored it."""
    FAILED = "failed"
    """The attempt failed and will be repeated."""
    REFUSED = "refused"
    """It is not an archive, or too large, and is never tried again."""


class Uploader:
    """Copies the parts in one folder to one store."""

    def __init__(
        self,
        folder: Path,
        node: str,
        store: PartStore,
        on_result: Callable[[UploadResult], None] = lambda _: None,
    ) -> None:
        """`folder`: bundles of an agent; `on_result`: called after each attempt, for metrics."""
        self._folder, self._node, self._store, self._on_result = folder, node, store, on_result
        self._done: OrderedDict[str, None] = OrderedDict()
        self._failed: Counts[str] = Counts()
        """Names of waiting parts -> failed attempts."""
        self._retry_s = 0.0
        self.waiting = 0
        """Number of parts not yet copied, as of the last pass."""
        self.turn_s = time.monotonic()
        """When the last pass or copy began (CLOCK_MONOTONIC)."""

    def run(self, ending_event: threading.Event) -> None:
        """Repeat passes until `ending_event` is set."""
        wait_s = 0.0
        while not ending_event.wait(wait_s):
            wait_s = self.turn()

    def turn(self) -> float:
        """One pass over the folder; returns seconds until the next. Errors of the folder or store are not raised."""
        self.turn_s = time.monotonic()
        waiting = [path for path in bundle_paths(self._folder) if path.name not in self._done]
        self._failed = Counts({path.name: self._failed[path.name] for path in waiting})
        # a part that the store refuses (a proxy's limit, a rule of the bucket) must not hold up the others
        waiting.sort(key=lambda path: self._failed[path.name])
        self.waiting = len(waiting)
        for path in waiting:
            self.turn_s = time.monotonic()
            try:
                result = self._copy(path)
            except StoreError as error:
                self._retry_s = min(max(RETRY_S, 2 * self._retry_s), LONGEST_RETRY_S)
                self._failed[path.name] += 1
                self._on_result(UploadResult.FAILED)
                _LOG.warning("cannot copy %s: %s", path.name, error, extra=about("copy"))
                return self._retry_s
            self._retry_s = 0.0
            self._on_result(result)
            self._remember(path.name)
            self.waiting -= 1
        return SEARCH_S

    def _remember(self, name: str) -> None:
        self._done[name] = None
        if len(self._done) > PARTS_REMEMBERED:
            self._done.popitem(last=False)

    def _copy(self, path: Path) -> UploadResult:
        try:
            if not (path / MANIFEST).is_file():
                raise UsageError("it is not an archive of an incident")
            if (size_bytes := bundle_bytes(path)) > COPIED_MOST_BYTES:
                raise UsageError(f"it has {size_bytes >> 20} MiB")
            files = archives.read_files(path)
            namespace = _namespace(files.get(MANIFEST, b""))
        except UsageError as error:
            # a disk or a limit of this node: the part itself may be complete
            if isinstance(error.__cause__, OSError):
                raise StoreError(str(error)) from error
            _LOG.info("%s is not copied: %s", path.name, error)
            return UploadResult.REFUSED
        content = gzip.compress(archives.tar_of(files), compresslevel=6, mtime=0)
        key = part_key(namespace, self._node, path.name)
        is_new = self._store.put(key, content)
        _LOG.info("%s: %s, %d bytes", key, "copied" if is_new else "already stored", len(content))
        return UploadResult.COPIED if is_new else UploadResult.KNOWN


def _namespace(manifest: bytes) -> str:
    """Namespace of the job; raises `UsageError` for a bundle that is not an archive of an incident."""
    try:
        raw = json.loads(manifest)
        schema, job = str(raw["schema"]), str(raw["job"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UsageError("it is not an archive of an incident") from None
    if schema != SCHEMA or "/" not in job:
        raise UsageError("it is not an archive of a job in a cluster")
    return job.partition("/")[0]


class UploadMetrics:
    """Prometheus metrics of one uploader (docs/metrics.md)."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        text = (
            "Attempts to copy a part of an archive: copied, known (already stored), failed (retried later), "
            "refused (not an archive, or too large)."
        )
        self._uploads = Counter("kcover_uploads", text, ["result"], registry=self.registry)
        for result in UploadResult:
            self._uploads.labels(result.value)
        text = "Parts of archives that are not copied yet."
        self._waiting = Gauge("kcover_uploads_waiting", text, registry=self.registry)

    def on_result(self, result: UploadResult) -> None:
        """Count the result of one attempt."""
        self._uploads.labels(result.value).inc()

    def follow(self, uploader: Uploader) -> None:
        """Export the number of waiting parts of this uploader."""
        self._waiting.set_function(lambda: uploader.waiting)
