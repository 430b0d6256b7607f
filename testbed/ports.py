"""TCP ports for servers of tests and jobs on this host."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

_TRIES = 200
_LOWEST = 10_000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> int:
    """The first of so many ports in a row without a listener; `RuntimeError` if none were found.

    They are below those that the kernel gives to connections (ip(7), ip_local_port_range): one of these may be taken
    before its server begins to listen.
    """
    highest = int(_RANGE.read_text().split()[0]) - count
    for _ in range(_TRIES):
        first = random.randint(_LOWEST, highest)
        with contextlib.ExitStack() as taken, contextlib.suppress(OSError):
            for port in range(first, first + count):
                taken.enter_context(socket.create_server(("127.0.0.1", port)))
            return first
    raise RuntimeError(f"no {count} free ports in a row from {_LOWEST} to {highest}")


def free_port() -> int:
    """A port without a listener; the one after it is likely free too."""
    return free_ports(1)
