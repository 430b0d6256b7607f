"""What an attack must not move in our own pods: restarts, and memory that was ever used."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
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
    all_bytes: int = 0
    """The sum of theirs: more than the pod ever used, for pages that they share are counted for each."""


@dataclass(frozen=True)
class Lag:
    """From when a pass of a loop was due until it was over, of all agents together."""

    passes: int
    p99_s: float
    """The upper end of the histogram's bucket that it is in."""


LagCounts = Mapping[str, Mapping[float, float]]
"""Agent's pod -> upper end of a bucket in seconds -> passes so far that took no longer."""
_LAG_BUCKET = re.compile(r'^kcover_loop_lag_seconds_bucket\{le="([^"]+)"\} (\S+)$', re.MULTILINE)


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
            found.append(Use(name, component, restarts, max(peaks, default=0), sum(peaks)))
    return found


def forget_peaks(cluster: Cluster) -> None:
    """The most that our pods used is counted from now on (proc(5), clear_refs)."""
    for pod in cluster.get("pods", f"--namespace={NAMESPACE}", _SELECTOR):
        for pid in processes(pod["metadata"]["uid"]):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                Path(f"/proc/{pid}/clear_refs").write_text("5")


def lag_counts(cluster: Cluster) -> LagCounts:
    """As each agent serves them now."""
    found = {}
    for use in our_pods(cluster):
        if use.component == "agent":
            path = f"/api/v1/namespaces/{NAMESPACE}/pods/{use.pod}:9465/proxy/metrics"
            buckets = _LAG_BUCKET.findall(cluster.ctl("get", "--raw", path))
            found[use.pod] = {float(end): float(count) for end, count in buckets}
    return found


def lag_between(before: LagCounts, after: LagCounts) -> Lag:
    """Of the passes meanwhile; an agent that was not there before counts from its start."""
    passes: dict[float, float] = {}
    for pod, buckets in after.items():
        for end, count in buckets.items():
            passes[end] = passes.get(end, 0.0) + count - before.get(pod, {}).get(end, 0.0)
    total = passes.get(float("inf"), 0.0)
    within = [end for end, count in sorted(passes.items()) if count >= 0.99 * total]
    return Lag(int(total), within[0] if within else float("inf"))


def check_bounded(uses: list[Use]) -> None:
    """None was restarted, each has a process, and none ever used more than it may."""
    assert {use.component for use in uses} == set(MOST_BYTES)
    for use in uses:
        assert use.restarts == 0, f"{use.pod} was restarted {use.restarts} times"
        assert 0 < use.peak_bytes < MOST_BYTES[use.component], use


def said(uses: list[Use]) -> str:
    """One line for a log."""
    return ", ".join(
        f"{use.pod} {use.peak_bytes / 1e6:.0f} MB (all processes {use.all_bytes / 1e6:.0f} MB)"
        for use in uses
    )


def _peak_bytes(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0
