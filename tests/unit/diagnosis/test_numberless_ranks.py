"""A job whose ranks have no numbers is judged like any other, and its culprit is named by its process."""

from __future__ import annotations

import pytest

from kcover_ebpf.diagnosis.wait_table import unobserved
from kcover_ebpf.facts.host import ProcessSeen
from kcover_ebpf.facts.kernel import SampleRequest, SocketSample
from kcover_ebpf.ids import Inode, Pid
from kcover_ebpf.model.verdict import Cause, VerdictKind
from tests.unit.support.scripted_job import LOCK, Proc, Stage

STARTER = 50
FORKED = ("python3", "train.py")


class SpawnedStage(Stage):
    """Four ranks without a number, below the program that started them."""

    def __post_init__(self) -> None:
        self.numbers: dict[int, int] = {}
        super().__post_init__()

    def add(self, proc: Proc) -> Proc:
        if not self.procs:
            self.procs[STARTER] = Proc(STARTER, mode="poll", argv=FORKED)
            self._appear(self.procs[STARTER])
        if proc.rank is not None:
            # a number for the script of the test, which the job never sees
            self.numbers[proc.pid], proc.rank, proc.ppid = proc.rank, None, STARTER
        proc.mode_since_ns = self.now_ns
        self.procs[proc.pid] = proc
        self._appear(proc)
        return proc

    def _appear(self, proc: Proc) -> None:
        self.feed(ProcessSeen(self.now_ns, Pid(proc.pid), Pid(proc.ppid), "python3", proc.argv, {}))

    def rank(self, rank: int) -> Proc:
        return next(self.procs[pid] for pid, number in self.numbers.items() if number == rank)

    def _sample(self, proc: Proc, period_ns: int, wanted_request: SampleRequest) -> None:
        super()._sample(proc, period_ns, wanted_request)
        if proc.pid in self.numbers:
            for peer in self.numbers:
                if peer != proc.pid:
                    self.feed(self._connection(proc, peer))

    def _connection(self, proc: Proc, peer: int) -> SocketSample:
        return SocketSample(
            boottime_ns=self.now_ns,
            pid=Pid(proc.pid),
            fd=10 + self.numbers[peer],
            inode=Inode(proc.pid * 1000 + peer),
            state="ESTABLISHED",
            local=("127.0.0.1", proc.pid * 100 + peer),
            remote=("127.0.0.1", peer * 100 + proc.pid),
            unread_bytes=proc.unread,
            unsent_bytes=0,
            unacked_bytes=0,
            acked_bytes=proc.sent,
            received_bytes=proc.sent,
            backoff=0,
            send_window_bytes=65536,
            last_send_ns=proc.last_send_ns,
            last_receive_ns=proc.last_send_ns,
        )


def trained() -> SpawnedStage:
    stage = SpawnedStage()
    stage.run(30)
    return stage


def test_numberless_ranks__the_ranks_are_those_that_are_connected() -> None:
    stage = trained()
    assert set(stage.job.members.ranks) == {100, 101, 102, 103}
    verdict = stage.tracker.current
    assert verdict is not None
    assert (verdict.kind, verdict.cause) == (VerdictKind.WORKING, Cause.TRAINING)


@pytest.mark.parametrize(
    ("mode", "cause"), [("stopped", Cause.STOPPED), ("futex", Cause.BLOCKED_LOCK)]
)
def test_numberless_ranks__the_culprit_is_named_by_its_process(mode: str, cause: Cause) -> None:
    stage = trained()
    for number in (0, 1, 3):
        stage.become(stage.rank(number), "poll")
    stage.become(stage.rank(2), mode, stack=LOCK)
    verdict = stage.run(8)
    assert verdict is not None
    assert (verdict.kind, verdict.cause) == (VerdictKind.HUNG, cause)
    assert verdict.culprit is not None
    assert (verdict.culprit.rank, verdict.culprit.pid) == (None, 102)


def test_numberless_ranks__a_checkpoint_of_one_rank_is_quiet() -> None:
    stage = trained()
    stage.become(stage.rank(0), "write", io_bytes_s=50_000_000)
    for number in (1, 2, 3):
        stage.become(stage.rank(number), "futex")
    stage.run(40)
    for number in range(4):
        stage.become(stage.rank(number), "train", io_bytes_s=0)
    stage.run(10)
    assert {verdict.kind for verdict in stage.verdicts} == {VerdictKind.WORKING}


def test_numberless_ranks__a_rank_that_is_killed_is_not_replaced_by_its_peers() -> None:
    stage = trained()
    stage.exit(stage.rank(1), signal=9)
    stage.run(5)
    verdict = stage.tracker.current
    assert verdict is not None
    assert (verdict.kind, verdict.cause) == (VerdictKind.CRASHED, Cause.KILLED)
    assert verdict.culprit is not None
    assert verdict.culprit.pid == 101


def test_numberless_ranks__a_rank_that_its_starter_starts_again_gets_the_job_over_it() -> None:
    stage = trained()
    stage.exit(stage.rank(1), signal=9)
    stage.run(2)
    stage.numbers.pop(101)
    stage.add(Proc(111, rank=1))
    stage.run(20)
    verdict = stage.tracker.current
    assert verdict is not None
    assert (verdict.kind, verdict.cause) == (VerdictKind.WORKING, Cause.TRAINING)


def test_unobserved__without_connections_it_is_said_that_the_ranks_are_not_known() -> None:
    stage = SpawnedStage()
    stage.numbers.clear()
    stage.run(60)
    assert set(stage.job.members.ranks) == {STARTER}
    said = [text for text in unobserved(stage.job) if "are ranks" in text]
    assert len(said) == 1
    assert said[0].startswith("whether 4 processes are ranks (pid 100, 101, 102, 103)")
    stage.become(stage.procs[100], "futex", stack=LOCK)
    stage.run(30)
    assert VerdictKind.HUNG not in {verdict.kind for verdict in stage.verdicts}


def test_unobserved__nothing_of_that_kind_is_said_of_ranks_that_are_known() -> None:
    assert not [text for text in unobserved(trained().job) if "are ranks" in text]
