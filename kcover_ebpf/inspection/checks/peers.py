"""Other nodes can be reached: name, connection, size of packets on the way."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import replace

from kcover_ebpf.facts.health import Result
from kcover_ebpf.inspection import echo
from kcover_ebpf.inspection.options import InspectionOptions
from kcover_ebpf.inspection.result import Check, CheckFinding, Cost, failed, passed, unknown, warned
from kcover_ebpf.tunables.inspection import PEER_PATIENCE_S, PEER_SLOW_S

_IP_MTU = 14
_IPV6_MTU = 24
"""include/uapi/linux/in.h and in6.h; Python has no names for them."""
_ETHERNET_MTU = 1500
_UNEQUAL = (
    "give all links and switches on the way the same MTU, if none of them filters large echoes"
)
_ARRIVES = {
    True: ", as echoes show",
    False: ", but echoes of that size do not come through, and small ones do",
    None: " by its links: no ICMP echo was answered, or none may be sent",
}


def find(options: InspectionOptions) -> Iterator[CheckFinding]:
    """A finding for each peer.

    One that cannot be reached while others can says little about this node: a warning.
    """
    if not options.peers:
        yield unknown("no peer was named", "name them: --peer HOST:PORT")
    found = [_of_one(host, port) for host, port in options.peers]
    some_answer = any(each.result is not Result.FAIL for each in found)
    for each in found:
        doubtful = some_answer and each.result is Result.FAIL
        yield replace(each, result=Result.WARN) if doubtful else each


def _of_one(host: str, port: int) -> CheckFinding:
    name = f"{host}:{port}"
    start_s = time.monotonic()
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        )[0]
    except OSError as error:
        return failed(f"{name}: the name has no address: {error.strerror}", "check DNS")
    resolved_s = time.monotonic() - start_s
    with socket.socket(family, kind, protocol) as connection:
        connection.settimeout(PEER_PATIENCE_S)
        try:
            connection.connect(address)
        except OSError as error:
            reason = error.strerror or str(error)
            return failed(f"{name}: no connection: {reason}", "check the network and the peer")
        connected_s = time.monotonic() - start_s - resolved_s
        mtu = _mtu(connection)
    arrives = echo.arrives(family, address, mtu)
    text = (
        f"{name}: name in {resolved_s * 1000:.1f} ms, connected in {connected_s * 1000:.1f} ms, "
        f"path MTU {mtu}{_ARRIVES[arrives]}"
    )
    if arrives is False:
        return warned(text, _UNEQUAL)
    if mtu < _ETHERNET_MTU:
        return warned(text, "the way to it takes small packets only: check the MTU of all links")
    if max(resolved_s, connected_s) > PEER_SLOW_S:
        return warned(text, "check DNS, and the network for lost packets")
    return passed(text)


def _mtu(connection: socket.socket) -> int:
    if connection.family == socket.AF_INET6:
        return connection.getsockopt(socket.IPPROTO_IPV6, _IPV6_MTU)
    return connection.getsockopt(socket.IPPROTO_IP, _IP_MTU)


CHECK = Check(
    "peers",
    Cost.LIGHT,
    60.0,
    "each `--peer HOST:PORT`: its name resolves, it accepts a TCP connection within 5 s (warn from 0.5 s), the "
    "path MTU is 1500 at least, and ICMP echoes of its size come through (else warn); warn where others can be reached",
    "getaddrinfo, TCP, ICMP",
    find,
)
