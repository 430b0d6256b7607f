"""What other programs say is wrong with a node: read from the objects that they write, of every version."""

from __future__ import annotations

from typing import Any

import pytest

from kcover_ebpf.api.dra import DraDevice, TaintRule, devices_of, rule_of
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.kube.reflector import Change, Event
from kcover_ebpf.recovery.nodes.node_plan import view_of
from kcover_ebpf.recovery.nodes.others import kept_of_node, tainted

GPU = "0000:5d:00.0"
SINCE = "2026-01-01T00:00:00Z"
XID = {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule", "timeAdded": SINCE}
TEXT = (
    f"device gpu-0 ({GPU}) of gpu.nvidia.com: taint gpu.nvidia.com/xid=79:NoSchedule since {SINCE}"
)


def published(*taints: dict[str, str], basic: bool = False, **spec: Any) -> dict[str, Any]:
    """A ResourceSlice of two devices; the first has the taints."""
    attributes = {"resource.kubernetes.io/pciBusID": {"string": GPU}}
    first = {"attributes": attributes, "taints": list(taints)}
    bodies: list[dict[str, Any]] = [first, {}]
    named = [
        {"name": f"gpu-{index}", **({"basic": body} if basic else body)}
        for index, body in enumerate(bodies)
    ]
    made = {"driver": "gpu.nvidia.com", "nodeName": "n", "pool": {"name": "p"}, "devices": named}
    return {"spec": made | spec}


def texts(raw: dict[str, Any], *rules: TaintRule) -> tuple[str, ...]:
    return tainted(devices_of(raw), rules).get("n", ())


@pytest.mark.parametrize("basic", [True, False], ids=["v1beta1", "v1beta2 and v1"])
def test_tainted__what_a_driver_writes_on_a_device_is_named(basic: bool) -> None:
    assert texts(published(XID, basic=basic)) == (TEXT,)
    assert texts(published(basic=basic)) == ()


TAINTS = {
    "evicts": (XID | {"effect": "NoExecute"}, True),
    "informs": (XID | {"effect": "None"}, False),
    "an effect of a later version": (XID | {"effect": "Whatever"}, False),
    "ours": (XID | {"key": "kcover.io/device-fault"}, False),
}


@pytest.mark.parametrize(("taint", "counts"), TAINTS.values(), ids=TAINTS)
def test_tainted__what_keeps_pods_off_counts_and_is_not_ours(
    taint: dict[str, str], counts: bool
) -> None:
    assert bool(texts(published(taint))) is counts


SELECTORS = {
    "all devices": ({}, ["gpu-0", "gpu-1"]),
    "none": (None, []),
    "a driver": ({"driver": "gpu.nvidia.com"}, ["gpu-0", "gpu-1"]),
    "another driver": ({"driver": "x"}, []),
    "one device": ({"driver": "gpu.nvidia.com", "pool": "p", "device": "gpu-1"}, ["gpu-1"]),
    "that of another pool": ({"pool": "q", "device": "gpu-1"}, []),
    "a class, which is not evaluated": ({"deviceClassName": "c"}, ["gpu-0", "gpu-1"]),
}


@pytest.mark.parametrize(("selector", "names"), SELECTORS.values(), ids=SELECTORS)
def test_tainted__a_rule_of_others_taints_the_devices_that_it_selects(
    selector: dict[str, str] | None, names: list[str]
) -> None:
    taint = {"key": "example.com/repair", "effect": "NoSchedule"}
    rule = rule_of({"spec": {"deviceSelector": selector, "taint": taint}})
    assert [text.split()[1] for text in texts(published(), rule)] == names
    assert all("example.com/repair:NoSchedule" in text for text in texts(published(), rule))


def test_devices_of__a_device_is_selected_by_its_names_and_found_by_its_address() -> None:
    first, second = devices_of(published(basic=True))
    assert first == DraDevice("n", "gpu.nvidia.com", "p", "gpu-0", GPU)
    assert second.address == ""
    assert second.selector == {"driver": "gpu.nvidia.com", "pool": "p", "device": "gpu-1"}


def test_devices_of__devices_of_no_single_node_are_left_out() -> None:
    assert devices_of(published(XID, nodeName=None, allNodes=True)) == ()


COUNTS = {
    "one of eight": (
        {"nvidia.com/gpu": ("8", "7")},
        ["only 7 of 8 nvidia.com/gpu are allocatable"],
    ),
    "all healthy": ({"nvidia.com/gpu": ("8", "8")}, []),
    "a plug-in that is gone": ({"nvidia.com/gpu": ("0", "0")}, []),
    "instances": (
        {"nvidia.com/mig-1g.10gb": ("14", "0")},
        ["only 0 of 14 nvidia.com/mig-1g.10gb are allocatable"],
    ),
    "AMD": ({"amd.com/gpu": ("8", "6")}, ["only 6 of 8 amd.com/gpu are allocatable"]),
    "a thousand shares": (
        {"nvidia.com/gpu.shared": ("1k", "990")},
        ["only 990 of 1000 nvidia.com/gpu.shared are allocatable"],
    ),
    "reserved by the kubelet": ({"cpu": ("8", "7"), "memory": ("32Gi", "31Gi")}, []),
    "no number": ({"nvidia.com/gpu": ("8", None)}, []),
}


@pytest.mark.parametrize(("counts", "expected"), COUNTS.values(), ids=COUNTS)
def test_view_of__devices_that_a_plug_in_withdrew_are_evidence_of_others(
    counts: dict[str, tuple[str, str | None]], expected: list[str]
) -> None:
    capacity, allocatable = ({name: count[i] for name, count in counts.items()} for i in (0, 1))
    status = {"capacity": capacity, "allocatable": allocatable}
    raw = {"metadata": {"name": "n"}, "status": status}
    assert list(view_of(raw).others) == expected
    store = ObjectCache(lambda _: None)
    store.on_node(Event(Change.SET, raw))
    assert list(view_of(store.raw_nodes["n"]).others) == expected, "as the controller keeps it"


def test_kept_of_node__notes_of_others_are_not_kept() -> None:
    notes = {"csi.volume.kubernetes.io/nodeid": "x" * 1000, "kcover.io/cordoned": "now"}
    kept = kept_of_node({"metadata": {"name": "n", "annotations": notes}})
    assert kept["metadata"]["annotations"] == {"kcover.io/cordoned": "now"}
    assert kept_of_node({"metadata": {"name": "n"}})["metadata"]["annotations"] == {}


def test_view_of__conditions_and_taints_of_others_are_evidence() -> None:
    keys = ("nvidia.com/gpu.unhealthy", "nvidia.com/gpu", "example.com/mine")
    raw = {
        "metadata": {"name": "n"},
        "spec": {"taints": [{"key": key} for key in keys]},
        "conditions": [
            {"type": "KernelDeadlock", "status": "True"},
            {"type": "Ready", "status": "True"},
            {"type": "KcoverDeviceFault", "status": "True"},
        ],
    }
    assert view_of(raw).others == (
        "condition KernelDeadlock is True",
        "taint nvidia.com/gpu.unhealthy",
    )
