"""The MTU of the way out of this network namespace: that of the route, or of its link."""

from __future__ import annotations

import fcntl
import socket
import struct

from kcover_ebpf.host import netlink
from kcover_ebpf.tunables.hardware import NETLINK_ANSWER_S

# include/uapi/linux/rtnetlink.h, sockios.h, if.h
_RTM_NEWROUTE, _RTM_GETROUTE = 24, 26
_RTMSG = struct.Struct("=BBBBBBBBI")
"""Family, bits of the destination, six that a question leaves empty, flags."""
_FIB_MATCH = 0x2000
"""RTM_F_FIB_MATCH, Linux 4.13: the route as it was configured, without what was learned of the path since."""
_RTA_DST, _RTA_OIF, _RTA_METRICS, _RTAX_MTU = 1, 4, 8, 2
_NUMBER = struct.Struct("=I")
_SIOCGIFMTU = 0x8921
_IFREQ = struct.Struct("=16si20x")


def mtu_to(family: int, host: str) -> int | None:
    """Bytes; None where the kernel names no single link, as of a route with several next hops.

    `family`, `host`: AF_INET or AF_INET6 and an address. A network of pods has routes or links whose MTU is smaller
    than the node's, because its packets are wrapped in others.
    """
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as asking:
            asking.settimeout(NETLINK_ANSWER_S)
            asking.send(question(family, host))
            index, mtu = parsed(asking.recv(65536))
        return mtu or (_of_link(socket.if_indextoname(index)) if index else None)
    except OSError:
        return None


def question(family: int, host: str) -> bytes:
    """The message that asks for the route to an address."""
    address = socket.inet_pton(family, host.partition("%")[0])
    rest = (0, 0, 0, 0, 0, 0, _FIB_MATCH)
    body = _RTMSG.pack(family, len(address) * 8, *rest)
    body += netlink.ATTRIBUTE.pack(netlink.ATTRIBUTE.size + len(address), _RTA_DST) + address
    length = netlink.HEADER.size + len(body)
    return netlink.HEADER.pack(length, _RTM_GETROUTE, netlink.REQUEST, 1, 0) + body


def parsed(raw: bytes) -> tuple[int, int]:
    """The link's number and the route's own MTU, in the kernel's answer; 0 for what it does not say."""
    for kind, body in netlink.messages(raw):
        if kind == _RTM_NEWROUTE:
            words = dict(netlink.attributes(body[_RTMSG.size :]))
            metrics = dict(netlink.attributes(words.get(_RTA_METRICS, b"")))
            return _number(words.get(_RTA_OIF, b"")), _number(metrics.get(_RTAX_MTU, b""))
    return 0, 0


def _number(raw: bytes) -> int:
    return int(_NUMBER.unpack(raw)[0]) if len(raw) == _NUMBER.size else 0


def _of_link(name: str) -> int:
    # not sysfs, which may be another namespace's
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        raw = fcntl.ioctl(asking, _SIOCGIFMTU, _IFREQ.pack(name.encode()[:15], 0))
    return int(_IFREQ.unpack(raw)[1])
