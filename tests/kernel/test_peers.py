"""The check `peers` between network namespaces: a switch with a smaller MTU than the nodes drops in silence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.workloads import network

pytestmark = pytest.mark.needs("root", "netns")
COMMAND = Path(sys.executable).with_name("kcover-ebpf")
PORT = 8000


@pytest.fixture
def nodes() -> Iterator[str]:
    """Prefix of two namespaces that a switch joins; the second one listens."""
    prefix = f"kcp{os.getpid()}"
    network.create(prefix, 2)
    listen = [*network.inside(prefix, 1), sys.executable, "-m", "http.server", str(PORT)]
    quiet = subprocess.DEVNULL
    server = subprocess.Popen(listen, stdout=quiet, stderr=quiet)
    try:
        yield prefix
    finally:
        server.kill()
        server.wait()
        network.remove(prefix)


def inspect(prefix: str) -> dict[str, Any]:
    """The answer of the check on the first node, once the second one listens."""
    peer = f"{network.address(1)}:{PORT}"
    command = [
        *network.inside(prefix, 0),
        str(COMMAND),
        "inspect",
        "--checks",
        "peers",
        "-o",
        "json",
    ]
    end_s = time.monotonic() + 60
    while True:
        done = subprocess.run(
            [*command, "--peer", peer], capture_output=True, text=True, check=False, timeout=60
        )
        (check,) = json.loads(done.stdout)["checks"]
        if "refused" not in check["evidence"][0] or time.monotonic() > end_s:
            return dict(check)
        time.sleep(0.2)


def test_packets_of_the_path_mtu_come_through(nodes: str) -> None:
    found = inspect(nodes)
    assert found["result"] == "pass"
    assert found["evidence"][0].endswith("path MTU 1500, as echoes show")


def test_a_switch_with_a_smaller_mtu_is_a_warning(nodes: str) -> None:
    network.ip("-n", nodes + network.SWITCH, "link", "set", f"{network.PORT}1", "mtu", "1400")
    found = inspect(nodes)
    assert found["result"] == "warn"
    assert "do not come through, and small ones do" in found["evidence"][0]
    assert found["advice"].startswith("give all links and switches on the way the same MTU")


def test_a_peer_that_answers_no_echo_is_judged_by_its_links(nodes: str) -> None:
    quiet = ["sysctl", "-q", "-w", "net.ipv4.icmp_echo_ignore_all=1"]
    subprocess.run([*network.inside(nodes, 1), *quiet], check=True)
    found = inspect(nodes)
    assert found["result"] == "pass"
    assert found["evidence"][0].endswith(
        "path MTU 1500 by its links: no ICMP echo was answered, or none may be sent"
    )
