"""Ports for servers of tests: free, in a row, and none that the kernel gives to a connection."""

from __future__ import annotations

import random
import socket
from pathlib import Path

import pytest

from testbed import ports

LOWEST_OF_KERNEL = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])


def test_ports__three_in_a_row_can_be_listened_on_and_are_below_those_of_connections() -> None:
    first = ports.free_ports(3)
    assert first + 2 < LOWEST_OF_KERNEL
    for port in range(first, first + 3):
        socket.create_server(("127.0.0.1", port)).close()


def test_ports__one_that_is_taken_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", ports.free_port())) as taken:
        number = taken.getsockname()[1]
        chosen = iter([number - 1, number, number + 1])
        monkeypatch.setattr(random, "randint", lambda *_: next(chosen))
        assert ports.free_ports(2) == number + 1
        monkeypatch.setattr(random, "randint", lambda *_: number)
        with pytest.raises(RuntimeError, match="no 1 free ports"):
            ports.free_port()
