"""What this host can do, found out by trying. What cannot run is reported, with the reason."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from bench.faultbench import cgroups
from bench.faultbench.job import FRAMEWORKS_PYTHON, JAX_PYTHON
from bench.faultbench.plan import RunSpec
from bench.faultbench.scenario import FRAMEWORKS

CONTROLLERS = {
    "freeze-v1": "freezer",
    "quota-1": "cpu",
    "limit-rank-memory": "memory",
    "limit-worker-memory": "memory",
    "limit-with-swap": "memory",
    "throttle-disk": "blkio",
}


@cache
def works(*command: str) -> str:
    """Empty if the command succeeds, otherwise what it said."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return f"{command[0]}: {error.strerror}"
    return "" if done.returncode == 0 else (done.stderr.strip() or f"{command[0]} failed")


def in_namespace(tool: str) -> str:
    """Empty if a shell command works in its own network namespace."""
    return works("unshare", "--net", "sh", "-c", tool)


def not_runnable(run: RunSpec) -> str | None:
    """Why a run cannot be done on this host, None if it can."""
    return next((reason for reason in map(str.strip, reasons(run)) if reason), None)


def reasons(run: RunSpec) -> list[str]:
    """Everything that is in the way; empty strings where nothing does."""
    scenario = run.scenario
    found = ["" if os.geteuid() == 0 else "needs root", framework_missing(run.framework)]
    wanted = [CONTROLLERS[n] for n in (scenario.host, scenario.arm) if n in CONTROLLERS]
    found += [f"no cgroup v1 {n!r} on this host" for n in wanted if not cgroups.has_controller(n)]
    if scenario.host == "freeze-v2" and not (cgroups.UNIFIED / "cgroup.controllers").exists():
        found.append("no cgroup v2 on this host")
    if scenario.netns:
        found.append(in_namespace("ip link add eth0 type veth peer name p && nft list ruleset"))
    if scenario.host.startswith("loss-"):
        rule = "chain i { type filter hook input priority 0; numgen random mod 100 < 5 drop; }"
        found.append(in_namespace(f"echo 'table inet t {{ {rule}; }}' | nft -f -"))
    if scenario.host == "rate-1mbit":
        found.append(in_namespace("tc qdisc add dev lo root tbf rate 1mbit burst 16kb latency 1s"))
    found.append(preparation_missing(scenario.prepare))
    return found


def preparation_missing(prepare: str) -> str:
    """Why what a scenario prepares cannot be had."""
    if prepare.startswith("fuse") and not Path("/dev/fuse").exists():
        return "no /dev/fuse on this host"
    if prepare.startswith("ext4"):
        if not Path("/dev/loop-control").exists():
            return "no loop devices on this host"
        return "" if shutil.which("mkfs.ext4") else "mkfs.ext4 is missing"
    if prepare == "swap" and not Path("/dev/zram0").exists():
        return "no compressed memory device (zram) for swap on this host"
    return ""


@cache
def framework_missing(framework: str) -> str:
    """Why a framework cannot be used, empty if it can."""
    if framework == "jax":
        return "" if JAX_PYTHON.exists() else "JAX is not installed (tools/setup bench)"
    if framework == "mpi":
        if shutil.which("mpirun") is None:
            return "Open MPI is not installed (tools/setup test)"
        return works("/usr/bin/python3", "-c", "import mpi4py")
    if framework in FRAMEWORKS and not FRAMEWORKS_PYTHON.exists():
        return "the frameworks are not installed (tools/setup bench)"
    return "" if importlib.util.find_spec("torch") else "PyTorch is not installed"
