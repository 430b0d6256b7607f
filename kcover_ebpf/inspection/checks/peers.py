"""Checks that other nodes can be reached: name resolution, connection, packet size on the path.

It uses the network namespace of this process: in a pod without hostNetwork that is the pod network, not the node's.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.facts.health import Result
from kcover_ebpf.inspection import path_mtu
from kcover_ebpf.inspection.at_once import at_once
from kcover_ebpf.inspection.options import InspectionOptions
from kcover_ebpf.inspection.result import Check, CheckFinding, Cost, failed, passed, unknown, warned
from kcover_ebpf.tunables.inspection import (
    PEER_ECHO_S,
    PEER_ECHO_TRIES,
    PEER_NAME_PATIENCE_S,
    PEER_PATIENCE_S,
    PEER_SLOW_S,
)

_IP_MTU = 14
_IPV6_MTU = 24
"""include/uapi/linux/in.h and in6.h; Python has no names for these."""
_ETHERNET_MTU = 1500
_CONNECTED_S = PEER_PATIENCE_S + 2 * PEER_ECHO_TRIES * PEER_ECHO_S + 1.0
"""Most seconds for a connection and its echoes; one second is added for the threads."""
_DNS = "check DNS"
_NETWORK = "check the network and the peer"
_SMALLER = "only small packets get through: check the MTU of all links"
_UNEQUAL = (
    "give all links and switches on the way the same MTU, if none of them filters large echoes"
)
_ARRIVES = {
    True: ", as echoes show",
    False: ", but echoes of that size do not come through, and small ones do",
    None: " by its links: no ICMP echo was answered, or none may be sent",
}


@dataclass(frozen=True, slots=True)
class _Peer:
    name: str
    """HOST:PORT as the operator wrote it."""
    family: int
    address: tuple[Any, ...]
    """Resolved address, as for a socket."""
    resolved_s: float


def find(options: InspectionOptions) -> Iterator[CheckFinding]:
    """A finding for each peer.

    If a peer cannot be reached but others can, that shows little about this node: a warning.
    """
    if not options.peers:
        yield unknown("no peer was named", "name them: --peer HOST:PORT")
    found = _of_all(options.peers)
    some_answer = any(check_finding.result is not Result.FAIL for check_finding in found)
    for finding in found:
        doubtful = some_answer and finding.result is Result.FAIL
        yield replace(finding, result=Result.WARN) if doubtful else finding


def _of_all(named: Sequence[tuple[str, int]]) -> list[CheckFinding]:
    """Findings in the order of the peers.

    All are tried in parallel, so that unreachable ones cost no more than one.
    """
    resolved = at_once(_resolved, named, PEER_NAME_PATIENCE_S)
    peers = [item for item in resolved if isinstance(item, _Peer)]
    answered = dict(zip(peers, at_once(_of_one, peers, _CONNECTED_S), strict=True))
    return [_found(pair, one, answered) for pair, one in zip(named, resolved, strict=True)]


def _found(
    named: tuple[str, int],
    resolved: _Peer | CheckFinding | None,
    answered: Mapping[_Peer, CheckFinding | None],
) -> CheckFinding:
    name = f"{named[0]}:{named[1]}"
    if resolved is None:
        return failed(f"{name}: the name has no address within {PEER_NAME_PATIENCE_S:g} s", _DNS)
    if isinstance(resolved, CheckFinding):
        return resolved
    return answered[resolved] or failed(f"{name}: no answer within {_CONNECTED_S:g} s", _NETWORK)


def _resolved(named: tuple[str, int]) -> _Peer | CheckFinding:
    host, port = named
    name = f"{host}:{port}"
    start_s = time.monotonic()
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        return failed(f"{name}: the name has no address: {error.strerror}", _DNS)
    return _Peer(name, family, address, time.monotonic() - start_s)


def _of_one(peer: _Peer) -> CheckFinding:
    start_s = time.monotonic()
    with socket.socket(peer.family, socket.SOCK_STREAM) as connection:
        connection.settimeout(PEER_PATIENCE_S)
        try:
            connection.connect(peer.address)
            connected_s = time.monotonic() - start_s
            mtu = _mtu(connection)
        except OSError as error:
            return failed(f"{peer.name}: no connection: {error.strerror or error}", _NETWORK)
    own_mtu = path_mtu.mtu_to(peer.family, peer.address[0]) or _ETHERNET_MTU
    arrives = path_mtu.arrives(peer.family, peer.address, mtu)
    text = (
        f"{peer.name}: name in {peer.resolved_s * 1000:.1f} ms, connected in {connected_s * 1000:.1f} ms, "
        f"path MTU {mtu}{_ARRIVES[arrives]}"
    )
    if arrives is False:
        return warned(text, _UNEQUAL)
    if mtu < min(own_mtu, _ETHERNET_MTU):
        return warned(f"{text}; that of the route here is {own_mtu}", _SMALLER)
    if max(peer.resolved_s, connected_s) > PEER_SLOW_S:
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
    "path MTU is no less than that of the route here (or 1500), and ICMP echoes of its size come through (else warn); "
    "warn where others can be reached",
    "getaddrinfo, TCP, ICMP",
    find,
)
