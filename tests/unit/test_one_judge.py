"""One judge: a job gets the same verdict whether one host sees all its ranks or two nodes report half of them each.

A job is recorded on one host. Its facts are fed again to the agents of two nodes, each of which gets those of its own
processes; their reports go through the codec and are judged together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from kcover_ebpf.agent.node_loop import GangWatch
from kcover_ebpf.agent.pod_registry import LocalGang
from kcover_ebpf.agent.report_builder import Identity, ReportBuilder
from kcover_ebpf.api.fault_report import object_of, report_of
from kcover_ebpf.api.job_kinds import Gang
from kcover_ebpf.cluster.gang_input import GangInput, GangVerdict
from kcover_ebpf.cluster.gang_judge import merge
from kcover_ebpf.cluster.gang_snapshot import ReceivedReport
from kcover_ebpf.diagnosis.job import Job
from kcover_ebpf.diagnosis.snapshot import Finding
from kcover_ebpf.diagnosis.tracker import Tracker
from kcover_ebpf.diagnosis.verdict import Cause, EvidenceKind, VerdictKind
from kcover_ebpf.facts.host import (
    CollectiveRank,
    CollectiveSide,
    CollectivesSeen,
    Inspection,
    WaitedFile,
)
from kcover_ebpf.facts.kernel import Fact, SignalSent, SocketSample, Tick
from kcover_ebpf.facts.python_stacks import PythonFrame, PythonStack, PythonStacksSeen
from kcover_ebpf.facts.recorders import RecordersSeen
from kcover_ebpf.facts.syscalls import SyscallTable
from kcover_ebpf.ids import Inode, Pid, Tid
from kcover_ebpf.settings import Policy
from tests.unit.recorder_builders import record
from tests.unit.recorder_dumps import steps
from tests.unit.report_builders import NOW_S, SELECTOR, case, pod
from tests.unit.scripted_job import BARRIER, LOCK, NS, Proc, Stage, pipe

NODES = "ab"
"""Even ranks are on the first node, odd ones on the second."""
GANG = Gang("ns", "j", "Job", tuple(SELECTOR.items()))


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
            if judged and not isinstance(fact, Inspection):
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
                name: tuple(self._known(stage, each) for each in getattr(fact, name))
                for name in ("behind", "missing", "failed", "odd")
            }
            return replace(fact, **cast("Any", lists))
        if isinstance(fact, RecordersSeen):
            mine = (each for each in fact.records if stage.node_of(each.pid) == self.node)
            return replace(fact, records=tuple(mine))
        if isinstance(fact, PythonStacksSeen):
            stacks = (each for each in fact.stacks if stage.node_of(each.pid) == self.node)
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
        numbers = [each for each in range(64) if f"uid-{each}" in self.pods.values()]
        here = LocalGang(GANG, tuple(pod(each) for each in numbers), Policy())
        watch = SimpleNamespace(job=self.job, tracker=self.tracker)
        each = GangWatch(here, cast("Any", watch))
        each.pods = dict(self.pods)
        spool = cast("Any", SimpleNamespace(load=lambda: ()))
        drafts = ReportBuilder(
            Identity(self.node, "kcover"), cast("Any", None), spool, lambda: True
        )
        made = drafts._draft(each, self.job.now_ns / NS).report
        return ReceivedReport(report_of(object_of(made, "ns", "r")), NOW_S - late_s)


def _addressed(end: tuple[str, int]) -> tuple[str, int]:
    return f"10.0.0.{end[1] // 100 % 100}", end[1]


def on_two_nodes(stage: Recorded, late_s: float = 0.3, askers: str = "a") -> GangVerdict:
    """The verdict of the controller; both reports come so many seconds late."""
    agents = [Agent(node, {}, node in askers) for node in NODES]
    for proc in stage.procs.values():
        rank = stage.served(proc)
        (agent,) = (each for each in agents if each.node == stage.node_of(proc.pid))
        agent.pods[Pid(proc.pid)] = f"uid-{rank}"
    for agent in agents:
        agent.replay(stage)
    reported: GangInput = case(*(each.report(late_s) for each in agents), pods=stage.world)
    return merge(reported)


def on_one_host(stage: Recorded) -> Finding:
    found = stage.job.finding()
    assert found is not None
    return found


def others(stage: Recorded, odd: int, mode: str = "futex") -> None:
    for number in range(stage.world):
        if number != odd:
            stage.become(stage.rank(number), mode)


def stopped(stage: Recorded) -> None:
    stage.become(stage.rank(1), "stopped")
    stage.stop_signal(stage.rank(1))
    others(stage, 1)
    stage.run(8)


def at_a_lock(stage: Recorded) -> None:
    stage.become(stage.rank(2), "futex", stack=LOCK)
    others(stage, 2)
    stage.run(8)


def asleep(stage: Recorded) -> None:
    stage.become(stage.rank(3), "sleep_long", deadline_ns=stage.now_ns + 3600 * NS, timed=True)
    others(stage, 3)
    stage.run(8)


def in_the_driver(stage: Recorded) -> None:
    stage.become(stage.rank(3), "ioctl")
    others(stage, 3)
    stage.run(12)


def spins_alone(stage: Recorded) -> None:
    stage.become(stage.rank(3), "spin")
    others(stage, 3)
    stage.run(10)


def its_loader(stage: Recorded) -> None:
    worker = stage.add(Proc(301, ppid=101))
    stage.run(10)
    stage.become(worker, "sleep_long", timed=True, deadline_ns=stage.now_ns + 10**9 * NS)
    waited = WaitedFile(9, "pipe", "pipe:[77]", Inode(77), "", "")
    stage.become(stage.rank(1), "poll", files=(waited,))
    others(stage, 1)
    stage.run(12)


def ends_with_an_error(stage: Recorded) -> None:
    stage.exit(stage.rank(1), code=1)
    others(stage, 1)
    stage.run(6)


def is_killed(stage: Recorded) -> None:
    stage.exit(stage.rank(2), signal=9)
    others(stage, 2)
    stage.run(6)


def is_killed_by_its_launcher(stage: Recorded) -> None:
    """The others wait for it to come back, and began to one after the other."""
    stage.add(Proc(50, argv=("torchrun", "train.py"), mode="tick"))
    stage.run(5)
    victim = stage.rank(2)
    sent = SignalSent(stage.now_ns, Pid(victim.pid), Tid(victim.pid), 9, Pid(50), "torchrun")
    stage.feed(sent)
    stage.exit(victim, signal=9)
    for late, number in enumerate((0, 1, 3)):
        sent_ns = stage.now_ns + late * 100_000_000
        stage.become(stage.rank(number), "futex", last_send_ns=sent_ns)
    stage.run(60)


def leaves_early(stage: Recorded) -> None:
    stage.exit(stage.rank(1))
    others(stage, 1)
    stage.run(10)


def mismatch_by_stack(stage: Recorded) -> None:
    stage.become(stage.rank(3), "futex", stack=BARRIER)
    others(stage, 3)
    stage.run(8)


def all_wait(stage: Recorded) -> None:
    others(stage, -1, "yield")
    stage.run(25)


def link_lost(stage: Recorded) -> None:
    others(stage, -1)
    stage.rank(1).backoff = 6
    stage.run(10)


def writes(stage: Recorded) -> None:
    stage.become(stage.rank(0), "write", io_bytes_s=50_000_000)
    others(stage, 0)
    stage.run(20)


def computes(stage: Recorded) -> None:
    stage.become(stage.rank(0), "run")
    others(stage, 0)
    stage.run(20)


def computes_for_long(stage: Recorded) -> None:
    """A Python loop, or an evaluation."""
    stage.become(stage.rank(0), "run")
    others(stage, 0)
    stage.run(100)


def awaits_its_child(stage: Recorded) -> None:
    """A program that it started never ends; its peers ask for their collective every few milliseconds."""
    child = stage.add(Proc(301, ppid=101, argv=("fetch", "data")))
    stage.run(5)
    stage.become(child, "sleep_long", timed=True, deadline_ns=stage.now_ns + 10**9 * NS)
    for number in (0, 2, 3):
        stage.become(stage.rank(number), "nap", naps_per_s=300)
    for _ in range(8):
        waited = pipe(stage, child, 1, 88)
        stage.become(stage.rank(1), "read", files=(replace(waited, fd=9),), stack=LOCK)
        stage.run(1)


def its_spawned_loader_is_stopped(stage: Recorded) -> None:
    argv = (
        "python3",
        "-c",
        "from multiprocessing.spawn import spawn_main; spawn_main(pipe_handle=7)",
    )
    worker = stage.add(Proc(303, ppid=103, argv=(*argv, "--multiprocessing-fork")))
    stage.run(10)
    stage.become(worker, "stopped")
    stage.stop_signal(worker)
    others(stage, 3)
    for _ in range(8):
        waited = pipe(stage, worker, 7, 900)
        stage.become(stage.rank(3), "poll", files=(replace(waited, fd=9),), stack=LOCK)
        stage.run(1)


def its_reader_is_stuck(stage: Recorded) -> None:
    """A thread of it reads no more, while the first one waits on a queue as in every step."""
    others(stage, -1)
    stage.run(0.2)
    stage.rank(2).unread = 8192
    stage.run(8)


def trains(stage: Recorded) -> None:
    stage.run(5)


def by_nccl(number: int, **more: object) -> CollectiveRank:
    rank = CollectiveRank(number, 4, f"10.0.0.{number}", Pid(100 + number), 6, 7, comm="0x1")
    rank = replace(rank, pid_inside=100 + number)
    return replace(rank, **more)  # type: ignore[arg-type]


def ras(mode: str = "spin", **said: object) -> Callable[[Recorded], None]:
    def act(stage: Recorded) -> None:
        others(stage, -1, mode)
        stage.run(3)
        stage.ask(15, **said)

    return act


def behind_at_a_lock(stage: Recorded) -> None:
    stage.become(stage.rank(1), "futex", stack=LOCK)
    others(stage, 1, "run")
    stage.run(3)
    stage.ask(10, behind=(by_nccl(1),), equal=False)


ODD_OF_TWO = by_nccl(0, size=2, pid=Pid(103), pid_inside=103, host="10.0.0.3")


def behind_in_a_subgroup(stage: Recorded) -> None:
    """Number 0 of two there, rank 3 of the job: only its own node knows which process that is."""
    stage.become(stage.rank(3), "futex", stack=LOCK)
    others(stage, 3, "run")
    stage.run(3)
    stage.ask(10, behind=(ODD_OF_TWO,), equal=False)


def behind_and_elsewhere(stage: Recorded) -> None:
    stage.become(stage.rank(0), "poll")
    others(stage, 0, "run")
    stage.run(3)
    stage.ask(20, behind=(by_nccl(0),), equal=False)


SIDES = (
    CollectiveSide("AllGather 50, AllReduce 101", 3, (0, 1, 2)),
    CollectiveSide("AllGather 51, AllReduce 100", 1, (3,)),
)
FAILED = by_nccl(2, trouble="system error")

STORIES: dict[str, tuple[Callable[[Recorded], None], VerdictKind, Cause, int | None]] = {
    "a rank is stopped": (stopped, VerdictKind.HUNG, Cause.STOPPED, 1),
    "a rank waits for a lock": (at_a_lock, VerdictKind.HUNG, Cause.BLOCKED_LOCK, 2),
    "a rank sleeps": (asleep, VerdictKind.HUNG, Cause.BLOCKED_SLEEP, 3),
    "a rank is in its driver": (in_the_driver, VerdictKind.HUNG, Cause.DRIVER_STUCK, 3),
    "a rank spins": (spins_alone, VerdictKind.HUNG, Cause.SPINNING, 3),
    "a loader sleeps": (its_loader, VerdictKind.HUNG, Cause.LOADER_STUCK, 1),
    "a rank ends with an error": (ends_with_an_error, VerdictKind.CRASHED, Cause.EXITED, 1),
    "a rank is killed": (is_killed, VerdictKind.CRASHED, Cause.KILLED, 2),
    "a rank is killed by its launcher": (
        is_killed_by_its_launcher,
        VerdictKind.HUNG,
        Cause.KILLED,
        2,
    ),
    "a rank leaves early": (leaves_early, VerdictKind.HUNG, Cause.LEFT_EARLY, 1),
    "a rank is in another collective": (
        mismatch_by_stack,
        VerdictKind.DEADLOCK,
        Cause.COLLECTIVE_MISMATCH,
        3,
    ),
    "all wait": (all_wait, VerdictKind.HUNG, Cause.WAIT_CYCLE, None),
    "a link is lost": (link_lost, VerdictKind.LOST_LINK, Cause.LINK, 1),
    "a rank writes": (writes, VerdictKind.WORKING, Cause.CHECKPOINT, None),
    "a rank computes": (computes, VerdictKind.WORKING, Cause.COMPUTING, None),
    "a rank computes for long": (
        computes_for_long,
        VerdictKind.UNKNOWN,
        Cause.COMPUTING,
        0,
    ),
    "a rank waits for its child": (
        awaits_its_child,
        VerdictKind.HUNG,
        Cause.LOADER_STUCK,
        1,
    ),
    "a spawned loader is stopped": (
        its_spawned_loader_is_stopped,
        VerdictKind.HUNG,
        Cause.LOADER_STUCK,
        3,
    ),
    "a thread that should read does not": (
        its_reader_is_stuck,
        VerdictKind.HUNG,
        Cause.BLOCKED_READ,
        2,
    ),
    "all train": (trains, VerdictKind.WORKING, Cause.TRAINING, None),
    "NCCL: one is behind": (
        ras(behind=(by_nccl(2),), equal=False),
        VerdictKind.HUNG,
        Cause.NOT_IN_COLLECTIVE,
        2,
    ),
    "NCCL: one is behind, at a lock": (
        behind_at_a_lock,
        VerdictKind.HUNG,
        Cause.NOT_IN_COLLECTIVE,
        1,
    ),
    "NCCL: one is behind in a communicator of two": (
        behind_in_a_subgroup,
        VerdictKind.HUNG,
        Cause.NOT_IN_COLLECTIVE,
        3,
    ),
    "NCCL: one is behind and may come": (
        behind_and_elsewhere,
        VerdictKind.WORKING,
        Cause.COMPUTING,
        None,
    ),
    "NCCL: two are behind": (
        ras(behind=(by_nccl(1), by_nccl(2)), equal=False),
        VerdictKind.HUNG,
        Cause.NOT_IN_COLLECTIVE,
        None,
    ),
    "NCCL: one does not answer": (
        ras(missing=(by_nccl(3),)),
        VerdictKind.HUNG,
        Cause.NOT_IN_COLLECTIVE,
        3,
    ),
    "NCCL: one called another operation": (
        ras("run", odd=(by_nccl(3),), sides=SIDES, equal=False),
        VerdictKind.DEADLOCK,
        Cause.COLLECTIVE_MISMATCH,
        3,
    ),
    "NCCL: a communicator failed": (
        ras("run", failed=(FAILED,)),
        VerdictKind.HUNG,
        Cause.COLLECTIVE_FAILED,
        2,
    ),
    "NCCL: all have joined": (ras("yield"), VerdictKind.HUNG, Cause.COLLECTIVE_STUCK, None),
}


@pytest.mark.parametrize(("act", "kind", "cause", "rank"), STORIES.values(), ids=STORIES)
def test_two_nodes_say_what_one_host_says(
    act: Callable[[Recorded], None], kind: VerdictKind, cause: Cause, rank: int | None
) -> None:
    stage = recorded()
    act(stage)
    alone, merged = on_one_host(stage), on_two_nodes(stage)
    together = merged.verdict
    assert (alone.kind, alone.cause, alone.rank) == (kind, cause, rank)
    culprit = merged.culprit.rank if merged.culprit is not None else None
    assert (together.kind, together.cause, culprit) == (kind, cause, rank)
    if rank is not None:
        assert merged.culprit is not None
        assert (merged.culprit.pod, merged.culprit.node) == (f"j-{rank}", NODES[rank % 2])


ASKED = {name: story for name, story in STORIES.items() if name.startswith("NCCL")}


@pytest.mark.parametrize("askers", ["b", "ab"], ids=["the other node asks", "both ask"])
@pytest.mark.parametrize(("act", "kind", "cause", "rank"), ASKED.values(), ids=ASKED)
def test_it_does_not_matter_which_node_asks(
    act: Callable[[Recorded], None],
    kind: VerdictKind,
    cause: Cause,
    rank: int | None,
    askers: str,
) -> None:
    stage = recorded()
    act(stage)
    merged = on_two_nodes(stage, askers=askers)
    culprit = merged.culprit.rank if merged.culprit is not None else None
    assert (merged.verdict.kind, merged.verdict.cause, culprit) == (kind, cause, rank)


def test_who_sent_the_stop_signal_is_known_to_all() -> None:
    stage = recorded()
    stopped(stage)
    said = [each.text for each in on_two_nodes(stage).evidence if each.kind is EvidenceKind.EVENT]
    assert said == ["signal 19 was sent by kill (9)"]
    assert said == [
        each.text for each in on_one_host(stage).evidence if each.kind is EvidenceKind.EVENT
    ]


def test_counts_say_the_same_over_nodes() -> None:
    stage = recorded()
    behind_in_a_subgroup(stage)
    words = [
        each.text for each in on_one_host(stage).evidence if each.kind is EvidenceKind.COLLECTIVE
    ]
    merged = on_two_nodes(stage).evidence
    assert words == [each.text for each in merged if each.kind is EvidenceKind.COLLECTIVE]
    assert words


def recorded_as(stage: Recorded, odd: int, ends: str | None) -> None:
    """All ranks spin, and the recorder of one holds another end than the others'."""
    others(stage, -1, "spin")
    stage.run(15)
    waits = steps(5, ends="all_reduce")
    calls = [steps(5, ends=ends) if each == odd else waits for each in range(stage.world)]
    records = tuple(record(rank, each) for rank, each in enumerate(calls))
    stage.feed(RecordersSeen(stage.now_ns, records))
    stage.run(20)


@pytest.mark.parametrize(
    ("ends", "cause"),
    [(None, Cause.NOT_IN_COLLECTIVE), ("all_gather", Cause.COLLECTIVE_MISMATCH)],
    ids=["behind", "mismatch"],
)
def test_recordings_say_the_same_over_nodes(ends: str | None, cause: Cause) -> None:
    """Each node has two of the four ranks: of a mismatch it sees a tie."""
    stage = recorded()
    recorded_as(stage, 2, ends)
    one, merged = on_one_host(stage), on_two_nodes(stage)
    assert (one.cause, one.rank) == (cause, 2)
    assert merged.verdict.cause is cause
    assert merged.culprit is not None
    assert (merged.culprit.rank, merged.culprit.node) == (2, "a")
    words = [each.text for each in one.evidence if each.kind is EvidenceKind.COLLECTIVE]
    assert words == [each.text for each in merged.evidence if each.kind is EvidenceKind.COLLECTIVE]
    assert any("/jobs/train.py:40 (step)" in each for each in words)


USUAL = (
    PythonFrame("all_reduce", "torch/distributed/c10d.py", 2806, library=True),
    PythonFrame("step", "train.py", 40),
)
APART = (PythonFrame("save", "train.py", 71), PythonFrame("step", "train.py", 44))


def stacks_read(stage: Recorded, odd: int, skipped: int | None = None) -> None:
    """The Python stacks of all ranks but one are read; rank `odd` is elsewhere."""
    stacks = tuple(
        PythonStack(Pid(100 + rank), APART if rank == odd else USUAL)
        for rank in range(stage.world)
        if rank != skipped
    )
    stage.feed(PythonStacksSeen(stage.now_ns, stacks))
    stage.run(1)


@pytest.mark.parametrize(
    ("act", "odd", "begins"),
    [
        (
            stopped,
            1,
            "rank 1 is at save (train.py:71); the 3 other ranks are at step (train.py:40), in ",
        ),
        (
            all_wait,
            2,
            "the odd one out, not necessarily the culprit: rank 2 is at save (train.py:71)",
        ),
        (computes_for_long, 0, "rank 0 is at save (train.py:71); the 3 other ranks"),
    ],
    ids=["of the culprit", "where no rank is named", "of what may be an evaluation"],
)
def test_the_odd_stack_is_the_same_over_nodes(
    act: Callable[[Recorded], None], odd: int, begins: str
) -> None:
    """Each node has two of the four ranks, of which neither is odd."""
    stage = recorded()
    act(stage)
    before, merged_before = on_one_host(stage), on_two_nodes(stage)
    stacks_read(stage, odd)
    one, merged = on_one_host(stage), on_two_nodes(stage)
    (text,) = (each.text for each in one.evidence if each.kind is EvidenceKind.OUTLIER)
    assert text.startswith(begins)
    assert [text] == [each.text for each in merged.evidence if each.kind is EvidenceKind.OUTLIER]
    # it explains, and changes nothing else
    assert (one.kind, one.cause, one.rank) == (before.kind, before.cause, before.rank)
    verdict, earlier = merged.verdict, merged_before.verdict
    assert (verdict.kind, verdict.cause) == (earlier.kind, earlier.cause)
    assert merged.culprit == merged_before.culprit


def test_no_rank_is_odd_while_the_stack_of_one_is_not_known() -> None:
    stage = recorded()
    stopped(stage)
    stacks_read(stage, 1, skipped=2)
    merged = on_two_nodes(stage)
    assert merged.verdict.cause is Cause.STOPPED
    assert EvidenceKind.OUTLIER not in {each.kind for each in merged.evidence}


def test_a_node_whose_nccl_gives_no_answer_does_not_hide_what_the_other_reported() -> None:
    stage = recorded()
    behind_at_a_lock(stage)
    agents = [
        Agent(node, {Pid(100 + each): f"uid-{each}" for each in (at, at + 2)})
        for at, node in enumerate(NODES)
    ]
    for agent in agents:
        agent.replay(stage)
    trouble = CollectivesSeen(stage.now_ns, stage.now_ns, trouble="timed out")
    agents[0].job.observe(trouble)
    merged = merge(case(*(each.report(0.3) for each in agents)))
    assert merged.verdict.cause is Cause.NOT_IN_COLLECTIVE
    assert merged.verdict.unobserved == ()
    agents[1].job.observe(trouble)
    merged = merge(case(*(each.report(0.3) for each in agents)))
    assert merged.verdict.cause is not Cause.NOT_IN_COLLECTIVE
    assert [each for each in merged.verdict.unobserved if "timed out" in each]


MODES = st.sampled_from(
    ["futex", "yield", "run", "spin", "sleep_long", "stopped", "poll", "frozen"]
)
SAID = st.sampled_from([None, "behind", "missing", "failed", "equal"])


@settings(max_examples=20, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(
    st.lists(st.tuples(MODES, st.booleans()), min_size=4, max_size=4),
    st.integers(0, 3),
    SAID,
    st.integers(4, 25),
)
@example(
    # two came into their states at once: whichever is taken, it is the same one
    [("poll", False), ("run", False), ("sleep_long", False), ("yield", False)],
    3,
    "behind",
    19,
)
def test_whatever_the_ranks_do_two_nodes_do_not_contradict_one_host(
    modes: list[tuple[str, bool]], number: int, said: str | None, seconds: int
) -> None:
    """Where one host goes by the order of two moments, two nodes may name nobody."""
    stage = recorded()
    for rank, (mode, is_odd) in enumerate(modes):
        stage.become(stage.rank(rank), mode, **({"stack": LOCK} if is_odd else {}))
        stage.one_pass(NS)
    if said is None:
        stage.run(seconds)
    else:
        word = {} if said == "equal" else {said: (by_nccl(number, trouble="system error"),)}
        stage.ask(seconds, **word)
    alone, merged = on_one_host(stage), on_two_nodes(stage, late_s=0.0)
    together = merged.verdict
    assert (together.kind, together.cause) == (alone.kind, alone.cause)
    if merged.culprit is not None:
        assert merged.culprit.rank == alone.rank
