"""Numbers of the kernel that must not be mixed up, and the unit of its clocks."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, NewType

NS = 1_000_000_000
"""Nanoseconds a second."""

Pid = NewType("Pid", int)
"""A process (the kernel's tgid), in the initial pid namespace."""
Tid = NewType("Tid", int)
"""A thread; that of the first one of a process is the process's own number."""
Inode = NewType("Inode", int)
"""Of a file, pipe or socket; unique within its file system."""


def host_and_port(text: str) -> tuple[str, int] | None:
    """Of "HOST:PORT" or "[IPv6]:PORT", as users write it; the host may be empty. None for anything else."""
    host, colon, port = text.rpartition(":")
    is_number = port.isascii() and port.isdecimal() and len(port) <= 5
    if not colon or not is_number or int(port) > 65535:
        return None
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if set("[]") & set(bare) or (":" in bare and bare == host):
        return None
    return bare, int(port)


class Endpoint(NamedTuple):
    """One end of a connection; equal to the plain pair that a `SocketSample` has."""

    address: str
    port: int

    def __str__(self) -> str:
        """Such as "10.0.0.1:29500" or "[::1]:29500"."""
        return (
            f"[{self.address}]:{self.port}"
            if ":" in self.address
            else f"{self.address}:{self.port}"
        )

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """The end written like that; what is not has port 0, so it is the end of no connection."""
        host, colon, port = text.rpartition(":")
        if not colon or not port.isascii() or not port.isdecimal():
            return cls(text, 0)
        return cls(host.removeprefix("[").removesuffix("]"), int(port))

    @classmethod
    def known(cls, text: str) -> Endpoint:
        """As `parse`; remembered, since both ends of a connection report it, again and again."""
        return _known(text) if len(text) <= _LETTERS else cls.parse(text)


_LETTERS = 64
"""What is longer than an address and a port is none, and is not remembered."""


@lru_cache(maxsize=1 << 16)
def _known(text: str) -> Endpoint:
    return Endpoint.parse(text)
