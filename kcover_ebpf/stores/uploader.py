"""Copies the parts that an agent keeps into a store, one after the other, until they are there or gone; its metrics.

A separate process, which the agent does not know of: it reads a folder, holds the credentials of the store, and can
do nothing else. What is copied is a tar file of the bundle as it is, so every reader of bundles reads it.
"""

from __future__ import annotations

import gzip
import json
import logging
import threading
import time
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
    """What became of an attempt."""

    COPIED = "copied"
    KNOWN = "known"
    """It was there already, of an uploader before this one."""
    FAILED = "failed"
    """It is tried again."""
    REFUSED = "refused"
    """It is no archive, or too large, and never tried again."""


class Uploader:
    """One folder, one store."""

    def __init__(
        self,
        folder: Path,
        node: str,
        store: PartStore,
        on_result: Callable[[UploadResult], None] = lambda _: None,
    ) -> None:
        """`folder`: of an agent's bundles; `on_result`: each attempt, for metrics."""
        self._folder, self._node, self._store, self._on_result = folder, node, store, on_result
        self._done: OrderedDict[str, None] = OrderedDict()
        self._retry_s = 0.0
        self.waiting = 0
        """Parts that are not copied yet, as of the last pass."""
        self.turn_s = time.monotonic()
        """When it last began a pass or a copy (CLOCK_MONOTONIC)."""

    def run(self, ending_event: threading.Event) -> None:
        """Pass after pass until `ending_event`."""
        wait_s = 0.0
        while not ending_event.wait(wait_s):
            wait_s = self.turn()

    def turn(self) -> float:
        """One pass over the folder; seconds until the next. Raises nothing that a folder or a store can cause."""
        self.turn_s = time.monotonic()
        waiting = [path for path in bundle_paths(self._folder) if path.name not in self._done]
        self.waiting = len(waiting)
        for path in waiting:
            self.turn_s = time.monotonic()
            try:
                result = self._copy(path)
            except StoreError as error:
                self._retry_s = min(max(RETRY_S, 2 * self._retry_s), LONGEST_RETRY_S)
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
                raise UsageError("it is no archive of an incident")
            if (size_bytes := bundle_bytes(path)) > COPIED_MOST_BYTES:
                raise UsageError(f"it has {size_bytes >> 20} MiB")
            files = archives.read_files(path)
            namespace = _namespace(files.get(MANIFEST, b""))
        except UsageError as error:
            _LOG.info("%s is not copied: %s", path.name, error)
            return UploadResult.REFUSED
        content = gzip.compress(archives.tar_of(files), compresslevel=6, mtime=0)
        key = part_key(namespace, self._node, path.name)
        is_new = self._store.put(key, content)
        _LOG.info("%s: %s, %d bytes", key, "copied" if is_new else "is there", len(content))
        return UploadResult.COPIED if is_new else UploadResult.KNOWN


def _namespace(manifest: bytes) -> str:
    """Of the job; raises `UsageError` for a bundle that is no archive of an incident."""
    try:
        raw = json.loads(manifest)
        schema, job = str(raw["schema"]), str(raw["job"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UsageError("it is no archive of an incident") from None
    if schema != SCHEMA or "/" not in job:
        raise UsageError("it is no archive of a job in a cluster")
    return job.partition("/")[0]


class UploadMetrics:
    """Of one uploader, for Prometheus (docs/metrics.md)."""

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
