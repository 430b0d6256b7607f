"""Network and RDMA ports of this network namespace: link state by netlink, counters by sysfs.

A port that was moved into a pod's namespace is not seen from here.
"""

from __future__ import annotations

import errno
import fcntl
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kcover_ebpf.device_facts import PortChange

# include/uapi/linux/rtnetlink.h, if_link.h, if.h
_RTMGRP_LINK = 1
_RTM_NEWLINK, _RTM_DELLINK = 16, 17
_IFLA_IFNAME, _IFLA_OPERSTATE = 3, 16
_IFF_UP = 1
_OPERSTATES = ("unknown", "notpresent", "down", "lowerlayerdown", "testing", "dormant", "up")
_HEADER = struct.Struct("=LHHLL")
_IFINFO = struct.Struct("=BxHiII")
_ATTRIBUTE = struct.Struct("=HH")
# sysfs: ports/N/counters; each growth of one is an error of the link or of the port
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
    """One link message of the kernel."""

    name: str
    state: str
    """The operational state of RFC 2863, "gone" for an interface that was removed."""
    wanted: bool
    """Whether somebody wants it up: a port that was switched off is no fault."""


def parse_links(raw: bytes) -> Iterator[Link]:
    """The link messages in one netlink datagram; what is not whole is left out."""
    offset = 0
    while offset + _HEADER.size + _IFINFO.size <= len(raw):
        length, kind, *_ = _HEADER.unpack_from(raw, offset)
        if length < _HEADER.size or offset + length > len(raw):
            return
        if kind in (_RTM_NEWLINK, _RTM_DELLINK) and length >= _HEADER.size + _IFINFO.size:
            flags = _IFINFO.unpack_from(raw, offset + _HEADER.size)[3]
            begin = offset + _HEADER.size + _IFINFO.size
            words = dict(_attributes(raw[begin : offset + length]))
            name = words.get(_IFLA_IFNAME, b"").partition(b"\0")[0].decode("utf-8", "replace")
            number = (words.get(_IFLA_OPERSTATE) or b"\0")[0]
            state = _OPERSTATES[number] if number < len(_OPERSTATES) else "unknown"
            if name:
                gone = kind == _RTM_DELLINK
                yield Link(name, "gone" if gone else state, bool(flags & _IFF_UP) or gone)
        offset += (length + 3) & ~3


def _attributes(raw: bytes) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while offset + _ATTRIBUTE.size <= len(raw):
        length, kind = _ATTRIBUTE.unpack_from(raw, offset)
        if length < _ATTRIBUTE.size or offset + length > len(raw):
            return
        yield kind & 0x3FFF, raw[offset + _ATTRIBUTE.size : offset + length]
        offset += (length + 3) & ~3


_SIOCGIFADDR = 0x8915
_IFREQ = struct.Struct("=16s24x")


def addresses(name: str, root: Path = Path("/")) -> tuple[str, ...]:
    """The addresses of an interface of this network namespace: the first IPv4 one, all IPv6 ones."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            raw = fcntl.ioctl(asking, _SIOCGIFADDR, _IFREQ.pack(name.encode()[:15]))
            found.append(socket.inet_ntoa(raw[20:24]))
        except OSError:
            pass  # it has none
    for line in _read(root / "proc/net/if_inet6").splitlines():
        words = line.split()
        if len(words) == 6 and words[5] == name:
            found.append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(words[0])))
    return tuple(found)


class PortWatch:
    """Told by the kernel about links, and asks for the error counters of RDMA ports."""

    def __init__(self, root: Path = Path("/")) -> None:
        """Open in this network namespace; raises `OSError` where netlink is refused."""
        self._root = root
        self._rdma = root / "sys/class/infiniband"
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self._socket.setblocking(False)
        self._socket.bind((0, _RTMGRP_LINK))
        self._up: dict[str, bool] = {}
        for folder in (root / "sys/class/net").glob("*"):
            self._up[folder.name] = _read(folder / "operstate") == "up"
        self._counters: dict[tuple[str, str], int] = {}
        self.changes(0)

    def changes(self, boottime_ns: int) -> list[PortChange]:
        """What changed since the last call."""
        return [*self._links(boottime_ns), *self._errors(boottime_ns)]

    def _links(self, boottime_ns: int) -> Iterator[PortChange]:
        while True:
            try:
                raw = self._socket.recv(65536)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                continue
            for link in parse_links(raw):
                up = link.state == "up"
                before = self._up.get(link.name)
                self._up[link.name] = up
                if before is not None and before != up:
                    off = "" if up or link.wanted else ", switched off"
                    device, text = self._device(link.name), f"{link.state}{off}"
                    known = addresses(link.name, self._root)
                    yield PortChange(boottime_ns, link.name, device, up, text, known)

    def _device(self, name: str) -> str:
        try:
            return (self._root / "sys/class/net" / name / "device").readlink().name
        except OSError:
            return ""

    def _errors(self, boottime_ns: int) -> Iterator[PortChange]:
        if not self._rdma.is_dir():
            return  # most hosts: a search would cost more
        for port in self._rdma.glob("*/ports/*"):
            name = f"{port.parts[-3]}/{port.name}"
            for counter in _ERROR_COUNTERS:
                text = _read(port / "counters" / counter)
                if not text.isdecimal():
                    continue
                count, before = int(text), self._counters.get((name, counter))
                self._counters[name, counter] = count
                if before is not None and count > before:
                    up = _read(port / "state").endswith("ACTIVE")
                    told = f"{counter} +{count - before}"
                    yield PortChange(boottime_ns, name, self._rdma_device(port), up, told)

    def _rdma_device(self, port: Path) -> str:
        try:
            return (port.parents[1] / "device").readlink().name
        except OSError:
            return ""

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
