"""What an agent costs its node and the API server: without ranks, and with ranks in jobs of eight.

A real agent, kubelet and API server; ranks are small programs (`ring.py`), eight to a pod. Nothing restarts a job here.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.clusterbench.plane import ROOT
from bench.clusterbench.restart import cluster_of
from bench.costbench.processes import cpu_ns
from kcover_ebpf.api.agent_lease import collection, name_of
from kcover_ebpf.host.proc_text import split_stat
from kcover_ebpf.kube.client import connect
from kcover_ebpf.kube.reflector import Event, Reflector
from testbed.driver.agents import Agent
from testbed.driver.cluster import Namespace, home, made, titled, until
from testbed.driver.victims import has_trained, ranks

_WORLD = 8
_LEARNED_S = 75.0
_CALM_S = 120.0
_STALLED_S = 60.0
_SELECTOR = "job=ring"
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PROGRAM = "ring.py"
_RING = Path(__file__).with_name(_PROGRAM)


def agent(kubeconfig: Path, folder: Path, rank_count: int) -> dict[str, Any]:
    """CPU, memory and writes while all is well, and after a rank of one job was stopped."""
    cluster = cluster_of(kubeconfig)
    cluster.ctl("apply", f"--filename={ROOT / 'charts/kcover-ebpf/crds'}")
    node = min(entry["metadata"]["name"] for entry in cluster.get("nodes"))
    with ExitStack() as stack:
        space = stack.enter_context(made(titled(cluster, "agent")))
        space.ctl("create", "configmap", "ring", f"--from-file={_RING}")
        program = Agent(node, folder, kubeconfig, home(cluster))
        program.start()
        stack.callback(program.kill)
        for number in range(rank_count // _WORLD):
            space.apply(json.dumps(_job(f"ring-{number}", node)))
        if rank_count:
            space.wait_for_steps(_SELECTOR, rank_count // _WORLD, 3, 300)
            until(lambda: has_trained(space), "the agent reports that they train")
        time.sleep(_LEARNED_S)
        meter = _Meter(program, space)
        found = {"ranks": rank_count, "calm": meter.over(_CALM_S)}
        if rank_count:
            os.kill(min(_rank_pids(space)), signal.SIGSTOP)
            found["one stopped"] = meter.over(_STALLED_S)
            found["verdicts"] = sorted(
                {
                    str((item["spec"].get("verdict") or {}).get("verdict"))
                    for item in space.items("faultreports")
                }
            )
    return found


def _rank_pids(space: Namespace) -> list[int]:
    """The ranks of all jobs, without what started them."""
    launchers = ranks(space, _SELECTOR, _PROGRAM).values()
    return [child for pid in launchers for child in _tree(pid)[1:]]


def _job(name: str, node: str) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "localhost/kcover-train:1",
        "command": ["python3", f"/ring/{_PROGRAM}", str(_WORLD)],
        "resources": {"requests": {"cpu": "10m"}},
        "volumeMounts": [{"name": "ring", "mountPath": "/ring"}],
    }
    spec = {
        "automountServiceAccountToken": False,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "nodeName": node,
        "containers": [container],
        "volumes": [{"name": "ring", "configMap": {"name": "ring"}}],
    }
    # watched, but not armed: what is stopped stays so
    labels = {"job": "ring"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "completionMode": "Indexed",
            "completions": 1,
            "backoffLimit": 0,
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


class _Meter:
    """What one agent uses and writes."""

    def __init__(self, program: Agent, space: Namespace) -> None:
        assert program.process is not None
        self._pid = program.process.pid
        self._writes: dict[str, int] = {}
        session = connect(str(space.cluster.kubeconfig))
        reports = f"/apis/kcover.io/v1alpha1/namespaces/{space.name}/faultreports"
        lease = name_of(program.node)
        for what, path, query in (
            ("Lease", collection(program.namespace), {"fieldSelector": f"metadata.name={lease}"}),
            ("FaultReports", reports, {}),
        ):
            self._writes[what] = 0
            Reflector(session, path, query, self._counting(what)).start()

    def _counting(self, what: str) -> Callable[[Event], None]:
        def count(event: Event) -> None:
            self._writes[what] += 1

        return count

    def over(self, window_s: float) -> dict[str, Any]:
        """For the given seconds from now on; a write is a change that the API server announced."""
        time.sleep(2.0)
        begun_s, cpu_s, writes = time.monotonic(), _cpu_s(self._pid), dict(self._writes)
        memory = []
        while time.monotonic() - begun_s < window_s:
            time.sleep(5.0)
            memory.append(_rss_mb(self._pid))
        took_s = time.monotonic() - begun_s
        return {
            "seconds": round(took_s),
            "cpu_percent_of_a_core": round((_cpu_s(self._pid) - cpu_s) / took_s * 100, 3),
            "rss_mb": round(statistics.median(memory), 1),
            "rss_most_mb": round(max(memory), 1),
            "writes_a_minute": {
                what: round((count - writes[what]) / took_s * 60, 2)
                for what, count in self._writes.items()
            },
        }


def _tree(pid: int) -> list[int]:
    """A process, and all that descend from it."""
    found = [pid]
    for number in found:
        for task in Path(f"/proc/{number}/task").glob("*/children"):
            found.extend(map(int, task.read_text(encoding="ascii").split()))
    return found


def _cpu_s(pid: int) -> float:
    """Of its threads in nanoseconds, of its children, ended and living, in ticks."""
    total = cpu_ns([pid]) / 1e9
    for number in _tree(pid):
        words = split_stat(Path(f"/proc/{number}/stat").read_text(errors="replace"))[1]
        # utime, stime; those of its children that ended (proc_pid_stat(5), from the third field on)
        ended, lives = int(words[13]) + int(words[14]), int(words[11]) + int(words[12])
        total += (ended + (lives if number != pid else 0)) * _TICK_S
    return total


def _rss_mb(pid: int) -> float:
    """Of it and its living children."""
    pages = sum(int(Path(f"/proc/{number}/statm").read_text().split()[1]) for number in _tree(pid))
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
