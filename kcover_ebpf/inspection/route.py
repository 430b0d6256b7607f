"""The MTU of the way out of this network namespace: that of the route, or of its link."""

from __future__ import annotations

import socket
from typing import Any

_FIB_MATCH = 0x2000
"""RTM_F_FIB_MATCH (include/uapi/linux/rtnetlink.h, Linux 4.13): the route as it was configured, without what was
learned of the path since."""


def mtu_to(family: int, host: str) -> int | None:
    """Bytes; None where the kernel names no single link, as of a route with several next hops.

    `family`, `host`: AF_INET or AF_INET6 and an address. A network of pods has routes or links whose MTU is smaller
    than the node's, because its packets are wrapped in others.
    """
    # only now: it takes some 0.1 s, and most nodes check no peers
    from pyroute2 import IPRoute
    from pyroute2.netlink.exceptions import NetlinkError

    address = host.partition("%")[0]
    try:
        socket.inet_pton(family, address)
        with IPRoute() as netlink:
            routes = netlink.route("get", family=family, dst=address, flags=_FIB_MATCH)
            route = next(iter(routes))
            return _metric(route) or _of_link(netlink, route.get_attr("RTA_OIF"))
    except (NetlinkError, OSError, StopIteration):
        return None


def _metric(route: Any) -> int | None:
    metrics = route.get_attr("RTA_METRICS")
    return None if metrics is None else metrics.get_attr("RTAX_MTU")


def _of_link(netlink: Any, index: int | None) -> int | None:
    if index is None:
        return None
    (link,) = netlink.get_links(index)
    mtu: int | None = link.get_attr("IFLA_MTU")
    return mtu
