"""A machine outside of the cluster's nodes, on the same wire: where the services are that a phase waits for."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from testbed.cluster import layout, network
from testbed.cluster.layout import Bed
from testbed.workloads.network import DEVICE, ip

_FIRST = ipaddress.ip_address("10.90.0.100")
MOST = 100
"""Addresses that it can have."""


@dataclass(frozen=True, slots=True)
class Outside:
    """It has its own network namespace."""

    prefix: str
    """What the names of the test bed's network namespaces begin with."""

    @property
    def netns(self) -> str:
        """The name of its namespace."""
        return f"{self.prefix}-outside"

    def address(self, number: int) -> str:
        """One of its addresses, by number modulo `MOST`, for the program outside one job; it exists from now on."""
        address = str(_FIRST + number % MOST)
        ip("-n", self.netns, "address", "replace", f"{address}/24", "dev", DEVICE)
        return address

    def inside(self) -> list[str]:
        """What a command begins with to run there."""
        return list(map(str, network.entered(self.netns)))


@contextmanager
def outside(bed: Bed, nodes: int) -> Iterator[Outside]:
    """The machine, as long as the block lasts; raises subprocess.CalledProcessError where it cannot be made."""
    found, port = Outside(bed.prefix), "outside"
    netns = found.netns
    ip("netns", "add", netns)
    try:
        ip("-n", netns, "link", "set", "lo", "up")
        peer = ["type", "veth", "peer", "name", DEVICE, "netns", netns]
        ip("-n", bed.control_netns, "link", "add", port, *peer)
        ip("-n", bed.control_netns, "link", "set", port, "master", network.BRIDGE, "up")
        ip("-n", netns, "link", "set", DEVICE, "up")
        found.address(0)
        ip("-n", netns, "route", "add", layout.SERVICE_RANGE, "via", layout.CONTROL_ADDRESS)
        for node in bed.nodes(nodes):
            ip("-n", netns, "route", "add", node.pod_range, "via", node.address)
        yield found
    finally:
        ip("netns", "del", netns)
