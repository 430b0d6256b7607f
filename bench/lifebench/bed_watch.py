"""What Incidents and Events of a test bed say while phases run, as the lines of a sensor would."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from bench.lifebench.results import Line
from kcover_ebpf.api.rfc3339 import from_text
from kcover_ebpf.errors import ApiError
from kcover_ebpf.kube.client import ApiClient, connect

_PERIOD_S = 0.7
_REQUEST_S = 5.0
_REPORTER = "kcover-ebpf"
_INCIDENTS = "/apis/kcover.io/v1alpha1/incidents"
_ENDING = {"ShuttingDown", "Recovering", "Refused", "Failed"}
"""Phases of an incident whose job was ended, or would have been if a budget had allowed it."""
_SAID = ("verdict", "cause", "certainty", "culprit", "actsAt", "phase")
"""A change of one of these is another line."""


def line_of(status: Mapping[str, Any], now_s: float) -> Line:
    """What an Incident's status says, as a verdict of a sensor says it; `now_s`: when it was seen (CLOCK_REALTIME)."""
    acts = status.get("actsAt")
    return {
        "event": "verdict",
        "time": now_s,
        "verdict": status.get("verdict") or "UNKNOWN",
        "cause": status.get("cause"),
        "certainty": status.get("certainty"),
        "culprit": status.get("culprit"),
        "evidence": status.get("evidence") or [],
        "graph": status.get("graph") or [],
        "acts_at": from_text(acts) if acts else None,
        "acts_why": status.get("actsWhy") or "",
        "phase": status.get("phase"),
        "message": status.get("message") or "",
    }


def has_ended(status: Mapping[str, Any]) -> bool:
    """Whether the job was ended because of it, or is being, or would be without a budget."""
    phases = {moment.get("phase") for moment in status.get("timeline") or ()}
    return bool(_ENDING & {*phases, status.get("phase")}) or bool(status.get("restarts"))


class Said:
    """What was said so far, by namespace."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}
        self._lines: dict[str, list[Line]] = defaultdict(list)
        self._ended: set[str] = set()

    def lines(self, namespace: str) -> list[Line]:
        """What was said about the jobs of a namespace, in order."""
        return list(self._lines[namespace])

    def has_ended(self, namespace: str) -> bool:
        """Whether a job of the namespace was ended because of an incident."""
        return namespace in self._ended

    def take(self, metadata: Mapping[str, Any], status: Mapping[str, Any], now_s: float) -> None:
        """An Incident as it is now; without a status the controller has said nothing yet."""
        namespace = metadata["namespace"]
        said = json.dumps([status.get(name) for name in _SAID], sort_keys=True)
        if has_ended(status):
            self._ended.add(namespace)
        if status and self._last.get(metadata["uid"]) != said:
            self._last[metadata["uid"]] = said
            self._lines[namespace].append({**line_of(status, now_s), "incident": metadata["name"]})


class Watch:
    """A thread that asks the API server; `said` may be read at any time."""

    def __init__(self, kubeconfig: Path) -> None:
        self._api: ApiClient = connect(str(kubeconfig)).hurried(_REQUEST_S)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.said = Said()
        self.misses = 0
        """Rounds that the API server did not answer."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(4 * _REQUEST_S)

    def events(self, namespace: str) -> list[Line]:
        """Our own Events in the namespace, as the API server has them; raises ApiError."""
        found = self._api.list(f"/api/v1/namespaces/{namespace}/events").get("items") or ()
        return [event for event in found if event.get("reportingComponent") == _REPORTER]

    def _run(self) -> None:
        while not self._ended.wait(_PERIOD_S):
            try:
                found = self._api.list(_INCIDENTS).get("items") or ()
            except ApiError:
                self.misses += 1
                continue
            for raw in found:
                self.said.take(raw["metadata"], raw.get("status", {}), time.time())
