"""What of a test bed runs and is well."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass

from testbed.cluster import addons, components, kube, nodes, state, versions
from testbed.cluster.components import Component
from testbed.cluster.errors import Failure
from testbed.cluster.layout import Bed
from testbed.cluster.state import State


@dataclass(frozen=True, slots=True)
class Part:
    """A row of the table; `pid` and `since` (unix seconds) are None for what is no process."""

    component: str
    pid: int | None
    healthy: bool
    since: float | None


def inspect(running_state: State) -> list[Part]:
    """Every part of the test bed."""
    bed = running_state.bed
    release = versions.by_version(running_state.kubernetes)
    processes = components.control_plane(bed, release, running_state.api_port)
    processes.append(components.control_proxy(bed))
    for node in bed.nodes(running_state.nodes):
        processes += nodes.parts(running_state, node)
    parts = [_process(running_state, component) for component in processes]
    return parts + _objects(running_state)


def _process(running_state: State, component: Component) -> Part:
    process = running_state.processes.get(component.name)
    if process is None or not process.alive():
        return Part(component.name, None, False, None)
    return Part(component.name, process.pid, component.healthy(), process.since)


def _objects(running_state: State) -> list[Part]:
    """Nodes and controllers, as the API server sees them."""
    try:
        ready = {
            node["metadata"]["name"]: kube.condition(node, "Ready")
            for node in kube.get(running_state.bed, "nodes")
        }
    except Failure:
        ready = {}
    wanted = [node.name for node in running_state.bed.nodes(running_state.nodes)]
    parts = [Part(f"node {name}", None, ready.get(name, False), None) for name in wanted]
    return parts + [
        Part(f"controller {name}", None, addons.healthy(running_state.bed, name), None)
        for name in running_state.controllers
    ]


def show(bed: Bed, as_json: bool) -> int:
    """Print the state; returns 0 when all is well, else 1."""
    running = state.load(bed)
    if running is None:
        if as_json:
            print(json.dumps({"name": bed.name, "running": False, "parts": []}))
        else:
            print(f"the test bed {bed.name!r} is not up")
        return 1
    parts = inspect(running)
    well = all(part.healthy for part in parts)
    if as_json:
        _print_json(running, parts, well)
    else:
        _print_table(parts)
    return 0 if well else 1


def _print_json(running_state: State, parts: list[Part], well: bool) -> None:
    content = {
        "name": running_state.bed.name,
        "running": True,
        "healthy": well,
        "kubernetes": running_state.kubernetes,
        "kubeconfig": str(running_state.bed.kubeconfig),
        "parts": [asdict(part) for part in parts],
    }
    print(json.dumps(content, indent=1))


def _print_table(parts: list[Part]) -> None:
    print(f"{'COMPONENT':<34} {'PID':>8}  {'HEALTHY':<8} SINCE")
    for part in parts:
        pid = "-" if part.pid is None else str(part.pid)
        since = "-" if part.since is None else time.strftime("%F %T", time.localtime(part.since))
        print(f"{part.component:<34} {pid:>8}  {'yes' if part.healthy else 'NO':<8} {since}")
