"""What an attack must not move in our own pods: restarts, and memory that was ever used."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from testbed.driver.cluster import Cluster
from testbed.driver.fake_agent import processes
from testbed.driver.installed import NAMESPACE

MIB = 1 << 20
MOST_BYTES = {"agent": 200 * 1000 * 1000, "controller": 300 * 1000 * 1000}
"""Peak of the resident memory of one process, under attack; the chart's limits are 256 and 512 MiB."""
_SELECTOR = "--selector=app.kubernetes.io/name=kcover-ebpf"


@dataclass(frozen=True)
class Use:
    """One of our pods."""

    pod: str
    component: str
    restarts: int
    peak_bytes: int
    """The largest VmHWM (proc(5)) among its processes."""


def our_pods(cluster: Cluster) -> list[Use]:
    """Agents and controllers that run."""
    found = []
    for pod in cluster.get("pods", f"--namespace={NAMESPACE}", _SELECTOR):
        statuses = pod["status"].get("containerStatuses") or []
        if statuses and "deletionTimestamp" not in pod["metadata"]:
            component = pod["metadata"]["labels"]["app.kubernetes.io/component"]
            peaks = [_peak_bytes(pid) for pid in processes(pod["metadata"]["uid"])]
            restarts = sum(status["restartCount"] for status in statuses)
            name = pod["metadata"]["name"]
            found.append(Use(name, component, restarts, max(peaks, default=0)))
    return found


def forget_peaks(cluster: Cluster) -> None:
    """The most that our pods used is counted from now on (proc(5), clear_refs)."""
    for pod in cluster.get("pods", f"--namespace={NAMESPACE}", _SELECTOR):
        for pid in processes(pod["metadata"]["uid"]):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                Path(f"/proc/{pid}/clear_refs").write_text("5")


def check_bounded(uses: list[Use]) -> None:
    """None was restarted, each has a process, and none ever used more than it may."""
    assert {other_use.component for other_use in uses} == set(MOST_BYTES)
    for use in uses:
        assert use.restarts == 0, f"{use.pod} was restarted {use.restarts} times"
        assert 0 < use.peak_bytes < MOST_BYTES[use.component], use


def said(uses: list[Use]) -> str:
    """One line for a log."""
    return ", ".join(f"{use.pod} {use.peak_bytes / 1e6:.0f} MB" for use in uses)


def _peak_bytes(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0
