"""The pods of a gang, watched only while there is trouble with it: a healthy cluster costs nothing here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from kcover_ebpf.cluster.gang import GangPod
from kcover_ebpf.cluster.kinds import OWNER_UID, POD_UID, selects
from kcover_ebpf.cluster.pods import pod_of
from kcover_ebpf.controller.store import GangKey
from kcover_ebpf.errors import ApiError, ObjectError
from kcover_ebpf.kube.session import Session
from kcover_ebpf.kube.watch import Change, Event, Watch


class Gang:
    """The pods of one gang, kept up to date."""

    def __init__(
        self,
        session: Session,
        key: GangKey,
        changed: Callable[[GangKey], None],
        failed: Callable[[ApiError], None],
    ) -> None:
        self._key, self._changed = key, changed
        self._pods: dict[str, GangPod] = {}
        self._lock = threading.Lock()
        path, query = _asked(key)
        self._watch = Watch(session, path, query, self._on_event, failed)
        self._watch.start()

    @property
    def synced(self) -> bool:
        """True once the first list is complete."""
        return self._watch.synced.is_set()

    @property
    def pods(self) -> tuple[GangPod, ...]:
        """By name."""
        with self._lock:
            return tuple(sorted(self._pods.values(), key=lambda each: each.pod.name))

    def stop(self) -> None:
        """No longer wanted."""
        self._watch.stop()

    def _on_event(self, event: Event) -> None:
        if event.change is Change.SYNCED:
            self._watch.synced.set()
        elif event.change is Change.GONE:
            with self._lock:
                self._pods.pop(str((event.object.get("metadata") or {}).get("uid")), None)
        else:
            try:
                found = gang_pod(event.object)
            except ObjectError:
                return
            if not selects(self._key.labels, found.pod):
                return
            with self._lock:
                self._pods[found.pod.uid] = found
        self._changed(self._key)


class Gangs:
    """All gangs that are watched now."""

    def __init__(
        self,
        session: Session,
        changed: Callable[[GangKey], None],
        failed: Callable[[ApiError], None],
    ) -> None:
        self._session, self._changed, self._failed = session, changed, failed
        self._gangs: dict[GangKey, Gang] = {}
        self._lock = threading.Lock()

    def watch(self, key: GangKey) -> Gang:
        """The gang, watched from now on if it was not."""
        with self._lock:
            if key not in self._gangs:
                self._gangs[key] = Gang(self._session, key, self._changed, self._failed)
            return self._gangs[key]

    def look(self, key: GangKey) -> tuple[GangPod, ...]:
        """The pods as they are now, without a watch; raises `ApiError`."""
        path, query = _asked(key)
        found = []
        for raw in self._session.list(path, query).get("items") or ():
            try:
                each = gang_pod(raw)
            except ObjectError:
                continue
            if selects(key.labels, each.pod):
                found.append(each)
        return tuple(sorted(found, key=lambda each: each.pod.name))

    def forget(self, key: GangKey) -> None:
        """Stop watching a gang."""
        with self._lock:
            found = self._gangs.pop(key, None)
        if found is not None:
            found.stop()


def _asked(key: GangKey) -> tuple[str, dict[str, str]]:
    """Path and query of a gang's pods; those of gangs without labels are picked out afterwards."""
    labels = {name: value for name, value in key.selector if name not in (OWNER_UID, POD_UID)}
    selector = ",".join(f"{name}={value}" for name, value in labels.items())
    return f"/api/v1/namespaces/{key.namespace}/pods", {"labelSelector": selector} if labels else {}


def gang_pod(raw: Mapping[str, Any]) -> GangPod:
    """The pod in an object of the API; raises `ObjectError`."""
    spec = raw.get("spec") or {}
    grace = spec.get("terminationGracePeriodSeconds")
    return GangPod(
        pod=pod_of(raw),
        grace_s=float(grace) if isinstance(grace, int) else 30.0,
        restart_policy=str(spec.get("restartPolicy") or "Always"),
    )
