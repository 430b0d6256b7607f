"""The processes that an agent starts: readers of what tenants wrote, the resumer, probers, rounds of the inspection."""

from __future__ import annotations

import contextlib
from pathlib import Path

from bench.chaos.invariants import Helpers
from testbed.driver.cluster import Cluster
from testbed.driver.fake_agent import processes
from testbed.driver.installed import NAMESPACE

_AGENTS = "--selector=app.kubernetes.io/component=agent"
_PROGRAM = "kcover-ebpf"


def of_agents(cluster: Cluster) -> list[tuple[int, str]]:
    """Number and command line of each, ended ones left out."""
    return [
        (pid, command)
        for pod in cluster.get("pods", f"--namespace={NAMESPACE}", _AGENTS)
        for pid in _children(pod["metadata"]["uid"])
        if (command := _command(pid))
    ]


def at_end(cluster: Cluster) -> list[Helpers]:
    """What each agent has now."""
    found = []
    for pod in cluster.get("pods", f"--namespace={NAMESPACE}", _AGENTS):
        pids = _children(pod["metadata"]["uid"])
        alive = [pid for pid in pids if _command(pid)]
        found.append(Helpers(pod["metadata"]["name"], len(alive), len(pids) - len(alive)))
    return found


def _children(uid: str) -> list[int]:
    """Of the program of a pod, direct ones alone."""
    ours = processes(uid)
    return [pid for pid in ours if (parent := parent_of(pid)) in ours and _name(parent) == _PROGRAM]


def parent_of(pid: int) -> int:
    """The number of its parent; 0 for one that is gone."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _command(pid: int) -> str:
    """Empty for one that has ended."""
    with contextlib.suppress(OSError):
        return (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
    return ""
