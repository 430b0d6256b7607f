"""What a scenario needs of this machine."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from bench.clusterbench.plane import ROOT
from testbed.cluster import layout, versions

WAYS = {"in-place": "InPlace", "hybrid": "Hybrid", "replace": "Replace"}
"""Scenarios of a restart on a real cluster, and its way."""
SLOW, AGENT = "slow", "agent"
ON_CLUSTER = (SLOW, AGENT, *WAYS)
"""Scenarios that need a cluster that runs."""


def programs() -> Path:
    """The folder with the API server: of this checkout's test bed, or where programs are cached."""
    bed = ROOT / ".testbed/bin"
    cached = f"bin/kubernetes-{versions.kubernetes(None).version}"
    return bed if bed.exists() else layout.cache_folder() / cached


def lack(scenario: str, folder: Path) -> str | None:
    """What is missing, and what to do; None if nothing is. `folder`: where the API server should be."""
    if scenario in ON_CLUSTER:
        if not os.environ.get("KUBECONFIG") or shutil.which("kubectl") is None:
            return "no cluster: run `tools/testbed up`, and set KUBECONFIG and PATH as it says"
        return None
    if scenario in ("rates", "turn"):
        return None
    if not (folder / "kube-apiserver").exists():
        return f"no kube-apiserver in {folder}: `tools/testbed up` builds one, or name another folder with --bin"
    if shutil.which("etcd") is None:
        return "no etcd: run `tools/setup cluster`"
    return None
