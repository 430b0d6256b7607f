"""Bounds on the size of kept incidents: editors may add any number of finalizers, so each namespace has a share."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

from kcover_ebpf.api.fault_report import API_VERSION
from kcover_ebpf.api.shares import Shares
from kcover_ebpf.errors import OverBound

_MOST_FINALIZER_BYTES = 4 << 10
"""Bytes of the finalizers of one incident: dozens of names. Kept whole, because removing ours rewrites all of them."""
_MOST_BYTES, _MOST_OF_ONE_BYTES = 64 << 20, 16 << 20
"""Byte limits for all incidents, and for those of one namespace, which has 600 at most."""
_INCIDENT_BYTES, _PER_BYTE = 4 << 10, 2
"""Approximate memory of one incident: a constant, and bytes per byte of spec and status as JSON (measured: 1.7)."""


class IncidentBounds:
    """Counts bytes of kept incidents. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shares = Shares(_MOST_BYTES, _MOST_OF_ONE_BYTES)

    def check(self, raw: Mapping[str, Any]) -> None:
        """Count an incident that is to be kept; raises `OverBound` if it exceeds a limit."""
        metadata = raw.get("metadata") or {}
        texts = {key: str(metadata.get(key, "")) for key in ("namespace", "name", "uid")}
        about = {"apiVersion": API_VERSION, "kind": "Incident", **texts}
        finalizers_bytes = sum(len(str(name)) for name in metadata.get("finalizers") or ())
        if finalizers_bytes > _MOST_FINALIZER_BYTES:
            detail = f"its finalizers take {finalizers_bytes >> 10} KiB, more than {_MOST_FINALIZER_BYTES >> 10}"
            raise OverBound("incident", about, f"{detail}: its job is not restarted")
        said_bytes = len(json.dumps([raw.get("spec"), raw.get("status")]))
        with self._lock:
            size_bytes = _INCIDENT_BYTES + finalizers_bytes + _PER_BYTE * said_bytes
            if self._shares.take(texts["uid"], texts["namespace"], size_bytes):
                return
        detail = "the incidents of this namespace, or of all namespaces, exceed the limit on memory"
        raise OverBound("incidents", about, f"{detail}: its job is not restarted")

    def forget(self, uid: str) -> None:
        """Subtract the size of a deleted incident."""
        with self._lock:
            self._shares.drop(uid)
