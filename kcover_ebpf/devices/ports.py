"""Network and RDMA ports of this network namespace: link state by netlink, counters by sysfs.

A port that was moved into a pod's namespace is not visible here.
"""

from __future__ import annotations

import errno
import fcntl
import select
import socket
import struct
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.devices.inventory.topology import function_of, function_of_rdma
from kcover_ebpf.facts.devices import PortChange
from kcover_ebpf.host.read_workers import Readers
from kcover_ebpf.host.sysfs import text
from kcover_ebpf.tunables.devices import NETLINK_ANSWER_S, RDMA_PERIOD_NS

# headers of netlink messages: netlink(7), rtnetlink(7)
_HEADER = struct.Struct("=LHHLL")
"""struct nlmsghdr: length including the header, type, flags, sequence number, port id."""
_ATTRIBUTE = struct.Struct("=HH")
"""struct rtattr: length including this header, type."""
_REQUEST, _DUMP = 1, 0x300
"""Flags of the request: NLM_F_REQUEST, and NLM_F_DUMP for all links."""
# include/uapi/linux/rtnetlink.h, if_link.h, if.h
_RTMGRP_LINK = 1
_RTM_NEWLINK, _RTM_DELLINK, _RTM_GETLINK = 16, 17, 18
_LAST = (2, 3)
"""Types that end a dump: NLMSG_ERROR, NLMSG_DONE."""
_IFLA_IFNAME, _IFLA_OPERSTATE = 3, 16
_IFF_UP = 1
_OPERSTATES = ("unknown", "notpresent", "down", "lowerlayerdown", "testing", "dormant", "up")
_IFINFO = struct.Struct("=BxHiII")
# sysfs: ports/N/counters; each increment is one error of the link or port
_ERROR_COUNTERS = (
    "link_downed",
    "link_error_recovery",
    "symbol_error",
    "port_rcv_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
)


@dataclass(frozen=True, slots=True)
class Link:
    """One link message of the kernel (RTM_NEWLINK, RTM_DELLINK)."""

    name: str
    state: str
    """Operational state by RFC 2863, or "gone" for an interface that was removed."""
    wanted: bool
    """True if it is administratively up: a port that was switched off is not a fault."""


def _messages(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and body of each complete message."""
    offset = 0
    while offset + _HEADER.size <= len(raw):
        length, kind, *_ = _HEADER.unpack_from(raw, offset)
        if length < _HEADER.size or offset + length > len(raw):
            return
        yield kind, raw[offset + _HEADER.size : offset + length]
        offset += (length + 3) & ~3


def _attributes(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and value of each complete attribute."""
    offset = 0
    while offset + _ATTRIBUTE.size <= len(raw):
        length, kind = _ATTRIBUTE.unpack_from(raw, offset)
        if length < _ATTRIBUTE.size or offset + length > len(raw):
            return
        yield kind & 0x3FFF, raw[offset + _ATTRIBUTE.size : offset + length]
        offset += (length + 3) & ~3


def parse_links(raw: bytes) -> Iterator[Link]:
    """The link messages in one netlink datagram; truncated ones are left out."""
    for kind, body in _messages(raw):
        if kind in (_RTM_NEWLINK, _RTM_DELLINK) and len(body) >= _IFINFO.size:
            flags = _IFINFO.unpack_from(body)[3]
            words = dict(_attributes(body[_IFINFO.size :]))
            name = words.get(_IFLA_IFNAME, b"").partition(b"\0")[0].decode("utf-8", "replace")
            number = (words.get(_IFLA_OPERSTATE) or b"\0")[0]
            state = _OPERSTATES[number] if number < len(_OPERSTATES) else "unknown"
            if name:
                gone = kind == _RTM_DELLINK
                yield Link(name, "gone" if gone else state, bool(flags & _IFF_UP) or gone)


def links_now() -> list[Link]:
    """All links of this network namespace; raises `OSError`. sysfs may show another namespace."""
    found: list[Link] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as asking:
        asking.settimeout(NETLINK_ANSWER_S)
        length = _HEADER.size + _IFINFO.size
        head = _HEADER.pack(length, _RTM_GETLINK, _REQUEST | _DUMP, 1, 0)
        asking.send(head + bytes(_IFINFO.size))
        while True:
            raw = asking.recv(65536)
            found += parse_links(raw)
            # a DONE or ERROR message is the last of its datagram
            if len(raw) < _HEADER.size or any(kind in _LAST for kind, _ in _messages(raw)):
                return found


_SIOCGIFADDR = 0x8915
_IFREQ = struct.Struct("=16s24x")


def addresses(name: str, root: Path = Path("/")) -> tuple[str, ...]:
    """Addresses of an interface of this network namespace: its first IPv4 address and all IPv6 addresses."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            raw = fcntl.ioctl(asking, _SIOCGIFADDR, _IFREQ.pack(name.encode()[:15]))
            found.append(socket.inet_ntoa(raw[20:24]))
        except OSError:
            pass  # it has no IPv4 address
    for line in text(root / "proc/net/if_inet6").splitlines():
        words = line.split()
        if len(words) == 6 and words[5] == name:
            found.append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(words[0])))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _RdmaPort:
    """An RDMA port in sysfs: state and error counters as text, and its PCI function."""

    state: str
    counters: Mapping[str, str]
    device: str


def _read_port(folder: Path) -> _RdmaPort:
    counters = {
        error_counter: text(folder / "counters" / error_counter)
        for error_counter in _ERROR_COUNTERS
    }
    return _RdmaPort(text(folder / "state"), counters, function_of_rdma(folder.parents[1]))


class PortWatch:
    """Follows links by kernel events, and polls RDMA ports for state and error counters.

    Each poll is a command to the card's firmware with a time-out of a minute. A thread polls, and the loop never
    waits for a card that does not answer. No thread is started before the first call of `changes`.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        """Open in this network namespace; raises `OSError` if netlink is refused."""
        self._root = root
        self._rdma = root / "sys/class/infiniband"
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self._socket.setblocking(False)
        self._socket.bind((0, _RTMGRP_LINK))
        self._news = select.poll()
        self._news.register(self._socket, select.POLLIN)
        self._up: dict[str, bool] = {}
        """Last known state of each link and RDMA port ("mlx5_0/1"); True is up."""
        self.has_new = False
        """True once a new device appeared; the reader resets it."""
        self.lost_count = 0
        """How often the kernel dropped link events because our socket buffer was full."""
        self._counters: dict[tuple[str, str], int] = {}
        self._readers: Readers[str, _RdmaPort] = Readers("kcover-ports")
        self._next_ns = 0
        self._is_asked = False
        """True while a worker reads the RDMA ports."""
        for link in links_now():
            self._up[link.name] = link.state == "up"
        list(self._links(0))
        self.has_new = False

    def changes(self, boottime_ns: int) -> list[PortChange]:
        """What changed since the last call."""
        found = list(self._links(boottime_ns)) if self._news.poll(0) else []
        if self._is_asked or boottime_ns >= self._next_ns:
            found += self._rdma_ports(boottime_ns)
        return found

    def heard(self, change: PortChange) -> None:
        """Record a change that another source reported for an RDMA port, so that it is not reported twice."""
        self._up[change.port] = change.up

    def _links(self, boottime_ns: int) -> Iterator[PortChange]:
        lost_count = self.lost_count
        while True:
            try:
                raw = self._socket.recv(65536)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                self.lost_count += (
                    1  # reported immediately; events from before the loss arrive later
                )
                continue
            for link in parse_links(raw):
                yield from self._changed(link, boottime_ns)
        if self.lost_count > lost_count:
            yield from self._after_loss(boottime_ns)

    def _after_loss(self, boottime_ns: int) -> Iterator[PortChange]:
        try:
            links = links_now()
        except OSError:
            return  # later changes of each link are reported as usual
        for name in self._up.keys() - {link.name for link in links}:
            if "/" not in name:
                links.append(Link(name, "gone", wanted=True))
        for link in links:
            yield from self._changed(link, boottime_ns)

    def _changed(self, link: Link, boottime_ns: int) -> Iterator[PortChange]:
        up = link.state == "up"
        before = self._up.pop(link.name, None)
        if link.state != "gone":
            self._up[link.name] = up
            self.has_new |= before is None and bool(self._device(link.name))
        if before is not None and before != up:
            off = "" if up or link.wanted else ", switched off"
            device, text = self._device(link.name), f"{link.state}{off}"
            known = addresses(link.name, self._root)
            yield PortChange(boottime_ns, link.name, device, up, text, known)

    def _device(self, name: str) -> str:
        return function_of(self._root / "sys/class/net" / name)

    def _rdma_ports(self, boottime_ns: int) -> Iterator[PortChange]:
        for name, seen_port in self._readers.take((), 0.0):
            if seen_port is not None:
                yield from self._compared(name, seen_port, boottime_ns)
        self._is_asked = self._readers.is_asking
        if boottime_ns < self._next_ns:
            return
        self._next_ns = boottime_ns + RDMA_PERIOD_NS
        if not self._rdma.is_dir():
            return  # most hosts have no RDMA device, and a search would cost more
        for port in self._rdma.glob("*/ports/*"):
            # a port that has not answered yet is not asked again
            self._readers.ask(f"{port.parts[-3]}/{port.name}", partial(_read_port, port))
            self._is_asked = True

    def _compared(self, name: str, port: _RdmaPort, boottime_ns: int) -> Iterator[PortChange]:
        # "4: ACTIVE"; a port whose link is being trained is INIT or ARMED for a while
        state = port.state.rpartition(" ")[2]
        up, before = state == "ACTIVE", self._up.get(name)
        if state:
            self._up[name] = up
            self.has_new |= before is None
        reported = [f"port {state}"] if state and before not in (None, up) else []
        errors = list(self._errors(name, port.counters))
        if not (up or reported):
            # it has no link: its counters change nothing for those who use it, and would seem to be
            # the moment when it went down
            errors = []
        for change in (*reported, *errors):
            yield PortChange(boottime_ns, name, port.device, up, change)

    def _errors(self, name: str, counters: Mapping[str, str]) -> Iterator[str]:
        for counter, value in counters.items():
            if not value.isdecimal():
                continue
            count, before = int(value), self._counters.get((name, counter))
            self._counters[name, counter] = count
            if before is not None and count > before:
                yield f"{counter} +{count - before}"

    def close(self) -> None:
        """Stop listening and close the socket; a poll that hangs is abandoned."""
        self._socket.close()
