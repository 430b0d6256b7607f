"""Devices as DRA drivers publish them (ResourceSlice), and the taints on them (DeviceTaintRule; KEP-5055). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kcover_ebpf.dataclass import dataclass

_PCI = "resource.kubernetes.io/pciBusID"


@dataclass(frozen=True, slots=True)
class DeviceTaint:
    """A taint on a device; the API server requires key and effect."""

    key: str
    effect: str
    value: str = ""
    since: str = ""
    """When it was added, in the API's format; empty if unknown."""


@dataclass(frozen=True, slots=True)
class DraDevice:
    """A device in a ResourceSlice of one node."""

    node: str
    driver: str
    pool: str
    name: str
    address: str = ""
    """PCI address; empty if the driver does not publish it."""
    taints: tuple[DeviceTaint, ...] = ()
    """Taints set by its driver; those of DeviceTaintRules are not in the slice."""

    @property
    def selector(self) -> dict[str, str]:
        """Selector of a DeviceTaintRule that matches only this device."""
        return {"driver": self.driver, "pool": self.pool, "device": self.name}


@dataclass(frozen=True, slots=True)
class TaintRule:
    """A DeviceTaintRule; without a selector it taints no device."""

    taint: DeviceTaint
    selector: Mapping[str, Any] | None

    def taints(self, device: DraDevice) -> bool:
        """True if the rule taints this device, as far as can be seen.

        Classes and CEL expressions (resource.k8s.io/v1alpha3) are not evaluated: the device is assumed to match
        them.
        """
        if self.selector is None:
            return False
        return all(self.selector.get(key) in (None, own) for key, own in device.selector.items())


def devices_of(raw: Mapping[str, Any]) -> tuple[DraDevice, ...]:
    """The devices of a ResourceSlice of any version; empty if they belong to no single node."""
    spec = raw.get("spec") or {}
    node = spec.get("nodeName")
    if not node:
        return ()
    pool = str((spec.get("pool") or {}).get("name", ""))
    driver = str(spec.get("driver", ""))
    return tuple(_device(node, driver, pool, device) for device in spec.get("devices") or ())


def _device(node: str, driver: str, pool: str, raw: Mapping[str, Any]) -> DraDevice:
    inner = raw.get("basic") or raw  # v1beta1 has all but the name in `basic`
    address = (inner.get("attributes") or {}).get(_PCI, {}).get("string", "")
    taints = tuple(map(_taint, inner.get("taints") or ()))
    return DraDevice(node, driver, pool, str(raw.get("name", "")), str(address), taints)


def rule_of(raw: Mapping[str, Any]) -> TaintRule:
    """The rule in an object of the API, of any version."""
    spec = raw.get("spec") or {}
    return TaintRule(_taint(spec.get("taint") or {}), spec.get("deviceSelector"))


def _taint(raw: Mapping[str, Any]) -> DeviceTaint:
    texts = (str(raw.get(key) or "") for key in ("key", "effect", "value", "timeAdded"))
    return DeviceTaint(*texts)
