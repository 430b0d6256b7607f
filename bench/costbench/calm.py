"""`python -m bench.costbench.calm [--installed] [NAME=CHECKOUT...]`: agents over one job that trains.

Needs root and a running `tools/testbed`. The job stays. The agents of several checkouts come and go on its first node
one after the other, round by round, so that a machine that gets slower or faster favours none; they are programs of
this host with a kubeconfig, for which the official client is imported. `--installed`: then the chart is installed, and
the agent of its pod is measured, which needs no such client. Prints a table of medians: CPU, and resident memory of the
agent and of all processes that it started (`proportional`: pages that several share are divided).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.costbench.pairs import commit_of
from bench.costbench.processes import cpu_ns, status_number
from kcover_ebpf.host.process_tree import read_stat
from kcover_ebpf.host.procfs import every_process
from testbed.cluster.layout import DEFAULT_NAME, Bed
from testbed.driver import kinds, victims
from testbed.driver.agents import Agent
from testbed.driver.cluster import ROOT, Cluster, Namespace, home, made, titled
from testbed.driver.installed import NAMESPACE, installed, provide_image

NODE = "node1"
AGENTS = "app.kubernetes.io/component=agent"
_INSTALLED = "in its pod"
_SETTLE_S = 75.0
"""From its 70th second on a job is known as one that trains."""


@dataclass(frozen=True)
class Calm:
    """One window of one agent."""

    name: str
    cpu: float
    """Of a core, all processes."""
    own_rss_kib: int
    rss_kib: int
    """The sum of all."""
    pss_kib: int
    process_count: int
    load: float


def tree(root: int) -> list[int]:
    """A process and all that descend from it."""
    parents = {pid: stat.ppid for pid in every_process() if (stat := read_stat(pid)) is not None}
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def measured(name: str, root: int, window_s: float) -> Calm:
    """An agent, by its process, after it has settled."""
    time.sleep(_SETTLE_S)
    pids = tree(root)
    began_s, before = time.monotonic(), {pid: cpu_ns([pid]) for pid in pids}
    time.sleep(window_s)
    # a round of the inspection ends by itself
    pids = [pid for pid in pids if Path(f"/proc/{pid}/smaps_rollup").exists()]
    used_ns = sum(cpu_ns([pid]) - before[pid] for pid in pids)
    cpu = used_ns / 1e9 / (time.monotonic() - began_s)
    resident = [status_number(pid, "VmRSS") for pid in pids]
    shared = [status_number(pid, "Pss", "smaps_rollup") for pid in pids]
    load = os.getloadavg()[0]
    return Calm(name, cpu, resident[0], sum(resident), sum(shared), len(pids), load)


def of_checkout(name: str, agent: Agent, window_s: float) -> Calm:
    """Start it, measure it, and end it."""
    agent.start()
    assert agent.process is not None
    try:
        return measured(name, agent.process.pid, window_s)
    finally:
        agent.process.terminate()
        agent.process.wait(30)


def of_release(cluster: Cluster, window_s: float, rounds: int) -> list[Calm]:
    """Install the chart, and measure the agent of `NODE`."""
    with installed(cluster, provide_image(cluster)) as release:
        release.wait_until_ready()
        pods = Namespace(cluster, NAMESPACE)
        node_of = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in pods.pods(AGENTS)}
        (root,) = (
            pid
            for name, pid in victims.ranks(pods, AGENTS, "bin/kcover-ebpf").items()
            if node_of[name] == NODE
        )
        return [measured(_INSTALLED, root, window_s) for _ in range(rounds)]


def table(windows: Sequence[Calm], commits: dict[str, str]) -> str:
    """Medians of each checkout, as Markdown."""
    rows = [
        "| agent | windows | CPU of a core | range | its own resident | all | proportional | processes | load |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(window.name for window in windows):
        own = [window for window in windows if window.name == name]
        cpus = [window.cpu for window in own]
        sizes = [
            statistics.median(values) / 1024
            for values in zip(
                *((window.own_rss_kib, window.rss_kib, window.pss_kib) for window in own),
                strict=True,
            )
        ]
        load = statistics.median(window.load for window in own)
        cells = [f"{name} {commits[name]}", str(len(own)), f"{statistics.median(cpus):.2%}"]
        cells += [f"{min(cpus):.2%} to {max(cpus):.2%}", *(f"{size:.1f} MiB" for size in sizes)]
        rows.append(f"| {' | '.join(cells)} | {own[-1].process_count} | {load:.1f} |")
    return "\n".join(rows)


def main(words: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="bench.costbench.calm", description=__doc__)
    parser.add_argument("checkouts", nargs="*", metavar="NAME=CHECKOUT")
    parser.add_argument(
        "--installed", action="store_true", help="measure the chart's agent as well"
    )
    parser.add_argument("--rounds", type=int, default=2, help="windows of each (default 2)")
    parser.add_argument("--window", type=float, default=60.0, help="seconds of each (default 60)")
    parser.add_argument("--name", default=DEFAULT_NAME, help="which test bed")
    chosen = parser.parse_args(words)
    if not (chosen.checkouts or chosen.installed):
        parser.error("name a checkout, or give --installed")
    roots = {}
    for word in chosen.checkouts:
        name, _, place = word.partition("=")
        roots[name] = Path(place).resolve()
        if not (roots[name] / ".venv/bin/kcover-ebpf").exists():
            parser.error(f"{word}: no .venv/bin/kcover-ebpf there; run make build in it")
    bed = Bed.of_checkout(chosen.name)
    cluster = Cluster(bed.kubeconfig, bed.bin / "kubectl")
    cluster.ctl("apply", "--server-side", f"--filename={ROOT / 'charts/kcover-ebpf/crds'}")
    windows = []
    with (
        made(titled(cluster, "calm")) as space,
        tempfile.TemporaryDirectory(prefix="kcover-calm-") as folder,
    ):
        kinds.start(space, kinds.KINDS["job"])
        logs = f"--pod-logs={bed.folder / NODE / 'var/log/pods'}"
        for _ in range(chosen.rounds):
            for name, root in roots.items():
                state = Path(folder) / name
                state.mkdir(exist_ok=True)
                agent = Agent(NODE, state, bed.kubeconfig, home(cluster), options=[logs], root=root)
                windows.append(of_checkout(name, agent, chosen.window))
                print(windows[-1], file=sys.stderr, flush=True)
        if chosen.installed:
            windows += of_release(cluster, chosen.window, chosen.rounds)
    commits = {name: commit_of(root) for name, root in roots.items()}
    print(table(windows, commits | {_INSTALLED: commit_of(ROOT)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
