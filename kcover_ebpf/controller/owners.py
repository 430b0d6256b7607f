"""From a pod to the object that made it in the end, by controlling ownerRefs and the table of restarts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kcover_ebpf.cluster import times
from kcover_ebpf.cluster.gang import HELD_BY, GangPod, Target, Top
from kcover_ebpf.cluster.incident import JobRef
from kcover_ebpf.cluster.pods import Owner
from kcover_ebpf.cluster.policy import ARMED
from kcover_ebpf.cluster.restart import Means, Restart, at, group_of, path, restarts
from kcover_ebpf.errors import NotFound
from kcover_ebpf.kube.session import Session

_KEEP_S = 60.0
"""What stands between a pod and its top owner hardly ever changes."""
_MOST_STEPS = 6
_ENDS = ("Complete", "Completed", "Succeeded", "Finished", "Failed", "Aborted", "Terminated")


@dataclass(frozen=True, slots=True)
class Found:
    """The top owner of a gang, and what is known beside it."""

    top: Top
    created_s: float | None = None
    """Creation of the object; None for one of an unknown kind."""


@dataclass(frozen=True, slots=True)
class _Link:
    armed: bool
    owner: Owner | None


class Owners:
    """Walks up; asks the API server for each object between, once in a while."""

    def __init__(self, session: Session, clock: Callable[[], float] = time.monotonic) -> None:
        self._session, self._clock = session, clock
        self._links: dict[tuple[str, str], tuple[float, _Link]] = {}
        """By namespace and uid: anybody may write the uid of a foreign object into an ownerReference."""
        self._queue_version: str | None = None

    def of_pods(self, namespace: str, pods: Sequence[GangPod]) -> Found | None:
        """The top owner of these pods; None without a pod, or if it is gone already."""
        if not pods:
            return None
        first = min(pods, key=lambda each: (not each.is_live, each.pod.name)).pod
        armed = any(each.pod.labels.get(ARMED) == "true" for each in pods)
        if first.controller is None:
            ref = JobRef("Pod", first.name, first.uid, "v1")
            return Found(Top(ref, None, armed=armed), first.created_s)
        ref, up_armed, raw = self._climb(namespace, first.controller)
        found = self.of_ref(namespace, ref, pods, raw)
        if found is None:
            return None
        top = replace(found.top, armed=found.top.armed or armed or up_armed)
        return replace(found, top=top)

    def of_ref(
        self,
        namespace: str,
        ref: JobRef,
        pods: Sequence[GangPod] = (),
        raw: Mapping[str, Any] | None = None,
    ) -> Found | None:
        """The object itself, as it is now; None if it is gone, or another one has its name.

        `raw`: the object, where it was read just now.
        """
        row = restarts().find(ref.api_version, ref.kind)
        if row is None:
            return Found(Top(ref, None))
        if raw is None:
            try:
                raw = self._session.get(_path(ref.api_version, row.plural, namespace, ref.name))
            except NotFound:
                return None
        metadata = raw.get("metadata") or {}
        if metadata.get("uid") != ref.uid:
            return None
        top = Top(
            ref=ref,
            row=row,
            target=self._target(namespace, ref, row, raw),
            armed=(metadata.get("labels") or {}).get(ARMED) == "true",
            ended=_ended(raw),
            costs_in_place=_costs(row, raw, pods),
            deletion_means=_deletion_means(raw) if row.means is Means.COMMAND else False,
            version=_version(raw),
        )
        return Found(top, times.from_text(str(metadata["creationTimestamp"])))

    def _climb(self, namespace: str, owner: Owner) -> tuple[JobRef, bool, Mapping[str, Any] | None]:
        """The top, whether anything on the way arms it, and the top's object if it was read."""
        armed = False
        for _ in range(_MOST_STEPS):
            link, raw = self._link(namespace, owner)
            if link is None:
                break
            armed = armed or link.armed
            if link.owner is None:
                break
            owner = link.owner
        return JobRef(owner.kind, owner.name, owner.uid, owner.api_version), armed, raw

    def _link(self, namespace: str, owner: Owner) -> tuple[_Link | None, Mapping[str, Any] | None]:
        """What is above an owner, and the owner's object if it was read now.

        None, None for a kind that is not in the table, or an object that is gone or has another uid.
        """
        key = namespace, owner.uid
        kept = self._links.get(key)
        if kept is not None and self._clock() - kept[0] < _KEEP_S:
            return kept[1], None
        row = restarts().find(owner.api_version, owner.kind)
        is_pod = (owner.api_version, owner.kind) == ("v1", "Pod")
        if row is None and not is_pod:
            return None, None
        plural = "pods" if row is None else row.plural
        try:
            raw = self._session.get(_path(owner.api_version, plural, namespace, owner.name))
        except NotFound:
            return None, None
        metadata = raw.get("metadata") or {}
        if metadata.get("uid") != owner.uid:
            return None, None
        above = [_owner(each) for each in metadata.get("ownerReferences") or ()]
        armed = (metadata.get("labels") or {}).get(ARMED) == "true"
        link = _Link(armed, next((each for each in above if each.controller), None))
        if len(self._links) > 10_000:
            self._links.clear()
        self._links[key] = self._clock(), link
        return link, raw

    def _target(
        self, namespace: str, ref: JobRef, row: Restart, raw: Mapping[str, Any]
    ) -> Target | None:
        if row.means is not Means.SUSPEND:
            return None
        metadata = raw["metadata"]
        queue = restarts().queue
        if (metadata.get("labels") or {}).get(queue.label):
            return self._workload(namespace, ref)
        return _hold(raw, ref.api_version, row.plural, row.suspend, held_value=True)

    def _workload(self, namespace: str, ref: JobRef) -> Target | None:
        queue = restarts().queue
        if self._queue_version is None:
            group = self._session.get(f"/apis/{queue.group}")
            self._queue_version = str(group["preferredVersion"]["groupVersion"])
        collection = f"/apis/{self._queue_version}/namespaces/{namespace}/{queue.plural}"
        found = self._session.list(collection, {"labelSelector": f"{queue.find}={ref.uid}"})
        items = found.get("items") or ()
        if not items:
            return None
        return _hold(items[0], self._queue_version, queue.plural, queue.active, held_value=False)


def _hold(
    raw: Mapping[str, Any], api_version: str, plural: str, field: tuple[str, ...], held_value: bool
) -> Target:
    metadata = raw["metadata"]
    value = at(raw, field)
    return Target(
        api_version=api_version,
        plural=plural,
        name=str(metadata["name"]),
        field=field,
        held_value=held_value,
        resource_version=str(metadata["resourceVersion"]),
        held=value is held_value,
        held_by=(metadata.get("annotations") or {}).get(HELD_BY),
    )


def _path(api_version: str, plural: str, namespace: str, name: str) -> str:
    root = f"/apis/{api_version}" if group_of(api_version) else f"/api/{api_version}"
    return f"{root}/namespaces/{namespace}/{plural}/{name}"


def _owner(raw: Mapping[str, Any]) -> Owner:
    names = ("apiVersion", "kind", "name", "uid")
    api_version, kind, name, uid = (str(raw.get(key, "")) for key in names)
    return Owner(api_version, kind, name, uid, raw.get("controller") is True)


def _ended(raw: Mapping[str, Any]) -> str | None:
    for each in at(raw, path("status.conditions")) or ():  # type: ignore[attr-defined]
        if each.get("status") == "True" and each.get("type") in _ENDS:
            return str(each["type"])
    phases = (at(raw, path("status.state.phase")), at(raw, path("status.jobDeploymentStatus")))
    return next((str(each) for each in phases if each in _ENDS), None)


def _costs(row: Restart, raw: Mapping[str, Any], pods: Sequence[GangPod]) -> bool:
    counted = any(each.restart_policy != "Never" for each in pods)
    return counted and bool(row.in_place_costs) and at(raw, row.in_place_costs) is not None


def _deletion_means(raw: Mapping[str, Any]) -> bool:
    spec = raw.get("spec") or {}
    rules = list(spec.get("policies") or ())
    for task in spec.get("tasks") or ():
        rules += task.get("policies") or ()
    events = {event for rule in rules for event in (rule.get("event"), *(rule.get("events") or ()))}
    return bool(events & {"PodEvicted", "*", "AnyEvent"})


def _version(raw: Mapping[str, Any]) -> int:
    status = raw.get("status") or {}
    return int(status.get("version") or 0) + int(status.get("retryCount") or 0)
