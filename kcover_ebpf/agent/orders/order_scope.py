"""What an order applies to: which gang, which phases of its incident, and which pods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kcover_ebpf.agent.pod_registry import LocalGang
from kcover_ebpf.api.incident import Phase
from kcover_ebpf.api.job_kinds import Gang, GangId, selects
from kcover_ebpf.api.order import Order, Verb
from kcover_ebpf.api.pods import ContainerKind, Pod

_CHECKPOINT = "kcover.io/checkpoint"
"""Label with which a pod asks for checkpoints."""
_SHUTTING_DOWN = (Phase.SHUTTING_DOWN.value,)
_PHASES = {
    Verb.SNAPSHOT: (
        Phase.OPEN.value,
        Phase.OBSERVED.value,
        Phase.REFUSED.value,
        *_SHUTTING_DOWN,
    )
}
"""Phases in which an action is an order; all others are orders only in `_SHUTTING_DOWN`. A snapshot signals no
process.
"""


def is_one_in(order: Order, phase: str) -> bool:
    """True if the order is to be carried out while its incident is in this phase."""
    return phase in _PHASES.get(order.verb, _SHUTTING_DOWN)


def addressed(gangs: Mapping[Gang, LocalGang], namespace: str, order: Order) -> LocalGang | None:
    """The gang addressed by an order in this namespace; None if it has no pod on this node."""
    gang_id = GangId.of(namespace, order.selector)
    return next((found for gang, found in gangs.items() if gang.id == gang_id), None)


def is_meant(pod: Pod, order: Order) -> bool:
    """True if the order addresses this pod; a pod created later belongs to the next start."""
    return selects(order.selector, pod) and pod.created_s <= order.created_before_s


def checkpointed(pods: Sequence[Pod], phase: str) -> tuple[tuple[str, str], ...]:
    """(pod, container) of pods that request a checkpoint by their label, unless they are about to be ended.

    The kubelet freezes a container while it writes the checkpoint, and ending the pod does not wait for that.
    """
    if phase in _SHUTTING_DOWN:
        return ()
    return tuple(
        (pod.name, container.name)
        for pod in pods
        if pod.labels.get(_CHECKPOINT) == "true"
        for container in pod.containers
        if container.kind is ContainerKind.MAIN
    )
