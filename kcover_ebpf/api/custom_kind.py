"""A kind of job that an operator describes: the `JobKind` resource. Pure.

It contains the labels of the pods of one job, the owners between them and the job, and how the job is suspended and
resumed. Its paths are JSON pointers (RFC 6901) into objects; no list is entered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum
from typing import Any

from kcover_ebpf.api.codec import decode, wire
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import ObjectError

MOST_KINDS = 64
"""The most JobKinds in a cluster: each pod is compared with all of them."""
_WRITABLE = ("/spec/", "/metadata/annotations/")


@dataclass(frozen=True, slots=True)
class JobKind:
    """How pods of one kind of job are recognised: a row of job_kinds.toml, or `spec.pods` of a `JobKind` object."""

    name: str
    group: str
    owner: str
    """Kind of the owner, whose name may also be used by other API groups (Volcano's Job)."""
    gang: tuple[str, ...]
    operator: str | None = None
    needs: tuple[str, ...] = ()
    parts: str | None = None
    launcher: tuple[str, ...] = ()
    container: str | None = None


class KindRestart(Enum):
    """How the pods of such a job are replaced."""

    SUSPEND = "Suspend"
    """The field `suspend` is set, then reset."""
    DELETE_PODS = "DeletePods"
    """The pods are deleted; the job's controller recreates them and counts no failure."""
    NONE = "None"
    """They are not replaced; they may be restarted in place."""


@dataclass(frozen=True, slots=True)
class OwnerKind:
    """A kind of object between the pods and the job."""

    group: str
    kind: str
    plural: str


@dataclass(frozen=True, slots=True)
class SuspendField:
    """The field of the job that suspends it."""

    path: str
    suspended: object = True
    """Value while the job is suspended."""
    running: object = False
    """Value that resumes the job."""


@dataclass(frozen=True, slots=True)
class Launcher:
    """Label of the pod that only starts the ranks in the other pods."""

    label: str
    value: str


@dataclass(frozen=True, slots=True)
class EndedField:
    """Where the job's object shows that the job is over."""

    path: str
    succeeded: tuple[object, ...] = ()
    failed: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class _Spec:
    group: str
    kind: str
    plural: str
    pod_labels: tuple[str, ...] = ()
    container: str | None = None
    launcher: Launcher | None = None
    owners: tuple[OwnerKind, ...] = ()
    pod_count: tuple[str, ...] = ()
    restart: KindRestart = KindRestart.SUSPEND
    suspend: SuspendField | None = None
    replaces_pods: bool = False
    counts_restarts: str | None = None
    ended: EndedField | None = None
    counters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CustomKind:
    """One JobKind object."""

    name: str
    uid: str
    generation: int
    group: str
    kind: str
    plural: str
    pods: JobKind
    owners: tuple[OwnerKind, ...]
    pod_count: tuple[str, ...]
    """JSON pointers to whole numbers whose sum is the number of pods."""
    restart: KindRestart
    suspend: SuspendField | None
    replaces_pods: bool
    """True if the job's controller replaces a single deleted pod by one of the same rank and counts no failure."""
    counts_restarts: str | None
    """JSON pointer to a field; if that field is set, restarts in place are counted."""
    ended: EndedField | None
    counters: tuple[str, ...]
    ready: tuple[str, str] | None = field(default=None, metadata=wire(None), compare=False)
    """(reason, message) of its condition Ready; None before it has one."""

    @property
    def about(self) -> dict[str, str]:
        """The object that an Event is about (its `involvedObject`)."""
        return about(self.name, self.uid)


def about(name: str, uid: str) -> dict[str, str]:
    """The `involvedObject` of an Event about a JobKind."""
    return {"apiVersion": "kcover.io/v1alpha1", "kind": "JobKind", "name": name, "uid": uid}


def kind_of(api: Mapping[str, Any]) -> CustomKind:
    """The kind in an object of the API; raises `ObjectError`, which names the object and the position."""
    metadata = api.get("metadata")
    if not isinstance(metadata, Mapping) or not metadata.get("name"):
        raise ObjectError("JobKind: metadata.name: missing")
    name = str(metadata["name"])
    try:
        spec = decode(_Spec, api.get("spec"), "spec")
        if why := _wrong(spec):
            raise ObjectError(f"spec.{why}")
    except ObjectError as error:
        raise ObjectError(f"JobKind {name}: {error}") from error
    launcher = (spec.launcher.label, spec.launcher.value) if spec.launcher is not None else ()
    return CustomKind(
        name=name,
        uid=str(metadata.get("uid", "")),
        generation=generation if isinstance(generation := metadata.get("generation"), int) else 0,
        group=spec.group,
        kind=spec.kind,
        plural=spec.plural,
        pods=JobKind(
            name=spec.kind,
            group=spec.group,
            owner=spec.kind,
            gang=spec.pod_labels,
            launcher=launcher,
            container=spec.container,
        ),
        owners=spec.owners,
        pod_count=spec.pod_count,
        restart=spec.restart,
        suspend=spec.suspend,
        replaces_pods=spec.replaces_pods,
        counts_restarts=spec.counts_restarts,
        ended=spec.ended,
        counters=spec.counters,
        ready=_ready(api.get("status")),
    )


def _ready(status: object) -> tuple[str, str] | None:
    conditions = status.get("conditions") if isinstance(status, Mapping) else None
    for condition in conditions if isinstance(conditions, list) else ():
        if isinstance(condition, Mapping) and condition.get("type") == "Ready":
            return str(condition.get("reason", "")), str(condition.get("message", ""))
    return None


def _wrong(spec: _Spec) -> str:
    """First error in it, with its position; empty if it is valid."""
    if not spec.group or not spec.kind or not spec.plural:
        return "group: group, kind and plural must not be empty"
    if (spec.restart is KindRestart.SUSPEND) != (spec.suspend is not None):
        return "suspend: needed with restart Suspend, and with no other"
    if spec.suspend is not None:
        if not spec.suspend.path.startswith(_WRITABLE):
            return f"suspend.path: must begin with {' or '.join(_WRITABLE)}"
        if spec.suspend.suspended == spec.suspend.running:
            return "suspend: suspended and running are the same"
    paths = [*spec.pod_count, *spec.counters]
    paths += [path for path in (spec.counts_restarts,) if path is not None]
    paths += [part.path for part in (spec.suspend, spec.ended) if part is not None]
    bad = next((path for path in paths if not path.startswith("/") or path.endswith("/")), None)
    return f"{bad!r} is no JSON pointer such as /spec/suspend" if bad is not None else ""
