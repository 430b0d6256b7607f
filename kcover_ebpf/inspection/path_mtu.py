"""How large packets on the way to a peer may be: what the route says, and what comes through.

A path's MTU is what the nodes' links say. A switch on the way that takes less drops the packets in silence: a
connection is made, and hangs once it sends much. So an ICMP echo (RFC 792, RFC 4443) shows it that may not be cut into
fragments.
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
"""Bytes; nothing here adds options."""
_MTU_DISCOVER = {
    socket.AF_INET: (socket.IPPROTO_IP, 10),
    socket.AF_INET6: (socket.IPPROTO_IPV6, 23),
}
_DO = 2
"""IP_MTU_DISCOVER, IPV6_MTU_DISCOVER and their PMTUDISC_DO (never in fragments): include/uapi/linux/in.h, in6.h."""
_SMALL = 84
"""Bytes of a packet, as ping sends by default."""
_MOST = 65_535
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


def arrives(family: int, address: tuple[Any, ...], size: int) -> bool | None:
    """Whether an echo in an IP packet of `size` bytes is answered by `address`, a socket address.

    None where that cannot be observed: without CAP_NET_RAW, or where not even a small echo is answered. Takes
    PEER_ECHO_S for each of PEER_ECHO_TRIES, twice, at most.
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
            if error.errno == errno.EMSGSIZE:  # a router on the way said so meanwhile
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
    """The ICMP message of an echo whose IP packet has `size` bytes. The kernel fills in ICMPv6's checksum."""
    kind = _REQUEST[socket.AddressFamily(family)]
    rest = bytes(size - _IP_HEADER[socket.AddressFamily(family)] - _HEADER.size)
    checksum = 0
    if family == socket.AF_INET:
        checksum = _checksum(_HEADER.pack(kind, 0, 0, identity, number))
    return _HEADER.pack(kind, 0, checksum, identity, number) + rest


def is_reply(family: int, packet: bytes, identity: int, number: int) -> bool:
    """Whether this is the answer; a raw socket of IPv4 has the IP header with it, one of IPv6 has not."""
    start = (packet[0] & 0x0F) * 4 if family == socket.AF_INET and packet else 0
    message = packet[start : start + _HEADER.size]
    if len(message) < _HEADER.size:
        return False
    kind, code, _, whose, which = _HEADER.unpack(message)
    wanted = (_REPLY[socket.AddressFamily(family)], 0, identity, number)
    return (kind, code, whose, which) == wanted


def _checksum(header: bytes) -> int:
    """Of RFC 1071; zeros that follow add nothing."""
    total = sum(int.from_bytes(header[at : at + 2]) for at in range(0, len(header), 2))
    total = (total & 0xFFFF) + (total >> 16)
    return ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
