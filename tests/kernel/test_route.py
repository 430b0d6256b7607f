"""The MTU of the way to a peer, by real links and routes in a network namespace of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.needs("netns")
SETUP = """
ip link set lo up
for number in 0 1; do
    ip link add d$number type veth peer name p$number
    ip link set p$number up
    ip link set d$number mtu $((1440 + number * 60)) up
    ip address add 10.9.$number.1/24 dev d$number
done
ip route add 10.8.0.0/24 via 10.9.0.2 mtu 1300
ip route add 10.6.0.0/24 nexthop via 10.9.0.2 nexthop via 10.9.1.2
ip -6 address add fd00::1/64 dev d0 nodad
ip -6 route add fd01::/64 via fd00::2 mtu 1290
"""
PROGRAM = """
import json, socket, sys
from kcover_ebpf.inspection import path_mtu
family = lambda host: socket.AF_INET6 if ":" in host else socket.AF_INET
print(json.dumps({host: path_mtu.mtu_to(family(host), host) for host in sys.argv[1:]}))
"""
WANTED = {
    "127.0.0.1": 65536,
    "10.9.0.7": 1440,
    "10.9.1.7": 1500,
    "10.8.0.9": 1300,
    "10.6.0.9": None,
    "10.1.1.1": None,
    "fd00::5": 1440,
    "fd00::5%d0": 1440,
    "fd01::9": 1290,
    "fd09::1": None,
}
"""Neighbours on links, a route with an MTU, one with several next hops, none; the same of IPv6."""


def test_the_mtu_of_the_way_to_a_peer() -> None:
    script = f'set -e\n{SETUP}\nexec "$@"'
    command = [sys.executable, "-c", PROGRAM, *WANTED]
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", script, "sh", *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == WANTED
