"""Groups pods into gangs: the table of job kinds, evaluated by a pod's labels alone.

An agent finds a gang without asking the API server: by the labels that a job kind puts on its pods, else by the pod
group that schedules them together, else by the uid of the owner that controls the pod. The last two are used in a
selector as if they were labels.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from functools import cache
from importlib import resources
from typing import Self

from kcover_ebpf.api.custom_kind import JobKind
from kcover_ebpf.api.pods import Container, ContainerKind, Owner, Pod
from kcover_ebpf.dataclass import dataclass

OWNER_UID = "kcover.io/owner-uid"
"""Selector key for the uid of the controlling owner, for kinds that put no label of their own on pods."""
POD_GROUP = "kcover.io/pod-group"
"""Selector key for the pod group of pods that are scheduled all at once (`Pod.pod_group`)."""
POD_UID = "kcover.io/pod-uid"
"""Selector key for the uid of a bare pod, which is a gang of one."""
NO_LABELS = frozenset({OWNER_UID, POD_GROUP, POD_UID})
"""Selector keys that the API server cannot evaluate."""
ARMING_LABEL = "kcover.io/cascading-recovery"
"""Label on most pods of a job, or on any owner above them, that allows a restart."""
_OPERATOR_LABEL = "training.kubeflow.org/operator-name"


@dataclass(frozen=True, slots=True)
class GangId:
    """Identity of a gang: its namespace and the labels that all its pods carry.

    Agents name their reports by it, orders and incidents contain it, and the controller uses it as its key. Two gangs
    with the same labels in one namespace are one gang, whatever name and kind their pods state.
    """

    namespace: str
    selector: tuple[tuple[str, str], ...]
    """Sorted (label, value) pairs; `selects` evaluates them."""

    @classmethod
    def of(cls, namespace: str, labels: Mapping[str, str]) -> Self:
        """Identity of the gang whose pods carry these labels."""
        return cls(namespace, tuple(sorted(labels.items())))

    @property
    def labels(self) -> dict[str, str]:
        """The selector as a mapping from label to value."""
        return dict(self.selector)

    def __str__(self) -> str:
        """Readable form for messages: namespace and selector."""
        return f"{self.namespace}/{'/'.join(value for _, value in self.selector)}"


@dataclass(frozen=True, slots=True)
class Gang:
    """Pods that are started and ended together; equal for all pods of the gang."""

    id: GangId
    name: str
    kind: str | None = field(compare=False)
    """Job kind stated by the pod; the controller finds the real owner.

    Pods of one selector are one gang whatever they state: they have one report, and an order addresses all of them.
    """

    @property
    def namespace(self) -> str:
        return self.id.namespace


@cache
def job_kinds() -> tuple[JobKind, ...]:
    """The rows of job_kinds.toml, in their order."""
    text = resources.files(__package__).joinpath("job_kinds.toml").read_text(encoding="utf-8")
    return tuple(
        JobKind(
            name=name,
            group=row["group"],
            owner=row.get("owner", name),
            gang=tuple(row["gang"]),
            operator=row.get("operator"),
            needs=tuple(row.get("needs", ())),
            parts=row.get("parts"),
            launcher=tuple(row.get("launcher", ())),
            container=row.get("container"),
        )
        for name, row in tomllib.loads(text).items()
        if "gang" in row
    )


def kind_of(pod: Pod) -> JobKind | None:
    """The job kind whose labels a pod carries; None if there is none.

    Includes `JobKind` objects only after `with_kind`.
    """
    carried = [row for row in job_kinds() if all(label in pod.labels for label in row.gang)]
    if not carried:
        return pod.job_kind
    same = [row for row in carried if row.gang == carried[0].gang]
    operator = pod.labels.get(_OPERATOR_LABEL)
    return next(
        (row for row in same if _owns(row, pod.controller)),
        next((row for row in same if operator and row.operator == operator), same[0]),
    )


def _owns(job_kind: JobKind, owner: Owner | None) -> bool:
    return owner is not None and (owner.kind, owner.group) == (job_kind.owner, job_kind.group)


def with_kind(pod: Pod, kinds: Iterable[JobKind]) -> Pod:
    """The pod with the first of these further kinds whose labels it carries; its previous kind is replaced."""
    found = next(
        (row for row in kinds if row.gang and all(label in pod.labels for label in row.gang)), None
    )
    return pod if found == pod.job_kind else replace(pod, job_kind=found)


def is_armed(labels: Mapping[str, str]) -> bool:
    """True if an object with these labels allows the restart of its job; only the value "true" does."""
    return labels.get(ARMING_LABEL) == "true"


def gang_of(pod: Pod) -> Gang:
    """The gang of a pod: by a job's labels, else its pod group, else its owner's pods, else the pod alone."""
    kind = kind_of(pod)
    owner = pod.controller
    if kind is not None:
        labels = {label: pod.labels[label] for label in kind.gang}
        return Gang(GangId.of(pod.namespace, labels), "-".join(labels.values()), kind.owner)
    if pod.pod_group:
        kept = owner.kind if owner is not None else "Pod"
        return Gang(GangId.of(pod.namespace, {POD_GROUP: pod.pod_group}), pod.pod_group, kept)
    if owner is None:
        return Gang(GangId.of(pod.namespace, {POD_UID: pod.uid}), pod.name, "Pod")
    return Gang(GangId.of(pod.namespace, {OWNER_UID: owner.uid}), owner.name, owner.kind)


def is_job_pod(pod: Pod) -> bool:
    """True for a pod of a kind that is watched without a label."""
    kind = kind_of(pod)
    return kind is not None and all(label in pod.labels for label in kind.needs)


def counts_whole_gang(pod: Pod) -> bool:
    """True if the completion index of a pod, if it has one, is unique in its whole gang."""
    kind = kind_of(pod)
    return kind is None or kind.parts is None or pod.labels.get(kind.parts) == "1"


def must_train(pod: Pod) -> bool:
    """False for a pod that starts ranks in others and may have none itself: a missing report about it is no gap."""
    kind = kind_of(pod)
    if kind is None or not kind.launcher:
        return True
    label, value = kind.launcher
    return pod.labels.get(label) != value


def with_ranks(pod: Pod) -> tuple[Container, ...]:
    """Containers of a pod that may run ranks: neither init containers nor sidecars."""
    main = tuple(container for container in pod.containers if container.kind is ContainerKind.MAIN)
    kind = kind_of(pod)
    named = tuple(
        container for container in main if kind is not None and container.name == kind.container
    )
    return named or main


def selects(selector: Mapping[str, str], pod: Pod) -> bool:
    """True if a gang's selector matches this pod; an empty selector matches none."""
    return bool(selector) and all(_value(label, pod) == value for label, value in selector.items())


def _value(label: str, pod: Pod) -> str | None:
    # these come from their own fields: a label of that name, which any account may set, is not a uid
    if label == POD_GROUP:
        return pod.pod_group or None
    if label == POD_UID:
        return pod.uid
    if label == OWNER_UID:
        return pod.controller.uid if pod.controller is not None else None
    return pod.labels.get(label)
