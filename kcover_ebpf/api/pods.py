"""The parts of a pod that we need, from the object that the API server sends."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.custom_kind import JobKind
from kcover_ebpf.api.json_values import list_of, map_of, text_of
from kcover_ebpf.api.pod_waits import PodWait, wait_of
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import ObjectError, OverBound

MOST_POD_BYTES = 32 << 10
"""Limit on the kept bytes of one pod: ten times what a large one takes.

Kubernetes limits annotations, but neither labels, owners, finalizers nor containers, so a pod of 1.3 MB of labels
took 11 MiB in every controller.
"""
_TEXT_BYTES, _CONTAINER_BYTES, _POD_BYTES = 64, 512, 1024
"""Bytes that Python adds per text, and takes per container and per pod (measured, 3.11)."""
_MOST_CLAIMS, _CLAIM_CHARS = 16, 253
_MOST_DEVICES, _DEVICE_CHARS = 16, 253
_PLUGINS_GROUP = "scheduling.x-k8s.io/pod-group"
"""Label of the coscheduling plug-in (kubernetes-sigs/scheduler-plugins, apis/scheduling/v1alpha1)."""
_VOLCANO_GROUPS = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
"""Annotations of Volcano with the pod group (volcano.sh/apis, pkg/apis/scheduling/v1beta1)."""


class ContainerKind(Enum):
    """The purpose of a container in its pod."""

    INIT = "init"
    SIDECAR = "sidecar"
    """An init container that keeps running (restartPolicy Always)."""
    MAIN = "main"
    EPHEMERAL = "ephemeral"


@dataclass(frozen=True, slots=True)
class Owner:
    """One entry of ownerReferences."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool

    @property
    def group(self) -> str:
        """The API group; empty for the core group."""
        group, slash, _ = self.api_version.partition("/")
        return group if slash else ""


GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu", "intel.com/gpu", "habana.ai/gaudi")
"""Resource names under which device plug-ins allocate whole devices."""


@dataclass(frozen=True, slots=True)
class ContainerEnd:
    """How a container ended, as its kubelet reports it; times by that node's clock, exact to one second."""

    code: int
    """Exit code; 128 plus the signal number if a signal ended it."""
    time_s: float | None = None
    """Unix seconds; None if the kubelet does not know."""
    ran_s: float | None = None
    """Seconds that it had run; None if unknown."""
    reason: str = ""
    """Reason given by the runtime: Completed, Error, OOMKilled."""


@dataclass(frozen=True, slots=True)
class Container:
    """One container of a pod, from specification and status."""

    name: str
    kind: ContainerKind
    id: str = ""
    """Id given by the runtime, without its scheme; empty while there is none."""
    restart_count: int = 0
    restarts_pod: bool = False
    """True if it has a rule by which the kubelet restarts the whole pod (RestartAllContainers)."""
    started_s: float | None = None
    """Start time (unix seconds); None while it does not run."""
    last_end: ContainerEnd | None = None
    """The most recent end of the container; None before the first."""


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod; times are unix seconds by the API server's clock, exact to one second."""

    namespace: str
    name: str
    uid: str
    node: str
    """Name of its node; empty while it is not scheduled."""
    phase: str
    created_s: float
    deleted_s: float | None
    """When its grace period ends (deletionTimestamp); None unless it is being deleted."""
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    """Annotations of kcover.io only: all of them may be 256 KiB for each pod."""
    owners: tuple[Owner, ...]
    containers: tuple[Container, ...]
    ready: bool = False
    resource_version: str = ""
    finalizers: tuple[str, ...] = ()
    """Finalizers, which must be removed before its object is deleted."""
    address: str = ""
    """IP address, that of the node if it uses the node's network; empty while it has none."""
    pod_group: str = ""
    """Name of the group with which it is scheduled, all or nothing; empty: it is scheduled alone."""
    deletion_asked_s: float | None = None
    """When its deletion was requested; None unless it is being deleted."""
    gpus: int = 0
    """Whole GPUs in the limits of its main containers; GPUs allocated by DRA are not counted."""
    claims: tuple[str, ...] = ()
    """Names of the PersistentVolumeClaims of its volumes, at most 16."""
    unhealthy: tuple[str, ...] = ()
    """Devices that their plug-in or DRA driver reports Unhealthy, each as RESOURCE DEVICE; at most 16."""
    job_kind: JobKind | None = None
    """The `JobKind` object whose labels it carries (`job_kinds.with_kind`)."""
    on_node_network: bool = False
    """It uses the network of its node (`hostNetwork`): its address is that of the node, and of all such pods there."""
    wait: PodWait | None = None
    """Why a container of it does not run yet; None once all run or have run to their end."""

    @property
    def controller(self) -> Owner | None:
        """The owner that controls it; None for a bare pod."""
        return next((owner for owner in self.owners if owner.controller), None)

    @property
    def ended(self) -> bool:
        """True once it will not run again."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def restarts_in_place(self) -> bool:
        """True if killing a main container makes the kubelet restart the whole pod."""
        main = [container for container in self.containers if container.kind is ContainerKind.MAIN]
        return bool(main) and all(container.restarts_pod for container in main)


def pod_of(api: Mapping[str, Any]) -> Pod:
    """The pod in an object of the API.

    Raises `ObjectError` for one without an identity, `OverBound` for one of which more than `MOST_POD_BYTES` would
    be kept.
    """
    metadata, spec, status = (map_of(api.get(key)) for key in ("metadata", "spec", "status"))
    name, uid = text_of(metadata.get("name")), text_of(metadata.get("uid"))
    if not name or not uid:
        raise ObjectError("Pod: metadata.name and metadata.uid are required")
    if (size_bytes := _size_bytes(metadata, spec)) > MOST_POD_BYTES:
        detail = (
            f"its labels, owners, finalizers and containers take {size_bytes >> 10} KiB, more than "
            f"{MOST_POD_BYTES >> 10}: it is not watched"
        )
        raise OverBound("pod", about_pod(text_of(metadata.get("namespace")), name, uid), detail)
    conditions = [map_of(condition) for condition in list_of(status.get("conditions"))]
    return Pod(
        namespace=text_of(metadata.get("namespace")),
        name=name,
        uid=uid,
        node=text_of(spec.get("nodeName")),
        phase=text_of(status.get("phase")),
        created_s=_time(metadata.get("creationTimestamp")) or 0.0,
        deleted_s=_time(metadata.get("deletionTimestamp")),
        deletion_asked_s=_asked_s(metadata),
        labels=_strings(metadata.get("labels")),
        annotations=_ours(_strings(metadata.get("annotations"))),
        owners=_owners(metadata),
        containers=tuple(_containers(spec, status)),
        ready=any(
            condition.get("type") == "Ready" and condition.get("status") == "True"
            for condition in conditions
        ),
        resource_version=text_of(metadata.get("resourceVersion")),
        finalizers=tuple(text_of(finalizer) for finalizer in list_of(metadata.get("finalizers"))),
        address=text_of(status.get("podIP")),
        pod_group=_pod_group(metadata, spec),
        gpus=sum(map(_gpus, list_of(spec.get("containers")))),
        claims=_claims(text_of(metadata.get("name")), spec),
        unhealthy=_unhealthy(status),
        on_node_network=spec.get("hostNetwork") is True,
        wait=wait_of(spec, status),
    )


def _owners(metadata: Mapping[str, Any]) -> tuple[Owner, ...]:
    return tuple(
        owner_of(map_of(reference)) for reference in list_of(metadata.get("ownerReferences"))
    )


def _unhealthy(status: Mapping[str, Any]) -> tuple[str, ...]:
    """From `allocatedResourcesStatus` of its containers (KEP-4680), which the kubelet writes since Kubernetes 1.36."""
    found = [
        f"{text_of(resource.get('name'))} {text_of(device.get('resourceID'))}"[:_DEVICE_CHARS]
        for container in map(map_of, list_of(status.get("containerStatuses")))
        for resource in map(map_of, list_of(container.get("allocatedResourcesStatus")))
        for device in map(map_of, list_of(resource.get("resources")))
        if device.get("health") == "Unhealthy"
    ]
    return tuple(found[:_MOST_DEVICES])


def _claims(pod: str, spec: Mapping[str, Any]) -> tuple[str, ...]:
    found = []
    for volume in map(map_of, list_of(spec.get("volumes"))):
        if "ephemeral" in volume:  # the claim is created for the pod, and named after both
            found.append(f"{pod}-{text_of(volume.get('name'))}")
        elif claim := text_of(map_of(volume.get("persistentVolumeClaim")).get("claimName")):
            found.append(claim)
    return tuple(claim[:_CLAIM_CHARS] for claim in found[:_MOST_CLAIMS])


def _asked_s(metadata: Mapping[str, Any]) -> float | None:
    """When the deletion was requested: deletionTimestamp is the end of the grace period that was asked for."""
    ends_s, grace_s = (
        _time(metadata.get("deletionTimestamp")),
        metadata.get("deletionGracePeriodSeconds"),
    )
    return None if ends_s is None or not isinstance(grace_s, int) else ends_s - grace_s


def _gpus(container: object) -> int:
    limits = map_of(map_of(map_of(container).get("resources")).get("limits"))
    counts = (str(count) for name, count in limits.items() if name in GPU_RESOURCES)
    return sum(int(count) for count in counts if count.isdecimal() and len(count) < 6)


def _pod_group(metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> str:
    """Pod group of Kubernetes itself (KEP-4671), of the scheduler plugins, or of Volcano."""
    own = text_of(map_of(spec.get("schedulingGroup")).get("podGroupName"))
    labels, annotations = map_of(metadata.get("labels")), map_of(metadata.get("annotations"))
    return (
        own
        or text_of(labels.get(_PLUGINS_GROUP))
        or next((text for key in _VOLCANO_GROUPS if (text := text_of(annotations.get(key)))), "")
    )[:253]


def about_pod(namespace: str, name: str, uid: str) -> dict[str, str]:
    """The `involvedObject` of an Event about a pod."""
    return {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name, "uid": uid}


def kept_bytes(pod: Pod) -> int:
    """Upper estimate of a pod's memory; its owners are not counted, because many pods share them."""
    texts = _texts_bytes(pod.labels) + _texts_bytes(pod.annotations)
    finalizers = sum(_TEXT_BYTES + len(finalizer) for finalizer in pod.finalizers)
    wait = () if pod.wait is None else (pod.wait.reason, pod.wait.detail)
    short = sum(_TEXT_BYTES + len(text) for text in (*pod.claims, *pod.unhealthy, *wait))
    return _POD_BYTES + texts + finalizers + short + _CONTAINER_BYTES * len(pod.containers)


def _size_bytes(metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> int:
    """As `kept_bytes`, for an object of the API before anything of it is kept."""
    containers = sum(len(list_of(spec.get(key))) for key, _, _ in _LISTS)
    owners = [
        text
        for owner_reference in list_of(metadata.get("ownerReferences"))
        for text in map_of(owner_reference).items()
    ]
    texts = (*owners, *((finalizer, "") for finalizer in list_of(metadata.get("finalizers"))))
    return (
        _POD_BYTES
        + _CONTAINER_BYTES * containers
        + _texts_bytes(map_of(metadata.get("labels")))
        + _texts_bytes(_ours(map_of(metadata.get("annotations"))))
        + sum(2 * _TEXT_BYTES + len(str(key)) + len(str(value)) for key, value in texts)
    )


def _texts_bytes(table: Mapping[str, Any]) -> int:
    return sum(2 * _TEXT_BYTES + len(key) + len(str(value)) for key, value in table.items())


def _ours(annotations: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: text for name, text in annotations.items() if name.startswith("kcover.io/")}


def owner_of(raw: Mapping[str, Any]) -> Owner:
    """One of an object's ownerReferences; missing fields are empty."""
    return Owner(
        api_version=text_of(raw.get("apiVersion")),
        kind=text_of(raw.get("kind")),
        name=text_of(raw.get("name")),
        uid=text_of(raw.get("uid")),
        controller=raw.get("controller") is True,
    )


_LISTS = (
    ("initContainers", "initContainerStatuses", ContainerKind.INIT),
    ("containers", "containerStatuses", ContainerKind.MAIN),
    ("ephemeralContainers", "ephemeralContainerStatuses", ContainerKind.EPHEMERAL),
)


def _containers(spec: Mapping[str, Any], status: Mapping[str, Any]) -> list[Container]:
    found: list[Container] = []
    for spec_key, status_key, kind in _LISTS:
        by_name = {
            text_of(map_of(item).get("name")): map_of(item)
            for item in list_of(status.get(status_key))
        }
        found += [
            _container(entry, by_name.get(text_of(entry.get("name")), {}), kind)
            for entry in (map_of(raw) for raw in list_of(spec.get(spec_key)))
        ]
    return found


def _container(raw: Mapping[str, Any], status: Mapping[str, Any], kind: ContainerKind) -> Container:
    if kind is ContainerKind.INIT and raw.get("restartPolicy") == "Always":
        kind = ContainerKind.SIDECAR
    state, last = map_of(status.get("state")), map_of(status.get("lastState"))
    ended = state.get("terminated") or last.get("terminated")
    rules = [
        map_of(restart_policy_rule)
        for restart_policy_rule in list_of(raw.get("restartPolicyRules"))
    ]
    count = status.get("restartCount")
    return Container(
        name=text_of(raw.get("name")),
        kind=kind,
        id=text_of(status.get("containerID")).rpartition("://")[2],
        restart_count=count if isinstance(count, int) else 0,
        restarts_pod=any(rule.get("action") == "RestartAllContainers" for rule in rules),
        started_s=_time(map_of(state.get("running")).get("startedAt")),
        last_end=_end(map_of(ended)),
    )


def _end(raw: Mapping[str, Any]) -> ContainerEnd | None:
    code, began_s, ended_s = (
        raw.get("exitCode"),
        _time(raw.get("startedAt")),
        _time(raw.get("finishedAt")),
    )
    if not isinstance(code, int):
        return None
    ran_s = None if began_s is None or ended_s is None else max(ended_s - began_s, 0.0)
    return ContainerEnd(code, ended_s, ran_s, text_of(raw.get("reason")))


def _strings(raw: object) -> dict[str, str]:
    return {str(key): str(value) for key, value in map_of(raw).items()}


def _time(raw: object) -> float | None:
    if not isinstance(raw, str):
        return None
    try:
        return rfc3339.from_text(raw)
    except ValueError:
        return None
