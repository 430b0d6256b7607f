"""Sees from outside what becomes of incidents and, about once a second, of starts of ranks, memory, files.

Incidents are watched, and not listed now and then: one that is deleted half a second after it was opened is seen too.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from bench.chaos.helpers import parent_of
from bench.chaos.invariants import Peak, Seen
from kcover_ebpf.api.rfc3339 import from_text
from kcover_ebpf.errors import ApiError
from kcover_ebpf.kube.client import ApiClient, connect
from kcover_ebpf.kube.reflector import Change, Event, Reflector
from testbed.driver.cluster import Cluster, Namespace
from testbed.driver.fake_agent import processes

_PERIOD_S = 0.7
_REQUEST_S = 3.0
_INCIDENTS = "/apis/kcover.io/v1alpha1/incidents"
_ACTING = ("ShuttingDown", "Recovering")
_INDEX = "batch.kubernetes.io/job-completion-index"


class IncidentLog:
    """What became of each incident of the run, those that were deleted too; one thread writes."""

    def __init__(self, spaces: Sequence[Namespace]) -> None:
        """`spaces`: of which it takes incidents."""
        self._spaces = {space.name: space for space in spaces}
        self._found: dict[str, tuple[Namespace, dict[str, Any]]] = {}
        """By uid, as seen last."""
        self._deleted: set[str] = set()

    def take(self, event: Event) -> None:
        """Take one change."""
        metadata = event.object.get("metadata", {})
        space = self._spaces.get(metadata.get("namespace", ""))
        if space is None:
            return
        if event.change is Change.GONE:
            self._deleted.add(metadata["uid"])
        else:
            self._found[metadata["uid"]] = space, event.object

    def seen(self) -> list[Seen]:
        """All of them."""
        return [_seen(space, raw) for space, raw in list(self._found.values())]

    def is_acting(self, space: Namespace) -> bool:
        """Whether one of this job was in a restart when it was seen last, and is not known to be gone."""
        return any(
            where is space
            and uid not in self._deleted
            and raw.get("status", {}).get("phase") in _ACTING
            for uid, (where, raw) in list(self._found.items())
        )


class Observer:
    """A thread; what it saw may be read at any time."""

    def __init__(self, cluster: Cluster, spaces: Sequence[Namespace], home: str) -> None:
        """`spaces`: one job in each; `home`: where our own pods are."""
        self._spaces, self._home = spaces, home
        self._api: ApiClient = connect(str(cluster.kubeconfig)).hurried(_REQUEST_S)
        self.incidents = IncidentLog(spaces)
        self._watch = Reflector(
            connect(str(cluster.kubeconfig)), _INCIDENTS, {}, self.incidents.take
        )
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.started: dict[str, dict[int, dict[str, float]]] = defaultdict(
            lambda: defaultdict(dict)
        )
        """Namespace, rank, id of a container: when it was seen first (unix seconds)."""
        self.peaks: dict[int, Peak] = {}
        self.misses = 0
        """Rounds that the API server did not answer."""

    def __enter__(self) -> Self:
        self._watch.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.stop()
        self._ended.set()
        self._thread.join(10 * _REQUEST_S)

    def _run(self) -> None:
        while not self._ended.wait(_PERIOD_S):
            try:
                for space in self._spaces:
                    self._take_pods(space)
                self._take_processes()
            except ApiError:
                self.misses += 1

    def _items(self, path: str) -> list[dict[str, Any]]:
        return list(self._api.list(path).get("items") or ())

    def _take_pods(self, space: Namespace) -> None:
        for pod in self._items(f"/api/v1/namespaces/{space.name}/pods"):
            index = pod["metadata"].get("annotations", {}).get(_INDEX)
            if index is None:
                continue
            for status in pod["status"].get("containerStatuses") or ():
                for state in (status.get("state", {}), status.get("lastState", {})):
                    known = status.get("containerID") or ""
                    for item in state.values():
                        known = item.get("containerID") or known
                    if known and ("running" in state or "terminated" in state):
                        self.started[space.name][int(index)].setdefault(known, time.time())

    def _take_processes(self) -> None:
        for pod in self._items(f"/api/v1/namespaces/{self._home}/pods"):
            component = pod["metadata"]["labels"].get("app.kubernetes.io/component", "")
            if component not in ("agent", "controller"):
                continue
            ours = processes(pod["metadata"]["uid"])
            for pid in ours:
                now = _use("helper" if parent_of(pid) in ours else component, pid)
                before = self.peaks.get(pid, now)
                self.peaks[pid] = Peak(
                    before.component,
                    pid,
                    max(now.bytes, before.bytes),
                    max(now.descriptors, before.descriptors),
                )


def _seen(space: Namespace, raw: dict[str, Any]) -> Seen:
    status = raw.get("status", {})
    return Seen(
        job=space.name,
        name=raw["metadata"]["name"],
        verdict=str(status.get("verdict", "")),
        pod=str(status.get("culprit", {}).get("pod", "")),
        since_s=from_text(status.get("since") or raw["metadata"]["creationTimestamp"]),
        phase=str(status.get("phase", "")),
        restarts=len(status.get("restarts", ())),
        timeline=[
            f"{item['time']} {item['phase']} {item.get('text', '')}"
            for item in status.get("timeline", ())
        ],
    )


def _use(component: str, pid: int) -> Peak:
    peak_bytes = 0
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                peak_bytes = int(line.split()[1]) * 1024
        count = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        count = 0
    return Peak(component, pid, peak_bytes, count)
