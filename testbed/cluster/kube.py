"""Asks the cluster, through kubectl and the admin's kubeconfig."""

from __future__ import annotations

import json
from typing import Any

from testbed.cluster import shell
from testbed.cluster.errors import Failure
from testbed.cluster.layout import Bed


def ctl(bed: Bed, *arguments: str, stdin: str | None = None, timeout_s: float = 60) -> str:
    """What kubectl printed; raises Failure when it fails."""
    kubeconfig = f"--kubeconfig={bed.kubeconfig}"
    return shell.text(bed.bin / "kubectl", kubeconfig, *arguments, stdin=stdin, timeout_s=timeout_s)


def get(bed: Bed, *arguments: str) -> list[dict[str, Any]]:
    """The objects that `kubectl get` finds."""
    found = json.loads(ctl(bed, "get", *arguments, "--output=json"))
    items: list[dict[str, Any]] = found.get("items", [found])
    return items


def apply(bed: Bed, manifest: str) -> None:
    """Server-side apply: large definitions fit, and a second time changes nothing."""
    arguments = ["apply", "--server-side", "--force-conflicts", "--filename=-"]
    ctl(bed, *arguments, stdin=manifest, timeout_s=180)


def try_apply(bed: Bed, manifest: str) -> bool:
    """Apply, and say whether all of it was accepted."""
    try:
        apply(bed, manifest)
    except Failure:
        return False
    return True


def nodes_ready(bed: Bed) -> int:
    """How many nodes are Ready."""
    return sum(condition(node, "Ready") for node in get(bed, "nodes"))


def condition(thing: dict[str, Any], kind: str) -> bool:
    """Whether a condition of the object is True."""
    conditions = thing.get("status", {}).get("conditions") or []
    return any(entry["type"] == kind and entry["status"] == "True" for entry in conditions)
