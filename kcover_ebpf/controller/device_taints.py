"""Devices that the cluster allocates one by one (DRA): our DeviceTaintRule on one device, and taints of others."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.dra import rule_of
from kcover_ebpf.api.fault_report import ReportedDeviceFault
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import ApiError, Conflict, NotFound
from kcover_ebpf.kube import dra
from kcover_ebpf.kube.client import ApiClient
from kcover_ebpf.recovery.nodes.node_health import CORDONED_FOR
from kcover_ebpf.recovery.nodes.node_plan import TAINT, NodeView
from kcover_ebpf.recovery.nodes.others import tainted
from kcover_ebpf.tunables.controller import TAINTS_LISTED_S

OF_NODE = "kcover.io/node"
"""Label of our rules: the name of the device's node."""
Say = Callable[[NodeView, str, str, bool], None]


@dataclass(frozen=True, slots=True)
class DeviceTaintRule:
    """A DeviceTaintRule that we created."""

    path: str
    name: str
    created_s: float
    note: str
    """Value of its annotation `CORDONED_FOR`; empty without one."""


class DeviceTaints:
    """Writes rules; `list_` reads them for all nodes at once."""

    def __init__(self, client: ApiClient, writes: Callable[[], ApiClient], say: Say) -> None:
        """`writes`: the session for one write; `say`: publishes an Event about a node."""
        self._session, self._writes, self._say = client, writes, say
        self._lock = threading.Lock()
        """Guards the list: a list that was begun before a rule was created must not count as newer than the rule."""
        self._rules: dict[str, list[DeviceTaintRule]] = {}
        self._listed_s: float | None = None
        self._is_served = False
        """True if the cluster serves DeviceTaintRules."""

    def by_address(self, node: str, now_s: float) -> dict[str, dict[str, str]]:
        """PCI address -> selector of a device of the node that can be tainted alone; empty if they cannot be read."""
        try:
            found = dra.devices(self._session, node)
            if found:
                self.refresh(now_s)
        except ApiError:
            return {}
        if not self._is_served:
            return {}
        return {device.address: device.selector for device in found if device.address}

    def by_others(self, node: str) -> tuple[str, ...]:
        """Current taints of others on devices of a node, one sentence each; raises `ApiError`."""
        devices = dra.devices(self._session, node)
        if not devices:
            return ()
        _, rules = dra.taint_rules(self._session)
        return tainted(devices, map(rule_of, rules)).get(node, ())

    def taint(
        self, node: NodeView, device: ReportedDeviceFault, selector: Mapping[str, Any], note: str
    ) -> bool:
        """Taint one device; False if it is tainted already. `note`: the value of `CORDONED_FOR`."""
        name = re.sub(r"[^a-z0-9.-]+", "-", f"kcover-{node.name}-{device.device}".lower())
        taint = {"key": TAINT, "value": "fatal", "effect": "NoSchedule"}
        metadata = {
            "name": name,
            "labels": {OF_NODE: node.name},
            "annotations": {CORDONED_FOR: note},
        }
        for version in dra.RULE_VERSIONS:
            body = {
                "apiVersion": f"resource.k8s.io/{version}",
                "kind": "DeviceTaintRule",
                "metadata": metadata,
                "spec": {"deviceSelector": dict(selector), "taint": taint},
            }
            try:
                self._writes().create(f"{dra.RESOURCE}/{version}/devicetaintrules", body)
            except Conflict:
                return False
            except NotFound:
                continue
            self._list_again()
            self._say(node, "KcoverDeviceTainted", f"{device.device}: {device.text}", True)
            return True
        return False

    def of_node(self, node: str, now_s: float) -> list[DeviceTaintRule]:
        """Our rules of a node, at most half a minute old; raises `ApiError`."""
        self.refresh(now_s)
        return self._rules.get(node, [])

    def since_s(self, node: str) -> float | None:
        """Creation time (unix seconds) of our oldest rule for the node in the last list; None without one."""
        return min((rule.created_s for rule in self._rules.get(node, ())), default=None)

    @property
    def nodes(self) -> list[str]:
        """Nodes for which we have a rule, by the last list."""
        return list(self._rules)

    def refresh(self, now_s: float) -> None:
        """List our rules unless the last list is recent and newer than our last write; raises `ApiError`."""
        with self._lock:
            if self._listed_s is None or abs(now_s - self._listed_s) > TAINTS_LISTED_S:
                self._rules = self._list()
                self._listed_s = now_s

    def _list_again(self) -> None:
        with self._lock:
            self._listed_s = None

    def _list(self) -> dict[str, list[DeviceTaintRule]]:
        path, found = dra.taint_rules(self._session, {"labelSelector": OF_NODE})
        self._is_served = bool(path)
        rules: dict[str, list[DeviceTaintRule]] = {}
        for entry in found:
            metadata = entry["metadata"]
            created_s = rfc3339.from_text(metadata["creationTimestamp"])
            note = str((metadata.get("annotations") or {}).get(CORDONED_FOR, ""))
            rule = DeviceTaintRule(path, str(metadata["name"]), created_s, note)
            rules.setdefault(str(metadata["labels"][OF_NODE]), []).append(rule)
        return rules

    def untaint(self, node: NodeView, rule: DeviceTaintRule) -> None:
        """Delete our rule for a device, so that it is allocated again."""
        if self.delete(rule):
            self._say(node, "KcoverDeviceUntainted", rule.name, False)

    def delete(self, rule: DeviceTaintRule) -> bool:
        """Delete a rule; False if it was deleted meanwhile."""
        try:
            self._writes().delete(f"{rule.path}/{rule.name}")
        except NotFound:
            return False
        finally:
            self._list_again()
        return True
