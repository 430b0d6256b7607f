"""Policies in the store of a controller, as the API server would send them."""

from typing import Any

from kcover_ebpf.api.codec import encode
from kcover_ebpf.api.fault_policy import FaultPolicy
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.controller.shared_policies import SharedPolicies


def policy_object(namespace: str, name: str, policy: FaultPolicy | None = None) -> dict[str, Any]:
    spec = encode(policy) if policy is not None else {}
    return {"metadata": {"namespace": namespace, "name": name, "uid": f"u-{name}"}, "spec": spec}


def put_policy(cache: ObjectCache, namespace: str, name: str, policy: FaultPolicy) -> None:
    cache.policies.set(policy_object(namespace, name, policy))


def clear_policies(cache: ObjectCache) -> None:
    cache.policies = SharedPolicies()
