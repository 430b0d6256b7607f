"""Finds how large packets to a peer may be: by the route, and by trying.

The MTU of a route is that of the node's links. A switch in between that accepts less drops larger packets silently:
then a connection can be opened, but hangs once much is sent. An ICMP echo (RFC 792, RFC 4443) that must not be
fragmented shows this.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from typing import Any

from kcover_ebpf.tunables.inspection import PEER_ECHO_S, PEER_ECHO_TRIES

_HEADER = struct.Struct("!BBHHH")
"""Type, code, checksum, identifier, sequence number."""
_REQUEST = {socket.AF_INET: 8, socket.AF_INET6: 128}
_REPLY = {socket.AF_INET: 0, socket.AF_INET6: 129}
_IP_HEADER = {socket.AF_INET: 20, socket.AF_INET6: 40}
"""Length of the IP header in bytes; no options are added here."""
_MTU_DISCOVER = {
    socket.AF_INET: (socket.IPPROTO_IP, 10),
    socket.AF_INET6: (socket.IPPROTO_IPV6, 23),
}
_DO = 2
"""IP_MTU_DISCOVER, IPV6_MTU_DISCOVER and their PMTUDISC_DO (never fragment):
include/uapi/linux/in.h, in6.h."""
_SMALL = 84
"""Packet size in bytes that ping uses by default."""
_MOST = 65_535
_FIB_MATCH = 0x2000
"""RTM_F_FIB_MATCH (include/uapi/linux/rtnetlink.h, Linux 4.13): the configured route, without the
learned path MTU."""


def mtu_to(family: int, host: str) -> int | None:
    """MTU of the route in bytes; None if the kernel names no single link, as for a route with several next hops.

    `family`, `host`: AF_INET or AF_INET6 and an address. In a pod network, routes or links have a smaller MTU than
    the node, because packets are encapsulated.
    """
    # imported here: it takes some 0.1 s, and most nodes check no peers
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


def arrives(family: int, address: tuple[Any, ...], size: int) -> bool | None:
    """Whether `address` (a socket address) answers an echo in an IP packet of `size` bytes.

    None if unknown: without CAP_NET_RAW, or if not even a small echo is answered. Takes at most PEER_ECHO_S for
    each of PEER_ECHO_TRIES, twice.
    """
    protocol = socket.IPPROTO_ICMP if family == socket.AF_INET else socket.IPPROTO_ICMPV6
    try:
        with socket.socket(family, socket.SOCK_RAW, protocol) as echo:
            echo.setsockopt(*_MTU_DISCOVER[socket.AddressFamily(family)], _DO)
            echo.connect((address[0], 0, *address[2:]))
            if _is_answered(echo, min(size, _MOST)):
                return True
            return False if _is_answered(echo, _SMALL) else None
    except OSError:
        return None


def _is_answered(echo: socket.socket, size: int) -> bool:
    identity = int.from_bytes(os.urandom(2))
    for number in range(PEER_ECHO_TRIES):
        try:
            echo.send(request(echo.family, size, identity, number))
        except OSError as error:
            if error.errno == errno.EMSGSIZE:  # a router on the path reported it meanwhile
                return False
            raise
        end_s = time.monotonic() + PEER_ECHO_S
        while (left_s := end_s - time.monotonic()) > 0:
            echo.settimeout(left_s)
            try:
                packet = echo.recv(_MOST)
            except TimeoutError:
                break
            if is_reply(echo.family, packet, identity, number):
                return True
    return False


def request(family: int, size: int, identity: int, number: int) -> bytes:
    """The ICMP echo message whose IP packet has `size` bytes. The kernel fills in the checksum of ICMPv6."""
    kind = _REQUEST[socket.AddressFamily(family)]
    rest = bytes(size - _IP_HEADER[socket.AddressFamily(family)] - _HEADER.size)
    checksum = 0
    if family == socket.AF_INET:
        checksum = _checksum(_HEADER.pack(kind, 0, 0, identity, number))
    return _HEADER.pack(kind, 0, checksum, identity, number) + rest


def is_reply(family: int, packet: bytes, identity: int, number: int) -> bool:
    """Whether the packet answers our echo. Raw IPv4 sockets include the IP header, IPv6 ones do not."""
    start = (packet[0] & 0x0F) * 4 if family == socket.AF_INET and packet else 0
    message = packet[start : start + _HEADER.size]
    if len(message) < _HEADER.size:
        return False
    kind, code, _, whose, which = _HEADER.unpack(message)
    wanted = (_REPLY[socket.AddressFamily(family)], 0, identity, number)
    return (kind, code, whose, which) == wanted


def _checksum(header: bytes) -> int:
    """Checksum of RFC 1071; trailing zeros do not change it."""
    total = sum(int.from_bytes(header[at : at + 2]) for at in range(0, len(header), 2))
    total = (total & 0xFFFF) + (total >> 16)
    return ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
