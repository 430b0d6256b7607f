"""Faults in jobs of a real cluster while everything else fails as well: `bench/chaos/run --seed N --minutes M`.

Needs root and a running `tools/testbed` without a release of kcover-ebpf. Three jobs train under the installed chart:
two are given faults at random moments, one is left alone. Meanwhile agents and controllers are killed, their disks
filled, the API server stopped, records and log lines poured out, containerd restarted, clocks moved, incidents and
reports deleted. Exit code 0 where every invariant held, 1 where one did not, 2 where the run could not be carried out.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from bench.chaos import clocks, helpers, report
from bench.chaos.disturbances import NOISE, STATE, Disturber, Undo
from bench.chaos.invariants import Outcome
from bench.chaos.jobs import JOB, Trained
from bench.chaos.observe import Observer
from bench.chaos.plan import FAULTS, Act, Kind, plan
from kcover_ebpf.errors import ApiError
from testbed.attacks.hostile import pod
from testbed.attacks.stage import shut
from testbed.cluster.layout import DEFAULT_NAME, Bed
from testbed.driver import kinds, nodes
from testbed.driver.cluster import Cluster, ClusterError, Namespace, made, titled
from testbed.driver.installed import NAMESPACE, installed, provide_image
from testbed.driver.restarts import policy
from tools.pages import DATA

_FAULTY = 2
_VALUES = (
    # one job hangs more often here in an hour than others do in their lives
    "controller.tenants.maxRestarts=1000",
    "controller.tenants.minBackoffSeconds=0",
)


class Run:
    """One run: what was done is in `done`."""

    def __init__(self, cluster: Cluster, faulty: list[Trained], disturber: Disturber) -> None:
        self._cluster, self._faulty, self._disturber = cluster, faulty, disturber
        self.done: list[tuple[Act, str]] = []

    def carry_out(self, acts: list[Act], length_s: float, observer: Observer) -> None:
        """All acts at their time, each taken back after its length; returns when all are."""
        began_s, order = time.monotonic(), itertools.count()
        queue: list[tuple[float, int, Act, Undo | None]] = [
            (act.at_s, next(order), act, None) for act in acts
        ]
        heapq.heapify(queue)
        try:
            while queue:
                at_s, _, act, undo = heapq.heappop(queue)
                time.sleep(max(0.0, began_s + at_s - time.monotonic()))
                if undo is not None:
                    undo()
                    continue
                taken_back = self._begin(act, observer)
                if taken_back is not None:
                    late_s = time.monotonic() - began_s + act.seconds
                    heapq.heappush(queue, (late_s, next(order), act, taken_back))
        finally:
            for _, _, _, undo in queue:
                if undo is not None:
                    undo()
        time.sleep(max(0.0, began_s + length_s - time.monotonic()))

    def _begin(self, act: Act, observer: Observer) -> Undo | None:
        try:
            if act.kind in FAULTS:
                fault = self._faulty[act.target].break_rank(act)
                self._note(act, "done" if fault else "left out: the job was not ready")
                return None
            if act.kind is Kind.DELETE_INCIDENTS:
                self._count_deletion(act, observer)
            undo = self._disturber.carry_out(act)
        except (OSError, ClusterError, ApiError, subprocess.TimeoutExpired) as error:
            self._note(act, f"left out: {error}"[:200])
            return None
        self._note(act, "done")
        return undo

    def _count_deletion(self, act: Act, observer: Observer) -> None:
        space = self._disturber.jobs[act.target % len(self._disturber.jobs)]
        for job in self._faulty:
            if job.space is space and observer.incidents.is_acting(space):
                job.deletions += 1

    def _note(self, act: Act, what: str) -> None:
        self.done.append((act, what))
        print(f"{act.at_s:7.1f} s  {act.kind.value:22} {what}", flush=True)


def started(stack: ExitStack, cluster: Cluster) -> list[Namespace]:
    """The namespaces of three jobs that train: those that are given faults, and the one that is not."""
    spaces = []
    for name in ("hangs", "hangs-too", "steady"):
        space = stack.enter_context(made(titled(cluster, f"chaos-{name}")))
        policy(space, ways=["Replace"] if name == "hangs-too" else ["InPlace", "Replace"])
        kinds.start(space, JOB)
        spaces.append(space)
    return spaces


def run(seed: int, minutes: float, out: Path, bed: Bed, *, only_helpers: bool = False) -> int:
    """The exit code."""
    cluster = Cluster(bed.kubeconfig, bed.bin / "kubectl")
    if not cluster.kubeconfig.exists():
        raise ClusterError(f"no test bed runs here; start one: tools/testbed up --name {bed.name}")
    acts = plan(seed, minutes * 60, _FAULTY, helpers=only_helpers)
    with ExitStack() as stack:
        stack.enter_context(nodes.all_uncordoned(cluster))
        shut_before = shut(cluster)
        names = [node["metadata"]["name"] for node in cluster.get("nodes")]
        for name in names:
            small_disk(stack, cluster, name)
        release = stack.enter_context(installed(cluster, provide_image(cluster), *_VALUES))
        release.wait_until_ready()
        clocks.install(release, names)
        noise = stack.enter_context(made(titled(cluster, "chaos-noise")))
        for name in names:
            body = pod(f"{NOISE}-{name}")
            body["spec"]["nodeName"] = name
            noise.apply(json.dumps(body))
        spaces = started(stack, cluster)
        jobs = [Trained(space) for space in spaces]
        for job in jobs:
            kinds.wait_until_learned(job.space, JOB, 180)
        with Observer(cluster, spaces, NAMESPACE) as observer:
            work = Run(cluster, jobs[:_FAULTY], Disturber(cluster, bed, names, spaces, noise))
            work.carry_out(acts, minutes * 60, observer)
            at_end = [trained.at_end(observer) for trained in jobs]
            faults = [fault for trained in jobs for fault in trained.dated(observer)]
            outcome = Outcome(
                faults, observer.incidents.seen(), at_end, list(observer.peaks.values()),
                sorted(shut(cluster) - shut_before), helpers.at_end(cluster),
            )  # fmt: skip
    return report.write(out, seed, minutes, work.done, outcome, observer.misses)


def small_disk(stack: ExitStack, cluster: Cluster, node: str) -> None:
    """The agent's state of this node on a disk that can be filled."""
    nodes.inside(cluster, node, "mkdir", "-p", STATE)
    nodes.inside(cluster, node, "mount", "-t", "tmpfs", "-o", "size=8m", "state", STATE)
    stack.callback(nodes.inside, cluster, node, "umount", "--lazy", STATE)


def main() -> int:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(prog="bench/chaos/run", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="what happens when (default: 1)")
    parser.add_argument("--minutes", type=float, default=10.0, help="length (default: 10)")
    parser.add_argument(
        "--name", default=DEFAULT_NAME, help=f"which test bed (default: {DEFAULT_NAME})"
    )
    parser.add_argument(
        "--out", type=Path, default=DATA / "chaos", help="report, without its suffix"
    )
    parser.add_argument(
        "--helpers", action="store_true", help="kill the processes of agents, and nothing else"
    )
    parser.add_argument("--plan", action="store_true", help="print what would happen, and end")
    chosen = parser.parse_args()
    if chosen.plan:
        for act in plan(chosen.seed, chosen.minutes * 60, _FAULTY, helpers=chosen.helpers):
            print(f"{act.at_s:7.1f} s  {act.kind.value:22} {act.target} {act.seconds or ''}")
        return 0
    try:
        bed = Bed.of_checkout(chosen.name)
        return run(chosen.seed, chosen.minutes, chosen.out, bed, only_helpers=chosen.helpers)
    except (ClusterError, AssertionError) as error:
        print(f"chaos: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
