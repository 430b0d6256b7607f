"""Pods as the registry of an agent hears of them."""

from typing import Any

from kcover_ebpf.agent.pod_registry import PodRegistry
from kcover_ebpf.kube.reflector import Change, Event


def heard(*pods: dict[str, Any], policies: tuple[Event, ...] = ()) -> PodRegistry:
    registry = PodRegistry("n1")
    for event in policies:
        registry.on_policy(event)
    for made in pods:
        registry.on_pod(Event(Change.SET, made))
    return registry
