"""Problems of a node that other programs report: evidence, one sentence each, and never ours to change. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kcover_ebpf.api.dra import DeviceTaint, DraDevice, TaintRule
from kcover_ebpf.api.nodes import PRODUCT_LABELS, rack_of

_OURS = "kcover.io/"
_COUNTED = ("nvidia.com/", "amd.com/")
"""Resources of device plug-ins for GPUs, and for parts of one."""
_EFFECTS = ("NoSchedule", "NoExecute")
"""Effects of taints on devices that exclude pods. Any other effect, such as None, is information."""


def seen_on(raw: Mapping[str, Any], conditions: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """Problems in the Node object. `conditions`: its conditions by type."""
    return (
        *_bad_conditions(conditions),
        *_bad_taints((raw.get("spec") or {}).get("taints") or ()),
        *_withdrawn(raw.get("status") or {}),
    )


def kept_of_node(api: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a Node that the rules for nodes need: metadata, spec, conditions and status.

    Of its annotations only those of kcover.io: few nodes have one, and a breaker examines those nodes alone.
    """
    metadata, spec = api.get("metadata") or {}, api.get("spec") or {}
    status = api.get("status") or {}
    slim: dict[str, Any] = {
        key: metadata[key] for key in ("name", "uid", "resourceVersion") if key in metadata
    }
    annotations = metadata.get("annotations") or {}
    slim["annotations"] = {key: annotations[key] for key in annotations if key.startswith(_OURS)}
    labels = metadata.get("labels") or {}
    if (rack := rack_of(labels)) is not None:
        slim["rack"] = rack
    slim["labels"] = {label: labels[label] for label in PRODUCT_LABELS if label in labels}
    slim["bootID"] = str((status.get("nodeInfo") or {}).get("bootID", ""))
    shown = [
        {key: condition.get(key) for key in ("type", "status", "message")}
        for condition in status.get("conditions") or ()
    ]
    kept_spec = {key: spec.get(key) for key in ("taints", "unschedulable")}
    counts = device_counts(status)
    return {"metadata": slim, "spec": kept_spec, "conditions": shown, "status": counts}


def device_counts(status: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Counts that device plug-ins for GPUs report in a Node's status: all devices, and healthy ones."""
    return {
        field: {
            name: count
            for name, count in (status.get(field) or {}).items()
            if name.startswith(_COUNTED)
        }
        for field in ("capacity", "allocatable")
    }


def tainted(devices: Iterable[DraDevice], rules: Iterable[TaintRule]) -> dict[str, tuple[str, ...]]:
    """Node -> taints of single devices by other programs: by their drivers, and by rules that are not ours."""
    theirs, found = tuple(rules), defaultdict[str, list[str]](list)
    for device in devices:
        by_rules = (rule.taint for rule in theirs if rule.taints(device))
        for taint in (*device.taints, *by_rules):
            if taint.effect in _EFFECTS and not taint.key.startswith(_OURS):
                found[device.node].append(_sentence(device, taint))
    return {node: tuple(texts) for node, texts in found.items()}


def _sentence(device: DraDevice, taint: DeviceTaint) -> str:
    address = f" ({device.address})" if device.address else ""
    value = f"={taint.value}" if taint.value else ""
    since = f" since {taint.since}" if taint.since else ""
    return f"device {device.name}{address} of {device.driver}: taint {taint.key}{value}:{taint.effect}{since}"


def _bad_conditions(conditions: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Bad conditions set by others.

    True is bad, as for node-problem-detector, except for names like Ready and KernelReady.
    """
    for name, condition in conditions.items():
        bad = "False" if name.endswith(("Ready", "Healthy")) else "True"
        if not name.startswith("Kcover") and condition.get("status") == bad:
            yield f"condition {name} is {bad}"


def _bad_taints(taints: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """NVIDIA's taints, except the one that reserves nodes with GPUs for pods that want some."""
    for taint in taints:
        key = str(taint.get("key", ""))
        if key.startswith("nvidia.com/") and key != "nvidia.com/gpu":
            yield f"taint {key}"


def _withdrawn(status: Mapping[str, Any]) -> Iterator[str]:
    """Devices that their plug-in calls unhealthy.

    The kubelet sets capacity to all devices of a plug-in and allocatable to the healthy ones
    (pkg/kubelet/cm/devicemanager, GetCapacity); none of them is reserved.
    """
    counts = device_counts(status)
    for name, count in counts["capacity"].items():
        there, fit = _count(count), _count(counts["allocatable"].get(name))
        if there is not None and fit is not None and fit < there:
            yield f"only {fit} of {there} {name} are allocatable"


def _count(quantity: object) -> int | None:
    """A whole quantity as the API server writes it: 1000 is 1k; None if it is not one."""
    digits = str(quantity).removesuffix("k")
    if not digits.isascii() or not digits.isdecimal():
        return None
    return int(digits) * (1000 if str(quantity).endswith("k") else 1)
