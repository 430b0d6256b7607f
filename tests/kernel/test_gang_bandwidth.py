"""The bandwidth check of a job by the real mpirun: three pods, each in its own network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.skips import ROOT

pytestmark = pytest.mark.needs("root", "netns", "mpi")
COUNT = 3
BRIDGE = f"kbw{os.getpid()}"
"""Other workers, and other checkouts, have theirs."""
# Each rank prints, and the slow one first: what an all-reduce over all of them would come to.
STUB = """#!/bin/sh
if [ "$KCOVER_NODE_NAME" = "$SLOW" ]; then
    echo "# Avg bus bandwidth    : 12.5"
else
    sleep 2
    echo "# Avg bus bandwidth    : 180"
fi
"""
HANGS = """#!/bin/sh
[ "$KCOVER_NODE_NAME" != "$SLOW" ] || exec sleep 1000
"""
POD = """
import os, sys
from bandwidth import first, __main__ as program
first._ALL_S = {limit_s}
code = program.main()
sys.stdout.flush()
os._exit(code)
"""


def ip(*words: str, check: bool = True) -> None:
    subprocess.run(["ip", *words], check=check)


@pytest.fixture
def networks() -> Iterator[list[str]]:
    """Names of network namespaces on one bridge; addresses 10.77.0.10 and following."""
    names = [f"{BRIDGE}-{index}" for index in range(COUNT)]
    ip("link", "add", BRIDGE, "type", "bridge")
    ip("link", "set", BRIDGE, "up")
    try:
        for index, name in enumerate(names):
            near = f"{BRIDGE}-{index}"
            ip("netns", "add", name)
            ip("link", "add", near, "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", near, "master", BRIDGE, "up")
            ip("-n", name, "address", "add", f"10.77.0.{10 + index}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            ip("link", "delete", name, check=False)
            ip("netns", "delete", name, check=False)
        ip("link", "delete", BRIDGE, check=False)


def run(
    networks: list[str], folder: Path, slow: str, limit_s: float = 120.0
) -> list[tuple[int, str]]:
    """Exit code and output of each pod's check."""
    pods, scratches = [], []
    for index, name in enumerate(networks):
        own = folder / f"pod-{index}"
        own.mkdir()
        # of each its own, as pods have, and short: a socket of Open MPI's lies there
        scratch = Path(tempfile.mkdtemp(prefix="bw."))
        environment = os.environ | {
            "PATH": f"{folder}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "plugins"),
            "MASTER_ADDR": "10.77.0.10",
            "RANK": str(index),
            "WORLD_SIZE": str(COUNT),
            "KCOVER_BANDWIDTH_FLOOR": "100",
            "KCOVER_NODE_NAME": f"n{index}",
            "SLOW": slow,
            "TMPDIR": str(scratch),
        }
        words = [sys.executable, "-c", POD.format(limit_s=limit_s), str(own)]
        command = ["ip", "netns", "exec", name, *words]
        pods.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment))
        scratches.append(scratch)
    ended = [pod.communicate(timeout=400)[0] for pod in pods]
    for path in scratches:
        shutil.rmtree(path, ignore_errors=True)
    return [(pod.returncode, out) for pod, out in zip(pods, ended, strict=True)]


def provide(folder: Path, text: str) -> None:
    program = folder / "all_reduce_perf"
    program.write_text(text)
    program.chmod(0o755)


@pytest.mark.parametrize("slow", ["n0", "n2", ""])
def test_mpirun_starts_it_on_all_pods_by_their_own_connections(
    networks: list[str], tmp_path: Path, slow: str
) -> None:
    provide(tmp_path, STUB)
    found = run(networks, tmp_path, slow)
    print(found[0][1])
    assert [code for code, _ in found] == [81 if f"n{i}" == slow else 0 for i in range(COUNT)]
    words = (
        f"fail: 3 pods: 12.5 GB/s, floor 100; slow: {slow}" if slow else "pass: 3 pods: 180 GB/s"
    )
    assert all(words in out for _, out in found)


def test_a_node_that_hangs_delays_the_job_and_nothing_is_left_of_it(
    networks: list[str], tmp_path: Path
) -> None:
    provide(tmp_path, HANGS)
    found = run(networks, tmp_path, "n1", limit_s=10.0)
    assert [code for code, _ in found] == [0] * COUNT
    assert "unknown: all_reduce_perf did not end within 10 s" in found[1][1]
    listed = [["ip", "netns", "pids", name] for name in networks]
    left = [subprocess.run(item, capture_output=True, text=True, check=True) for item in listed]
    assert "".join(item.stdout for item in left) == ""
