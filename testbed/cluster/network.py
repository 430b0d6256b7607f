"""One network namespace for the control plane and one for each node, joined by a bridge.

Nothing of the host's own network is touched, and nothing inside has a route out of the machine.
Every function can be called again and completes what is missing.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from testbed.cluster import layout, shell
from testbed.cluster.layout import Bed, Node

FOLDER = Path("/run/netns")
BRIDGE = "bridge0"
_CLONE_NEWNET = 0x40000000
Result = TypeVar("Result")


def exists(name: str) -> bool:
    return (FOLDER / name).exists()


def entered(name: str) -> list[str | Path]:
    """The command prefix that runs a program in the namespace.

    `ip netns exec` would remount /sys and hide the cgroups below it.
    """
    return ["nsenter", f"--net={FOLDER / name}"]


def within(name: str, function: Callable[[], Result]) -> Result:
    """Call a function in a namespace, on its own thread; raises what the function raises."""

    def call() -> Result:
        libc = ctypes.CDLL(None, use_errno=True)
        with open(FOLDER / name, "rb") as file:
            if libc.setns(file.fileno(), _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), name)
        return function()

    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(call).result()


def create_control(bed: Bed) -> None:
    """The control plane's namespace with the bridge."""
    name = bed.control_netns
    if exists(name):
        return
    _create(name)
    shell.text("ip", "-n", name, "link", "add", BRIDGE, "type", "bridge")
    address = f"{layout.CONTROL_ADDRESS}/24"
    shell.text("ip", "-n", name, "address", "add", address, "dev", BRIDGE)
    shell.text("ip", "-n", name, "link", "set", BRIDGE, "up")
    # kube-proxy rewrites service addresses, but only packets that found a route reach it.
    shell.text("ip", "-n", name, "route", "add", layout.SERVICE_RANGE, "dev", BRIDGE)


def create_node(node: Node, others: list[Node]) -> None:
    """A node's namespace with its wire to the bridge, and the routes between it and the others."""
    if not exists(node.netns):
        control, port = node.bed.control_netns, f"port{node.number}"
        _create(node.netns)
        peer = ["type", "veth", "peer", "name", "eth0", "netns", node.netns]
        shell.text("ip", "-n", control, "link", "add", port, *peer)
        shell.text("ip", "-n", control, "link", "set", port, "master", BRIDGE, "up")
        address = f"{node.address}/24"
        shell.text("ip", "-n", node.netns, "address", "add", address, "dev", "eth0")
        shell.text("ip", "-n", node.netns, "link", "set", "eth0", "up")
        gateway = layout.CONTROL_ADDRESS
        shell.text("ip", "-n", node.netns, "route", "add", "default", "via", gateway)
    _route(node.bed.control_netns, node)
    for other in others:
        if other.number != node.number and exists(other.netns):
            _route(node.netns, other)
            _route(other.netns, node)


def remove_all(bed: Bed) -> None:
    """Remove every namespace of this test bed; their processes must be gone."""
    if not FOLDER.is_dir():
        return
    for file in FOLDER.iterdir():
        if re.fullmatch(rf"{bed.prefix}-(control|node\d+)", file.name):
            shell.text("ip", "netns", "del", file.name)


def _create(name: str) -> None:
    shell.text("ip", "netns", "add", name)
    shell.text("ip", "-n", name, "link", "set", "lo", "up")
    forward = "net.ipv4.ip_forward=1"
    shell.text(*map(str, entered(name)), "sysctl", "-qw", forward)


def _route(name: str, to: Node) -> None:
    shell.text("ip", "-n", name, "route", "replace", to.pod_range, "via", to.address)
