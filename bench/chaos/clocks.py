"""The date of a node, as our programs on it see it: a preloaded library adds what a file of the node says.

The nodes of the test bed have one kernel, and so one clock, which is also that of everything else on this machine.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

from testbed.driver import nodes
from testbed.driver.cluster import Cluster, ClusterError
from testbed.driver.installed import PARTS, Release

_SECONDS = 10
_FOLDER = "/var/lib/kcover-chaos"
_OFFSET = f"{_FOLDER}/seconds"
_LIBRARY = f"{_FOLDER}/clock.so"
_SOURCE = Path(__file__).with_name("clock.c")


def install(release: Release, node_names: list[str]) -> None:
    """Have all agents and controllers start with the library, on true clocks, and wait until they are ready."""
    for node in node_names:
        _build(release.cluster, node)
        _write(release.cluster, node, 0)
    for part in PARTS:
        release.ctl("patch", part, f"--patch={json.dumps(_patch(part))}")
    release.wait_until_ready()


def moved(cluster: Cluster, node: str, *, forward: bool) -> Callable[[], None]:
    """Move the date of a node; the result moves it back."""
    _write(cluster, node, _SECONDS if forward else -_SECONDS)
    return lambda: _write(cluster, node, 0)


def _build(cluster: Cluster, node: str) -> None:
    nodes.inside(cluster, node, "mkdir", "-p", _FOLDER)
    try:
        nodes.inside(cluster, node, "gcc", "-O2", "-shared", "-fPIC", "-o", _LIBRARY, str(_SOURCE))
    except (ClusterError, subprocess.SubprocessError) as error:
        raise ClusterError(f"the library that moves clocks cannot be built: {error}") from error


def _write(cluster: Cluster, node: str, seconds: int) -> None:
    """One signed byte, in place: the library has mapped the file."""
    text = f"\\{seconds & 0xFF:03o}"
    nodes.inside(cluster, node, "sh", "-c", f"printf '{text}' 1<>{_OFFSET}")


def _patch(part: str) -> dict[str, object]:
    container = {
        "name": part.rpartition("-")[2],
        "env": [
            {"name": "LD_PRELOAD", "value": _LIBRARY},
            {"name": "KCOVER_CHAOS_CLOCK", "value": _OFFSET},
        ],
        "volumeMounts": [{"name": "chaos", "mountPath": _FOLDER, "readOnly": True}],
    }
    volume = {"name": "chaos", "hostPath": {"path": _FOLDER, "type": "Directory"}}
    return {"spec": {"template": {"spec": {"containers": [container], "volumes": [volume]}}}}
