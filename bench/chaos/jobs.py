"""The jobs of a run, the faults in them, and what they are like when all is calm again."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, field

from bench.chaos.invariants import Fault, JobAtEnd
from bench.chaos.observe import Observer
from bench.chaos.plan import Act, Kind
from kcover_ebpf.tunables.agent import REFRESH_S
from testbed.driver.cluster import ClusterError, Namespace
from testbed.driver.fake_agent import is_first, processes
from testbed.driver.kinds import KINDS, rank_pods, wait_for_training, wait_until_learned
from testbed.driver.restarts import stopped

JOB = KINDS["job"]
_SIGNALS = {Kind.STOP_RANK: signal.SIGSTOP, Kind.KILL_RANK: signal.SIGKILL}
_CALM_S = REFRESH_S + 60.0
"""A report that was deleted is not missed by its agent: it is there again with the next whole one."""


@dataclass
class Trained:
    """A job of two ranks in its own namespace."""

    space: Namespace
    faults: list[Fault] = field(default_factory=list)
    deletions: int = 0

    def is_ready(self) -> bool:
        """Whether its ranks all run and both nodes saw them train: before, a hang is no fault that could be noticed."""
        pods = rank_pods(self.space, JOB)
        uids = {pod["metadata"]["uid"] for pod in pods}
        reported = {
            uid
            for item in self.space.items("faultreports")
            if item["spec"].get("trained") and not item["spec"].get("suspicious")
            for uid in (pod["uid"] for pod in item["spec"].get("pods", ()))
        }
        return len(pods) == JOB.pods and uids <= reported and not stopped(pods)

    def break_rank(self, act: Act) -> Fault | None:
        """Inject a fault; None where the job is not ready for one."""
        if not self.is_ready():
            return None
        pods = rank_pods(self.space, JOB)
        pod = pods[act.rank % len(pods)]
        first = [pid for pid in processes(pod["metadata"]["uid"]) if is_first(pid)]
        if not first:
            return None
        os.kill(first[0], _SIGNALS[act.kind])
        name = pod["metadata"]["name"]
        fault = Fault(self.space.name, act.kind.value, name, time.time())
        self.faults.append(fault)
        return fault

    def at_end(self, observer: Observer) -> JobAtEnd:
        """What it is like once it trains, or once waiting for that was given up."""
        try:
            wait_until_learned(self.space, JOB, _CALM_S)
            wait_for_training(self.space, JOB)
            trains = True
        except ClusterError:
            trains = False
        (job,) = self.space.get("jobs", "demo")
        starts = {rank: len(ids) for rank, ids in observer.started[self.space.name].items()}
        return JobAtEnd(
            self.space.name,
            bool(job["spec"].get("suspend")),
            len(stopped(rank_pods(self.space, JOB))),
            trains,
            starts,
            self.deletions,
        )

    def dated(self, observer: Observer) -> list[Fault]:
        """The faults with the time at which every rank had restarted."""
        starts = [sorted(ids.values()) for ids in observer.started[self.space.name].values()]
        found = []
        for fault in self.faults:
            after = [[at_s for at_s in times if at_s > fault.at_s] for times in starts]
            last = max(times[0] for times in after) if starts and all(after) else None
            found.append(Fault(fault.job, fault.kind, fault.pod, fault.at_s, last))
        return found
