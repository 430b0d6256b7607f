"""Resolves a pod to its top-level owner by following controller ownerReferences, and the table of restarts."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.incident import JobRef
from kcover_ebpf.api.job_kinds import POD_GROUP, gang_of, is_armed
from kcover_ebpf.api.pods import Owner, owner_of
from kcover_ebpf.controller import service_addresses
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import NotFound, Unreachable
from kcover_ebpf.kube.client import ApiClient, segment
from kcover_ebpf.recovery.restart.context import (
    NOT_MOVED,
    SUSPENDED_BY,
    GangPod,
    SuspendSwitch,
    TopOwner,
)
from kcover_ebpf.recovery.restart.job_object import (
    counts_restarts,
    ended_of,
    gang_of_run,
    ignores_disruptions,
    is_value,
    operator_of,
    pod_count_of,
    reacts_to_deletions,
    version_of,
    waits_for_ends,
)
from kcover_ebpf.recovery.restart.methods import (
    KindMethod,
    KindMethods,
    MovesBy,
    ReplaceMethod,
    at,
    group_of,
    restarts,
)
from kcover_ebpf.tunables.controller import KIND_SILENT_S, OWNER_SLOW_S, OWNERS_KEPT_S

OWNER = "kcover.io/owner"
"""Annotation or label of a job: the target to notify of its incidents."""
_MOST_OWNER = 256
_MOST_STEPS = 6
_MOST_BRANCHES = 16
"""The most controllers of one gang's pods that are looked up; a JobSet may have hundreds, all with the same top."""


@dataclass(frozen=True, slots=True)
class FoundOwner:
    """The top owner of a gang, with further facts about it."""

    top: TopOwner
    created_s: float | None = None
    """Creation of the object (unix seconds); None for an unknown kind."""
    strays: frozenset[str] = frozenset()
    """Pods (uids) that carry the labels of the gang and do not belong to the job."""


@dataclass(frozen=True, slots=True)
class _OwnerLink:
    armed: bool
    owner: Owner | None
    ignores_disruptions: bool = False
    """True for a batch Job that recreates an evicted pod without counting a failure."""
    waits_for_ends: bool = False
    """True for a batch Job that creates a pod only once the old one has ended."""


@dataclass(frozen=True, slots=True)
class _Branch:
    """Pods of one controller, and their top owner."""

    owner: Owner
    pods: tuple[GangPod, ...]
    ref: JobRef
    raw: Mapping[str, Any] | None
    """The object of `ref`, if it was just read."""
    armed: bool
    """True if an object on the path carries the label that arms."""
    named: bool
    """True if an object on the path has the name in the pods' labels; only one object can."""
    complete: bool
    """False if an owner on the path is gone: the pods may belong to any job."""
    first_link: _OwnerLink | None = None
    """Controller of the pods; None if unknown."""


def _weight(pods: Sequence[GangPod]) -> tuple[int, float]:
    # by number, and among equals the older ones: copied labels appear later
    live = [pod for pod in pods if pod.is_live]
    return len(live), -min(pod.pod.created_s for pod in pods)


def _bare(pods: Sequence[GangPod]) -> FoundOwner | None:
    if not pods:
        return None
    first = min(pods, key=lambda pod: (not pod.is_live, pod.pod.name)).pod
    ref = JobRef("Pod", first.name, first.uid, "v1")
    return FoundOwner(TopOwner(ref, None, armed=_most_are_armed(pods)), first.created_s)


def _most_are_armed(pods: Sequence[GangPod]) -> bool:
    """True if most pods carry the label: a single pod added to a gang does not arm it."""
    return sum(is_armed(pod.pod.labels) for pod in pods) * 2 > len(pods)


class Owners:
    """Walks up the owners; caches each object on the path for a while."""

    def __init__(
        self,
        client: ApiClient,
        clock: Callable[[], float] = time.monotonic,
        kinds: Callable[[], KindMethods] = restarts,
    ) -> None:
        """`kinds`: returns the current table of restarts."""
        self._session, self._clock, self._kinds = client, clock, kinds
        self._links: dict[tuple[str, str], tuple[float, _OwnerLink | None]] = {}
        """By namespace and uid: any account may write another object's uid into an ownerReference. None: no object."""
        self._queue_version: str | None = None
        self._silent_until_s: dict[tuple[str, str], float] = {}
        """(apiVersion, plural) -> time before which the kind is not asked again, because it did not answer in time."""

    def _read(self, api_version: str, plural: str, namespace: str, name: str) -> dict[str, Any]:
        """Read one object; `Unreachable` at once while its kind does not answer: a conversion webhook may hang."""
        kind, began_s = (api_version, plural), self._clock()
        if began_s < self._silent_until_s.get(kind, 0.0):
            raise Unreachable(f"{plural} of {api_version} did not answer recently")
        try:
            return self._session.get(_path(api_version, plural, namespace, name))
        except Unreachable:
            if self._clock() - began_s > OWNER_SLOW_S:
                self._silent_until_s[kind] = self._clock() + KIND_SILENT_S
            raise

    def published(self, namespace: str) -> Mapping[str, frozenset[str]]:
        """Service -> uids of the pods whose addresses it publishes."""
        return service_addresses.published(self._session, namespace)

    def of_pods(
        self, namespace: str, pods: Sequence[GangPod], job: JobRef | None = None
    ) -> FoundOwner | None:
        """The top owner of these pods; None without a pod, or if it is gone already.

        Any account may set labels, so pods of several owners may carry the same. The owner is `job` if that is
        given (looked up even without a pod), else the one with the name in the labels, else the one of most pods.
        Pods of other owners are strays.
        """
        branches = self._branches(namespace, pods) if pods else []
        if job is None and not branches:
            return _bare(pods)
        ref = job or max(branches, key=lambda branch: (branch.named, *_weight(branch.pods))).ref
        ours = [branch for branch in branches if branch.ref.uid == ref.uid]
        raw = next((branch.raw for branch in ours if branch.raw is not None), None)
        found = self.of_ref(namespace, ref, pods, raw)
        if found is None or ref.kind == "Pod":
            return found
        if shared := _shared_group(pods, branches):
            return replace(found, top=replace(found.top, target=None, why=shared))
        elsewhere = {branch.owner for branch in branches if branch.complete and branch not in ours}
        strays = [pod.pod.uid for pod in pods if pod.pod.controller in {None, *elsewhere}]
        members = [pod for branch in ours for pod in branch.pods]
        armed = found.top.armed or any(branch.armed for branch in ours) or _most_are_armed(members)
        moves, moves_not = _moves(found.top, members, ours)
        owner = found.top.owner or _most_named(members)
        top = replace(found.top, armed=armed, owner=owner, moves=moves, moves_not=moves_not)
        if any(branch.first_link is None or branch.first_link.waits_for_ends for branch in ours):
            top = replace(top, renames=False)
        return replace(found, top=top, strays=frozenset(strays))

    def _branches(self, namespace: str, pods: Sequence[GangPod]) -> list[_Branch]:
        """Pods by controller, largest and oldest first; pods without a controller are left out."""
        by_owner: defaultdict[Owner, list[GangPod]] = defaultdict(list)
        for pod in pods:
            if pod.pod.controller is not None:
                by_owner[pod.pod.controller].append(pod)
        groups = sorted(by_owner.items(), key=lambda item: _weight(item[1]), reverse=True)
        names = {value for _, value in gang_of(pods[0].pod).id.selector}
        return [
            self._climb(namespace, owner, group, names) for owner, group in groups[:_MOST_BRANCHES]
        ]

    def of_ref(
        self,
        namespace: str,
        ref: JobRef,
        pods: Sequence[GangPod] = (),
        raw: Mapping[str, Any] | None = None,
    ) -> FoundOwner | None:
        """The current object; None if it is gone, or another one has its name.

        `raw`: the object, if it was just read.
        """
        row = self._kinds().find(ref.api_version, ref.kind)
        if row is None or row.refused:
            why, operator = row.refused if row is not None else "", operator_of(ref.api_version)
            return FoundOwner(TopOwner(ref, None, why=why, operator=operator))
        if raw is None:
            try:
                raw = self._read(ref.api_version, row.plural, namespace, ref.name)
            except NotFound:
                return None
        metadata = raw.get("metadata") or {}
        if metadata.get("uid") != ref.uid:
            return None
        top = TopOwner(
            ref=ref,
            method=row,
            target=self._target(namespace, ref, row, raw),
            armed=is_armed(metadata.get("labels") or {}),
            ended=ended_of(row, raw),
            costs_in_place=counts_restarts(row, raw, pods),
            deletion_means=reacts_to_deletions(raw)
            if row.method is ReplaceMethod.COMMAND
            else False,
            version=version_of(raw),
            pod_count=pod_count_of(row, raw),
            renames=row.renames,
            gang=gang_of_run(row, raw),
            has_gang_a_run=row.gang is not None,
            operator=operator_of(ref.api_version, raw),
            owner=_owner(metadata),
        )
        return FoundOwner(top, rfc3339.from_text(str(metadata["creationTimestamp"])))

    def _climb(
        self, namespace: str, first_owner: Owner, pods: list[GangPod], names: set[str]
    ) -> _Branch:
        """Walk from one controller to the top; `names`: names in the pods' labels."""
        owner, armed, named, complete = first_owner, False, False, False
        first_link: _OwnerLink | None = None
        raw: Mapping[str, Any] | None = None
        for _ in range(_MOST_STEPS):
            link, raw = self._link(namespace, owner)
            if link is None:
                complete = self._readable(owner) is None
                break
            armed, named = armed or link.armed, named or owner.name in names
            first_link = first_link or link
            if link.owner is None:
                complete = True
                break
            owner = link.owner
        ref = JobRef(owner.kind, owner.name, owner.uid, owner.api_version)
        return _Branch(first_owner, tuple(pods), ref, raw, armed, named, complete, first_link)

    def _link(
        self, namespace: str, owner: Owner
    ) -> tuple[_OwnerLink | None, Mapping[str, Any] | None]:
        """The owner of an owner, and the object of the lower one if it was just read.

        (None, None) for a kind that is not in the table, or an object that is gone or has another uid.
        """
        key = namespace, owner.uid
        kept = self._links.get(key)
        if kept is not None and self._clock() - kept[0] < OWNERS_KEPT_S:
            return kept[1], None
        row = self._readable(owner)
        is_pod = (owner.api_version, owner.kind) == ("v1", "Pod")
        if row is None and not is_pod:
            return None, None
        plural = "pods" if row is None else row.plural
        try:
            raw = self._read(owner.api_version, plural, namespace, owner.name)
        except NotFound:
            raw = {}
        metadata = raw.get("metadata") or {}
        if metadata.get("uid") != owner.uid:
            self._keep(key, None)
            return None, None
        above = [
            owner_of(owner_reference) for owner_reference in metadata.get("ownerReferences") or ()
        ]
        armed = is_armed(metadata.get("labels") or {})
        link = _OwnerLink(
            armed,
            next((other_owner for other_owner in above if other_owner.controller), None),
            ignores_disruptions(raw),
            waits_for_ends(raw),
        )
        self._keep(key, link)
        return link, raw

    def _readable(self, owner: Owner) -> KindMethod | None:
        """The table row of an owner that may be read; None for any other."""
        row = self._kinds().find(owner.api_version, owner.kind)
        return row if row is not None and not row.refused else None

    def _keep(self, key: tuple[str, str], link: _OwnerLink | None) -> None:
        if len(self._links) > 10_000:
            self._links.clear()
        self._links[key] = self._clock(), link

    def _target(
        self, namespace: str, ref: JobRef, method: KindMethod, raw: Mapping[str, Any]
    ) -> SuspendSwitch | None:
        if method.method is not ReplaceMethod.SUSPEND:
            return None
        metadata = raw["metadata"]
        queue = restarts().queue
        if (metadata.get("labels") or {}).get(queue.label):
            return self._workload(namespace, ref)
        values = method.suspended_value, method.running_value
        return _hold(raw, ref.api_version, method.plural, method.suspend, values)

    def _workload(self, namespace: str, ref: JobRef) -> SuspendSwitch | None:
        queue = restarts().queue
        if self._queue_version is None:
            group = self._session.get(f"/apis/{queue.group}")
            self._queue_version = str(group["preferredVersion"]["groupVersion"])
        collection = f"/apis/{self._queue_version}/namespaces/{namespace}/{queue.plural}"
        found = self._session.list(collection, {"labelSelector": f"{queue.find}={ref.uid}"})
        items = found.get("items") or ()
        if not items:
            return None
        return _hold(items[0], self._queue_version, queue.plural, queue.active, (False, True))


def _hold(
    raw: Mapping[str, Any],
    api_version: str,
    plural: str,
    field: tuple[str, ...],
    values: tuple[object, object],
) -> SuspendSwitch:
    """`values`: of the field while the job is suspended, and while it runs."""
    metadata = raw["metadata"]
    suspended_value, running_value = values
    return SuspendSwitch(
        api_version=api_version,
        plural=plural,
        name=str(metadata["name"]),
        field=field,
        suspended_value=suspended_value,
        resource_version=str(metadata["resourceVersion"]),
        suspended=is_value(at(raw, field), suspended_value),
        suspended_by=(metadata.get("annotations") or {}).get(SUSPENDED_BY),
        running_value=running_value,
    )


def _path(api_version: str, plural: str, namespace: str, name: str) -> str:
    # all parts except `plural` come from an ownerReference, whose characters are not checked
    version = "/".join(segment(part) for part in api_version.split("/"))
    root = f"/apis/{version}" if group_of(api_version) else f"/api/{version}"
    return f"{root}/namespaces/{segment(namespace)}/{plural}/{segment(name)}"


def _shared_group(pods: Sequence[GangPod], branches: Sequence[_Branch]) -> str:
    """Why no single object restarts all pods of one pod group; empty if one does."""
    if not pods or POD_GROUP not in gang_of(pods[0].pod).id.labels:
        return ""
    tops = sorted(
        {f"{branch.ref.kind} {branch.ref.name}" for branch in branches if branch.complete}
    )
    if len(tops) < 2:
        return ""
    return f"the pods of its pod group belong to {', '.join(tops[:4])}, which cannot be restarted together"


def _moves(
    top: TopOwner, pods: Sequence[GangPod], branches: Sequence[_Branch]
) -> tuple[MovesBy, str]:
    """How one pod of a job is moved to another node; and if it cannot be, the reason."""
    moves = top.method.moves if top.method is not None and not top.why else MovesBy.NONE
    if moves is MovesBy.EVICT and not all(
        branch.first_link is not None and branch.first_link.ignores_disruptions
        for branch in branches
    ):
        why = "its Jobs count an evicted pod: give them a podFailurePolicy that ignores DisruptionTarget"
        return MovesBy.NONE, why
    if moves is MovesBy.DELETE_RESTARTABLE and any(pod.restart_policy == "Never" for pod in pods):
        return MovesBy.NONE, "a deleted pod with restartPolicy Never fails the job"
    if moves is MovesBy.DELETE and top.deletion_means:
        return MovesBy.NONE, "a policy of the job reacts to deletions of pods"
    return moves, NOT_MOVED if moves is MovesBy.NONE else ""


def _owner(metadata: Mapping[str, Any]) -> str | None:
    for table in (metadata.get("annotations"), metadata.get("labels")):
        text = table.get(OWNER) if isinstance(table, Mapping) else None
        if isinstance(text, str) and text.strip():
            return text.strip()[:_MOST_OWNER]
    return None


def _most_named(pods: Sequence[GangPod]) -> str | None:
    named = Counter(pod.pod.labels[OWNER] for pod in pods if pod.pod.labels.get(OWNER))
    name, count = max(named.items(), key=lambda item: item[1], default=("", 0))
    return name if count * 2 > len(pods) else None
