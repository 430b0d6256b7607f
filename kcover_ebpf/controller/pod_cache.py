"""The pods of gangs, watched once for all gangs of a kind, by the label with which the kind marks its pods.

A gang that is identified by the uid of its owner has a separate watch of its namespace, and only while it has an
open incident.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from kcover_ebpf.api.job_kinds import NO_LABELS, GangId, gang_of, job_kinds, selects
from kcover_ebpf.api.pods import Owner, Pod, about_pod, kept_bytes, pod_of
from kcover_ebpf.api.shares import Shares
from kcover_ebpf.errors import ApiError, ObjectError, OverBound
from kcover_ebpf.kube.client import ApiClient
from kcover_ebpf.kube.reflector import Change, Event, Reflector
from kcover_ebpf.recovery.restart.context import GangPod

_MOST_BYTES, _MOST_OF_ONE_BYTES = 160 << 20, 64 << 20
"""Byte limits for the pods of one watch, in all namespaces and in one: 20,000 pods of a job take 50 MiB."""


class Pods:
    """The pods of one watch, by gang. Thread-safe."""

    def __init__(
        self,
        key_of: Callable[[Pod], GangId | None],
        over: Callable[[OverBound], None] = lambda _: None,
    ) -> None:
        """`key_of`: the gang of a pod; None to ignore it. `over`: called with pods that are not kept."""
        self._key_of, self._over = key_of, over
        self._shares = Shares(_MOST_BYTES, _MOST_OF_ONE_BYTES)
        self._gangs: dict[GangId, dict[str, GangPod]] = {}
        self._keys: dict[str, GangId] = {}
        """Uid of a pod -> its gang."""
        self._sorted: dict[GangId, tuple[GangPod, ...]] = {}
        self._lock = threading.Lock()

    def of(self, gang_id: GangId) -> tuple[GangPod, ...]:
        """The pods of a gang, by name."""
        with self._lock:
            kept = self._sorted.get(gang_id)
            if kept is None:
                found = self._gangs.get(gang_id, {}).values()
                kept = tuple(sorted(found, key=lambda pod: pod.pod.name))
                self._sorted[gang_id] = kept
            return kept

    def forget(self, gang_id: GangId) -> None:
        """Stop reporting changes of a gang."""
        with self._lock:
            self._sorted.pop(gang_id, None)

    def take(self, event: Event) -> GangId | None:
        """Take a changed pod; returns its gang, None if it is ignored."""
        if event.change is Change.GONE:
            return self._drop(str((event.object.get("metadata") or {}).get("uid")))
        try:
            pod = gang_pod(event.object)
        except OverBound as error:
            self._over(error)
            return self._drop(error.about["uid"])
        except ObjectError:
            return None
        key = self._key_of(pod.pod)
        if key is None:
            return self._drop(pod.pod.uid)
        with self._lock:
            if not self._shares.take(pod.pod.uid, key.namespace, kept_bytes(pod.pod)):
                self._over(_over_share(pod.pod))
                return self._remove(pod.pod.uid)
            before = self._keys.get(pod.pod.uid)
            if before is not None and before != key:
                # labels of a pod may be changed by hand
                self._remove(pod.pod.uid)
                self._shares.take(pod.pod.uid, key.namespace, kept_bytes(pod.pod))
            self._keys[pod.pod.uid] = key
            self._gangs.setdefault(key, {})[pod.pod.uid] = pod
            self._sorted.pop(key, None)
        return key

    def _drop(self, uid: str) -> GangId | None:
        with self._lock:
            return self._remove(uid)

    def _remove(self, uid: str) -> GangId | None:
        key = self._keys.pop(uid, None)
        if key is None:
            return None
        self._shares.drop(uid)
        gang = self._gangs[key]
        del gang[uid]
        if not gang:
            del self._gangs[key]
        self._sorted.pop(key, None)
        return key


class _Informer:
    """One watch, and the pods that it reports."""

    def __init__(
        self,
        client: ApiClient,
        asked: tuple[str, dict[str, str]],
        key_of: Callable[[Pod], GangId | None],
        changed: Callable[[GangId | None], None],
        failed: Callable[[ApiError], None],
        over: Callable[[OverBound], None],
    ) -> None:
        self.pods = Pods(key_of, over)
        self._changed = changed
        path, query = asked
        self.watch = Reflector(client, path, query, self._on_event, failed)

    def _on_event(self, event: Event) -> None:
        key = None if event.change is Change.SYNCED else self.pods.take(event)
        self._changed(key)


class PodCache:
    """The pods of all gangs, from one watch per kind."""

    def __init__(
        self,
        client: ApiClient,
        changed: Callable[[GangId], None],
        failed: Callable[[ApiError], None],
        over: Callable[[OverBound], None] = lambda _: None,
        mark: Callable[[Pod], Pod] = lambda pod: pod,
    ) -> None:
        """`changed`: called with gangs that were asked for and not forgotten; `over`: with pods that are not kept.

        `mark`: sets the operators' job kind on a pod.
        """
        self._session, self._notify, self._failed, self._over = client, changed, failed, over
        self._mark = mark
        self._wanted: set[GangId] = set()
        self._own: dict[GangId, _Informer] = {}
        self._lock = threading.Lock()
        self._shared = {
            labels: _Informer(client, ("/api/v1/pods", query), _key_of, self._changed, failed, over)
            for labels, query in _watched()
        }

    def start(self) -> None:
        """Start the watches."""
        for informer in self._shared.values():
            informer.watch.start()

    @property
    def threads(self) -> list[threading.Thread]:
        """The watches, for liveness checks."""
        with self._lock:
            return [
                informer.watch.thread for informer in (*self._shared.values(), *self._own.values())
            ]

    @property
    def synced(self) -> bool:
        """True once the first lists are complete."""
        return all(informer.watch.synced.is_set() for informer in self._shared.values())

    def pods(self, gang_id: GangId) -> tuple[GangPod, ...] | None:
        """The pods of a gang, by name; None while they are not known yet."""
        shared = self._shared.get(tuple(name for name, _ in gang_id.selector))
        with self._lock:
            self._wanted.add(gang_id)
            if shared is None and gang_id not in self._own:
                self._own[gang_id] = self._watch(gang_id)
            informer = shared or self._own[gang_id]
        if not informer.watch.synced.is_set():
            return None
        pods = informer.pods.of(gang_id)
        return pods if shared is not None else tuple(map(self._marked, pods))

    def _marked(self, pod: GangPod) -> GangPod:
        marked = self._mark(pod.pod)
        return pod if marked is pod.pod else replace(pod, pod=marked)

    def shown(self, gang_id: GangId) -> tuple[GangPod, ...]:
        """The pods of a gang as far as they are watched already; starts no watch."""
        shared = self._shared.get(tuple(name for name, _ in gang_id.selector))
        return shared.pods.of(gang_id) if shared is not None else ()

    def forget(self, gang_id: GangId) -> None:
        """Stop the separate watch of a gang that is healthy again."""
        with self._lock:
            self._wanted.discard(gang_id)
            own = self._own.pop(gang_id, None)
        if own is not None:
            own.watch.stop()
        for informer in self._shared.values():
            informer.pods.forget(gang_id)

    def _watch(self, gang_id: GangId) -> _Informer:
        labels = {name: value for name, value in gang_id.selector if name not in NO_LABELS}
        selector = ",".join(f"{name}={value}" for name, value in labels.items())
        path = f"/api/v1/namespaces/{gang_id.namespace}/pods"
        informer = _Informer(
            self._session,
            (path, {"labelSelector": selector} if labels else {}),
            lambda pod: gang_id if selects(gang_id.labels, pod) else None,
            lambda _: self._changed(gang_id),
            self._failed,
            self._over,
        )
        informer.watch.start()
        return informer

    def _changed(self, gang_id: GangId | None) -> None:
        if gang_id is not None and gang_id in self._wanted:
            self._notify(gang_id)


def _watched() -> Iterator[tuple[tuple[str, ...], dict[str, str]]]:
    """Labels by which kinds mark their pods, with a query for each; no pod matches two of them."""
    earlier: list[str] = []
    for labels in dict.fromkeys(kind.gang for kind in job_kinds()):
        wanted = [*labels, *(f"!{label}" for label in earlier)]
        yield tuple(sorted(labels)), {"labelSelector": ",".join(wanted)}
        earlier.append(labels[0])


def _over_share(pod: Pod) -> OverBound:
    detail = f"its namespace has more than {_MOST_OF_ONE_BYTES >> 20} MiB of pods of jobs: it is not watched"
    return OverBound("pods", about_pod(pod.namespace, pod.name, pod.uid), detail)


def _key_of(pod: Pod) -> GangId:
    return gang_of(pod).id


def gang_pod(raw: Mapping[str, Any]) -> GangPod:
    """The pod in an object of the API, as far as a restart needs it; raises `ObjectError`."""
    spec = raw.get("spec") or {}
    grace = spec.get("terminationGracePeriodSeconds")
    pod = pod_of(raw)
    # a cluster may have tens of thousands: unread fields are dropped, and shared values are stored once
    slim = replace(
        pod,
        annotations={},
        owners=tuple(_shared_owner(owner) for owner in pod.owners if owner.controller),
        containers=tuple(replace(container, id="") for container in pod.containers),
    )
    return GangPod(
        pod=slim,
        grace_s=float(grace) if isinstance(grace, int) else 30.0,
        restart_policy=str(spec.get("restartPolicy") or "Always"),
    )


@lru_cache(maxsize=4096)
def _shared_owner(owner: Owner) -> Owner:
    return owner
