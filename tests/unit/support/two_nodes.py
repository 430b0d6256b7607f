"""A job recorded on one host, and fed again to the agents of two nodes, each of which gets those of its own processes.

Their reports go through the codec and are judged together, as the controller does.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

from kcover_ebpf.agent.node_loop import GangWatch
from kcover_ebpf.agent.pod_registry import LocalGang
from kcover_ebpf.agent.reports.report_builder import Identity, ReportBuilder
from kcover_ebpf.api.fault_report import object_of, report_of
from kcover_ebpf.api.job_kinds import Gang, GangId
from kcover_ebpf.diagnosis.evidence.snapshot import Finding
from kcover_ebpf.diagnosis.job import Job
from kcover_ebpf.diagnosis.tracker import Tracker
from kcover_ebpf.facts.host import CollectiveRank, CollectivesSeen, ThreadReading
from kcover_ebpf.facts.kernel import Fact, SocketSample, Tick
from kcover_ebpf.facts.python_stacks import PythonStacksSeen
from kcover_ebpf.facts.recorders import RecordersSeen
from kcover_ebpf.facts.syscalls import SyscallTable
from kcover_ebpf.gang.gang_input import GangInput, GangVerdict
from kcover_ebpf.gang.gang_judge import merge
from kcover_ebpf.gang.gang_snapshot import ReceivedReport
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.settings import Policy
from tests.unit.support.report_builders import NOW_S, SELECTOR, case, pod
from tests.unit.support.scripted_job import Proc, Stage

NODES = "ab"
"""Even ranks are on the first node, odd ones on the second."""
GANG = Gang(GangId.of("ns", SELECTOR), "j", "Job")


class Recorded(Stage):
    """A job whose facts are kept."""

    def node_of(self, pid: int) -> str:
        return NODES[self.served(self.procs[pid]) % 2]

    def served(self, proc: Proc) -> int:
        """The rank that a process is, or belongs to; launchers are on the first node."""
        if proc.rank is None and proc.ppid in self.procs:
            proc = self.procs[proc.ppid]
        return proc.rank or 0

    def ask(self, seconds: int, **said: object) -> None:
        """NCCL is asked once a second, and says so."""
        for _ in range(seconds):
            fact = CollectivesSeen(self.now_ns, self.now_ns - 2 * NS, 3)
            self.feed(replace(fact, **said))  # type: ignore[arg-type]
            self.run(1)


def recorded(world: int = 4) -> Recorded:
    """A job that has trained for a minute."""
    stage = Recorded(world=world, facts=[])
    stage.run(60)
    return stage


@dataclass
class Agent:
    """The sensor of one node; it is fed the facts of its own processes."""

    node: str
    pods: dict[Pid, str]
    asks: bool = True
    """It asks NCCL; one agent of a job does."""
    job: Job = field(init=False)
    tracker: Tracker = field(init=False)

    def __post_init__(self) -> None:
        self.job = Job(Policy(), SyscallTable("x86_64"), whole=False)
        self.tracker = Tracker("ns/j", self.node)

    def replay(self, stage: Recorded) -> None:
        judged = False
        for fact in stage.facts or ():
            if judged and not isinstance(fact, ThreadReading):
                self.tracker.update(self.job, 0.0)
                judged = False
            mine = self._mine(stage, fact)
            if mine is not None:
                self.job.observe(mine)
            judged |= isinstance(fact, Tick)
        self.tracker.update(self.job, 0.0)

    def _mine(self, stage: Recorded, fact: Fact) -> Fact | None:
        if isinstance(fact, Tick):
            return fact
        if isinstance(fact, CollectivesSeen) and not self.asks:
            return None
        if isinstance(fact, CollectivesSeen):
            # a number is known only to the agent of the node that the process is on
            lists = {
                name: tuple(self._known(stage, item) for item in getattr(fact, name))
                for name in ("behind", "missing", "failed", "odd")
            }
            return replace(fact, **cast("Any", lists))
        if isinstance(fact, RecordersSeen):
            mine = (record for record in fact.records if stage.node_of(record.pid) == self.node)
            return replace(fact, records=tuple(mine))
        if isinstance(fact, PythonStacksSeen):
            stacks = (stack for stack in fact.stacks if stage.node_of(stack.pid) == self.node)
            return replace(fact, stacks=tuple(stacks))
        if stage.node_of(cast("Any", fact).pid) != self.node:
            return None
        if isinstance(fact, SocketSample):
            # one host talks over its loopback interface, two nodes cannot
            return replace(fact, local=_addressed(fact.local), remote=_addressed(fact.remote))
        return fact

    def _known(self, stage: Recorded, rank: CollectiveRank) -> CollectiveRank:
        here = rank.pid is not None and stage.node_of(rank.pid) == self.node
        return rank if here else replace(rank, pid=None)

    def report(self, late_s: float) -> ReceivedReport:
        """What the product makes of it, as the controller reads it."""
        numbers = [number for number in range(64) if f"uid-{number}" in self.pods.values()]
        here = LocalGang(GANG, tuple(pod(number) for number in numbers), Policy())
        watch = SimpleNamespace(job=self.job, tracker=self.tracker)
        gang_watch = GangWatch(here, cast("Any", watch))
        gang_watch.pods = dict(self.pods)
        cache = cast("Any", SimpleNamespace(load=lambda: ()))
        builder = ReportBuilder(
            Identity(self.node, "kcover"), cast("Any", None), cache, lambda: True
        )
        made = builder._draft(gang_watch, self.job.now_ns / NS).report
        return ReceivedReport(report_of(object_of(made, "ns", "r")), NOW_S - late_s)


def _addressed(end: tuple[str, int]) -> tuple[str, int]:
    return f"10.0.0.{end[1] // 100 % 100}", end[1]


def on_two_nodes(stage: Recorded, late_s: float = 0.3, askers: str = "a") -> GangVerdict:
    """The verdict of the controller; both reports come so many seconds late."""
    agents = [Agent(node, {}, node in askers) for node in NODES]
    for proc in stage.procs.values():
        rank = stage.served(proc)
        (agent,) = (
            other_agent for other_agent in agents if other_agent.node == stage.node_of(proc.pid)
        )
        agent.pods[Pid(proc.pid)] = f"uid-{rank}"
    for agent in agents:
        agent.replay(stage)
    reported_gang_input: GangInput = case(
        *(other_agent.report(late_s) for other_agent in agents), pods=stage.world
    )
    return merge(reported_gang_input)


def on_one_host(stage: Recorded) -> Finding:
    found = stage.job.finding()
    assert found is not None
    return found
