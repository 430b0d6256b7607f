"""`run` on one of several hosts: ranks that live elsewhere are not missing, and what happens here is judged."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from kcover_ebpf.diagnosis.job import Job
from kcover_ebpf.facts.host import ProcessSeen
from kcover_ebpf.facts.syscalls import SyscallTable
from kcover_ebpf.gang.rank_report import paces_of
from kcover_ebpf.ids import Pid
from kcover_ebpf.model.verdict import Cause, Certainty, EvidenceKind, VerdictKind
from kcover_ebpf.settings import Policy
from tests.unit.support.scripted_job import LOCK, Proc, Stage
from tests.unit.support.wired_stage import NOTHING

TORCHRUN = "LOCAL_WORLD_SIZE"
OPEN_MPI = "OMPI_COMM_WORLD_LOCAL_SIZE"


@dataclass
class Part(Stage):
    """The ranks of one host of two, watched by a sensor that knows of no other."""

    world: int = 8
    reports_size: bool = True
    numbers: tuple[int, ...] = (0, 1, 2, 3)
    reported: dict[str, str] = field(default_factory=dict)
    """What the launcher says beside rank and size."""
    mode: str = "train"

    def __post_init__(self) -> None:
        self.here = 0
        super().__post_init__()
        self.job = Job(self.policy, SyscallTable("x86_64"), whole=True)
        for rank in self.numbers:
            self.add(Proc(100 + rank, rank=rank, mode=self.mode))

    def add(self, proc: Proc) -> Proc:
        super().add(proc)
        environ = {"RANK": str(proc.rank)} | self.reported
        if self.reports_size:
            environ["WORLD_SIZE"] = str(self.world)
        pid, now_ns = Pid(proc.pid), self.now_ns
        seen = ProcessSeen(now_ns, pid, Pid(1), "python3", proc.argv, environ, start_ns=now_ns)
        self.job.observe(seen)
        return proc

    def causes(self) -> list[Cause]:
        return [
            verdict.cause for verdict in self.verdicts if verdict.kind is not VerdictKind.WORKING
        ]


@pytest.mark.parametrize("reported", [TORCHRUN, OPEN_MPI, None])
@pytest.mark.parametrize("healthy", ["train", "run"])
def test_several_hosts__ranks_of_other_hosts_are_not_missing(
    reported: str | None, healthy: str
) -> None:
    stage = Part(reported={} if reported is None else {reported: "4"})
    stage.run(10)
    for proc in stage.procs.values():
        stage.become(proc, healthy)
    stage.run(120)
    assert stage.causes() == []


@pytest.mark.parametrize("reported", [TORCHRUN, OPEN_MPI])
def test_several_hosts__a_rank_that_its_launcher_lacks_is_missing_soon(reported: str) -> None:
    stage = Part(reported={reported: "4"}, numbers=(0, 1, 3), mode="poll")
    stage.run(3)
    assert stage.causes() == []
    stage.run(3)
    (verdict,) = [verdict for verdict in stage.verdicts if verdict.kind is VerdictKind.HUNG]
    assert (verdict.cause, verdict.certainty) == (Cause.MISSING_RANK, Certainty.SUSPECTED)
    assert verdict.culprit is not None
    assert verdict.culprit.rank == 2


def test_several_hosts__ranks_that_come_slowly_are_awaited_as_long() -> None:
    stage = Part(reported={TORCHRUN: "4"}, numbers=(0,), mode="poll")
    for rank in (1, 3):
        stage.run(1)
        stage.add(Proc(100 + rank, rank=rank, mode="poll"))
    stage.run(9)
    assert stage.causes() == []
    stage.run(6)
    assert stage.causes() == [Cause.MISSING_RANK]


@pytest.mark.parametrize("healthy", ["train", "run"])
def test_several_hosts__a_stop_is_found_on_one_of_several_hosts(healthy: str) -> None:
    stage = Part(reported={TORCHRUN: "4"})
    stage.run(10)
    for proc in stage.procs.values():
        stage.become(proc, healthy)
    stage.run(60)
    for proc in stage.procs.values():
        stage.become(proc, "futex")
    stage.become(stage.rank(2), "stopped")
    stage.stop_signal(stage.rank(2))
    verdict = stage.run(5)
    assert verdict is not None
    assert verdict.culprit is not None
    assert (verdict.kind, verdict.cause, verdict.culprit.rank) == (
        VerdictKind.HUNG,
        Cause.STOPPED,
        2,
    )


@pytest.mark.parametrize("reported", [TORCHRUN, None])
def test_several_hosts__a_stop_is_found_before_any_training_was_seen(reported: str | None) -> None:
    stage = Part(reported={} if reported is None else {reported: "4"}, mode="futex")
    stage.run(30)
    stage.become(stage.rank(2), "stopped")
    stage.stop_signal(stage.rank(2))
    stage.run(5)
    assert stage.causes()[-1] is Cause.STOPPED


def test_several_hosts__the_training_of_a_part_is_seen_once_it_continues_for_long() -> None:
    stage = Part()
    stage.run(15)
    assert not stage.job.pace.trained
    stage.run(20)
    assert stage.job.pace.trained


def test_several_hosts__a_start_that_waits_for_a_rank_is_no_training() -> None:
    stage = Part()
    stage.run(12)
    for proc in stage.procs.values():
        stage.become(proc, "poll")
    stage.run(60)
    assert not stage.job.pace.trained
    assert stage.causes() == [Cause.MISSING_RANK]


@pytest.mark.parametrize(
    ("numbers", "missing"),
    [((4, 5, 7), 6), ((0, 1, 2), 3), ((0, 1, 2, 3), None), ((0, 2, 4, 6), None), ((0, 2, 4), None)],
)
def test_several_hosts__the_rank_that_is_missing_here_is_named(
    numbers: tuple[int, ...], missing: int | None
) -> None:
    stage = Part(
        numbers=numbers, reported={TORCHRUN: "4"}, mode="poll", policy=Policy(start_grace_s=10)
    )
    stage.connected = False
    verdict = stage.run(20)
    assert verdict is not None
    if missing is None:
        assert Cause.MISSING_RANK not in stage.causes()
    else:
        assert verdict.culprit is not None
        assert (verdict.cause, verdict.culprit.rank) == (Cause.MISSING_RANK, missing)
        assert f"rank {missing} is missing, " in verdict.evidence[0].text


def test_several_hosts__all_ranks_of_this_host_may_be_stopped_while_the_others_continue() -> None:
    stage = Part(reported={TORCHRUN: "4"})
    stage.run(30)
    for proc in stage.procs.values():
        stage.become(proc, "stopped")
    stage.run(8)
    assert stage.causes() == [Cause.STOPPED]


def test_paces_of__ranks_that_remain_after_one_has_left_are_compared_with_none() -> None:
    stage = Part(reported={TORCHRUN: "4"})
    stage.run(120)
    pods = {Pid(100 + rank): f"uid-{rank}" for rank in range(4)}
    assert {pace.rank for pace in paces_of(stage.job, pods, 0.0)} == {0, 1, 2, 3}
    stage.exit(stage.rank(3))
    stage.run(120)
    assert not stage.job.attention.suspicious
    assert paces_of(stage.job, pods, 0.0) == ()


@dataclass
class Alone(Part):
    """One rank, which exchanges data with another host."""

    numbers: tuple[int, ...] = (0,)
    remote: tuple[str, int] = ("10.0.0.2", 41_000)

    def _socket(self, proc: Proc) -> None:
        self.feed(
            replace(
                NOTHING,
                boottime_ns=self.now_ns,
                pid=Pid(proc.pid),
                local=("10.0.0.1", 29_500),
                remote=self.remote,
                unacked_bytes=4096 if proc.backoff else 0,
                acked_bytes=proc.sent,
                received_bytes=proc.sent,
                backoff=proc.backoff,
                last_send_ns=proc.last_send_ns,
                last_receive_ns=proc.last_send_ns,
            )
        )


@pytest.mark.parametrize("reports_size", [True, False])
@pytest.mark.parametrize(("port", "is_lost"), [(41_000, True), (443, False)])
def test_several_hosts__a_rank_that_is_alone_here_has_lost_its_link_to_another_host(
    reports_size: bool, port: int, is_lost: bool
) -> None:
    """Whether its peers are elsewhere is not known without the size of the job; a service is none."""
    stage = Alone(world=2, reports_size=reports_size, remote=("10.0.0.2", port))
    stage.run(40)
    assert stage.causes() == []
    stage.become(stage.rank(0), "recv", backoff=5)
    stage.run(10)
    assert (Cause.LINK in stage.causes()) == is_lost


def test_several_hosts__a_lock_is_named_among_the_ranks_of_this_host() -> None:
    stage = Part(reported={TORCHRUN: "4"})
    stage.run(30)
    for proc in stage.procs.values():
        stage.become(proc, "futex")
    stage.become(stage.rank(1), "futex", stack=LOCK)
    stage.run(6)
    assert stage.causes() == [Cause.BLOCKED_LOCK]


def test_several_hosts__while_a_rank_elsewhere_is_at_work_the_order_of_sending_here_names_no_rank() -> (
    None
):
    stage = Part(reported={TORCHRUN: "4"})
    stage.run(30)
    for late, proc in enumerate(stage.procs.values()):
        stage.become(proc, "futex", last_send_ns=stage.now_ns + late * 200_000_000)
    stage.run(60)
    kinds = {evidence.kind for verdict in stage.verdicts for evidence in verdict.evidence}
    assert EvidenceKind.EDGE not in kinds
    assert [verdict.culprit for verdict in stage.verdicts if verdict.culprit is not None] == []


def test_several_hosts__ranks_that_are_resumed_in_turn_are_no_fault() -> None:
    stage = Part(reported={TORCHRUN: "4"})
    for proc in stage.procs.values():
        stage.become(proc, "train")
    stage.run(60)
    for proc in stage.procs.values():
        stage.become(proc, "stopped")
        stage.stop_signal(proc)
        stage.run(1)
    stage.run(8)
    for proc in stage.procs.values():
        stage.become(proc, "train")
        stage.run(2)
    assert [verdict.kind for verdict in stage.verdicts if verdict.kind is VerdictKind.HUNG] == []
    stage.become(stage.rank(0), "stopped")
    stage.stop_signal(stage.rank(0))
    for proc in list(stage.procs.values())[1:]:
        stage.become(proc, "futex")
    stage.run(8)
    assert stage.causes()[-1] is Cause.STOPPED
    assert stage.verdicts[-1].kind is VerdictKind.HUNG


def test_several_hosts__ranks_of_one_of_several_hosts_that_all_wait_are_no_circle() -> None:
    stage = Part(reported={TORCHRUN: "4"})
    for proc in stage.procs.values():
        stage.become(proc, "train")
    stage.run(60)
    for proc in stage.procs.values():
        stage.become(proc, "futex")
    stage.run(40)
    kinds = {verdict.kind for verdict in stage.verdicts if verdict.cause is Cause.WAIT_CYCLE}
    assert kinds == {VerdictKind.UNKNOWN}
