"""Clocks and phases of a whole job: what is learned, what is forgotten, when nothing is judged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.diagnosis.decisions import decide
from kcover_ebpf.diagnosis.judge.judge import judge
from kcover_ebpf.diagnosis.wait_table import unobserved
from kcover_ebpf.facts.host import Unreadable
from kcover_ebpf.facts.kernel import ProcessFork, ProcessTotals
from kcover_ebpf.gang.rank_report import verdict_of
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.model.verdict import Cause, Culprit, VerdictKind
from kcover_ebpf.output.formatting import verdict_object
from kcover_ebpf.settings import Act, Policy
from tests.unit.support.scripted_job import LOCK, Proc, Stage, all_wait, trained
from tests.unit.support.seen_verdicts import not_working


def every(stage: Stage, mode: str) -> None:
    for proc in stage.procs.values():
        stage.become(proc, mode)


def long_steps(stage: Stage, step_s: float, count: int) -> None:
    for _ in range(count):
        every(stage, "train")
        stage.run(1)
        every(stage, "futex")
        stage.run(step_s)


def test_job__gaps_of_the_start_are_not_used_for_the_training() -> None:
    stage = Stage(connected=False)
    long_steps(stage, 20, 3)
    assert stage.job.pace.threshold_s(Pid(100)) > 20
    stage.connected = True
    every(stage, "train")
    stage.run(20)
    assert stage.job.pace.trained
    assert stage.job.pace.threshold_s(Pid(100)) < 3


def test_job__one_that_slows_down_little_by_little_is_slow() -> None:
    stage = trained(seconds=1200)
    gap_s = 1.0
    while gap_s < 500:
        long_steps(stage, gap_s, 1)
        gap_s *= 1.4
    (verdict,) = not_working(stage)
    assert (verdict.kind, verdict.cause, verdict.culprit) == (
        VerdictKind.SLOW,
        Cause.SLOW_JOB,
        None,
    )
    assert "than in the median minute" in verdict.evidence[0].text
    every(stage, "train")
    stage.run(600)
    assert stage.verdicts[-1].kind is VerdictKind.WORKING


def test_job__a_stall_is_longer_than_the_long_steps_of_the_job() -> None:
    stage = Stage()
    long_steps(stage, 10, 8)
    assert not_working(stage) == []
    every(stage, "train")
    stage.run(1)
    stage.become(stage.rank(1), "futex", stack=LOCK)
    all_wait(stage, 1)
    stage.run(13)
    assert not_working(stage) == []
    stage.run(8)
    assert [verdict.cause for verdict in not_working(stage)] == [Cause.BLOCKED_LOCK]


def stay(stage: Stage, mode: str) -> None:
    """All ranks are in `mode` again, where they have been for long."""
    for proc in stage.procs.values():
        proc.mode = mode
        proc.mode_since_ns = stage.now_ns - 1000 * NS


def longest_silence_s(stage: Stage) -> float:
    snapshot = stage.job.snapshot()
    return max(rank.age_s for rank in snapshot.ranks.values())


def test_job__a_job_stopped_and_continued_as_a_whole_starts_its_clocks_anew() -> None:
    stage = trained()
    all_wait(stage, -1)
    stage.run(1)
    every(stage, "stopped")
    stage.run(60)
    stay(stage, "futex")
    stage.run(2)
    assert longest_silence_s(stage) < 2.5
    assert not_working(stage) == []


def test_job__after_a_blind_moment_nothing_is_judged_and_clocks_start_anew() -> None:
    stage = trained()
    stay(stage, "futex")
    stage.run(1)
    stage.now_ns += 100 * NS
    stage.one_pass(NS, late=True)
    assert stage.job.finding() is None
    assert longest_silence_s(stage) == 0
    for _ in range(8):
        stage.one_pass(NS // 4)
        assert (stage.job.finding() is None) == (longest_silence_s(stage) < 2)
    assert not_working(stage) == []


@pytest.mark.parametrize("modes", [("spin", "spin"), ("spin", "spin", "spin", "spin")])
def test_job__several_spinning_ranks_wait_and_none_of_them_is_a_culprit(
    modes: tuple[str, ...],
) -> None:
    stage = trained()
    all_wait(stage, -1)
    for rank, mode in enumerate(modes):
        stage.become(stage.rank(rank), mode)
    stage.run(18)
    assert [verdict.kind for verdict in not_working(stage)] == [VerdictKind.UNKNOWN], (
        "one long step of all looks the same"
    )
    stage.run(7)
    seen = [(verdict.kind, verdict.cause, verdict.culprit) for verdict in not_working(stage)]
    assert seen[1:] == [(VerdictKind.HUNG, Cause.WAIT_CYCLE, None)]


def test_job__several_spinning_ranks_wait_for_the_one_that_is_stopped() -> None:
    stage = trained()
    every(stage, "spin")
    stage.become(stage.rank(3), "stopped")
    stage.run(10)
    assert {verdict.cause for verdict in not_working(stage)} == {Cause.STOPPED}


def test_job__one_spinning_rank_is_a_culprit() -> None:
    stage = trained()
    all_wait(stage, -1)
    stage.become(stage.rank(0), "spin")
    verdict = stage.run(15)
    assert verdict is not None
    assert verdict.culprit is not None
    assert (verdict.cause, verdict.culprit.rank) == (Cause.SPINNING, 0)


def straggling(stage: Stage, rank: int, seconds: int = 60) -> None:
    """The rank computes all the time, the others wait half of it; all make progress."""
    stage.become(stage.rank(rank), "run")
    for _ in range(seconds):
        stage.rank(rank).sent += 100_000
        stage.one_pass(NS)


@pytest.mark.parametrize(("of_others", "causes"), [(0.0, {Cause.CPU_THROTTLED}), (0.7, set())])
def test_job__a_rank_without_a_cpu_is_slow_only_where_the_others_get_one(
    of_others: float, causes: set[Cause]
) -> None:
    """`of_others`: of the time in which the other ranks wanted a CPU, the share without one."""
    stage = trained()
    stage.become(stage.rank(2), "run")
    for _ in range(60):
        stage.rank(2).sent += 100_000
        stage.rank(2).cpu_ns -= 6 * NS // 10
        stage.rank(2).delay_ns += 6 * NS // 10
        for rank in (0, 1, 3):
            stage.rank(rank).delay_ns += int(of_others / (1 - of_others) * 0.3 * NS)
        stage.one_pass(NS)
    assert {verdict.cause for verdict in not_working(stage)} == causes


def test_job__a_straggler_is_slow_and_slow_never_ends_a_job() -> None:
    stage = trained()
    straggling(stage, 2)
    (verdict,) = not_working(stage)
    assert (verdict.kind, verdict.cause) == (VerdictKind.SLOW, Cause.SLOW_RANK)
    assert verdict.culprit is not None
    assert verdict.culprit.rank == 2
    for allowed in Act:
        assert decide(verdict, allowed).act is Act.OBSERVE


def test_job__a_straggler_that_swaps_is_under_memory_pressure() -> None:
    stage = trained()
    straggling(stage, 2, 40)
    stage.verdicts.clear()
    for _ in range(30):
        totals = stage.job.members.views[Pid(102)].totals
        assert isinstance(totals, ProcessTotals)
        stage.job.members.views[Pid(102)].totals = replace(
            totals, major_faults=totals.major_faults - 500
        )
        straggling(stage, 2, 1)
    assert {verdict.cause for verdict in not_working(stage)} == {Cause.MEMORY_PRESSURE}


def test_job__between_two_ranks_a_lost_link_may_be_the_fault_of_either() -> None:
    stage = trained(world=2)
    stage.rank(1).backoff = 5
    all_wait(stage, -1)
    stage.run(8)
    (verdict,) = not_working(stage)
    assert verdict.kind is VerdictKind.LOST_LINK
    assert verdict.culprit == Culprit(0, host="host", or_rank=1)


def test_job__a_rank_whose_threads_are_not_seen_makes_the_verdict_unknown() -> None:
    stage = trained(world=2)
    del stage.procs[101]
    stage.job.members.views[Pid(101)].threads.clear()
    stage.run(10)
    (verdict,) = not_working(stage)
    assert verdict.kind is VerdictKind.UNKNOWN
    assert decide(verdict, Act.RESTART).act is Act.OBSERVE


def test_job__without_a_hard_limit_no_silence_is_a_fault_by_itself() -> None:
    stage = trained(policy=Policy(quiet_cap_s=1e9))
    stage.become(stage.rank(0), "run")
    all_wait(stage, 0)
    stage.run(900)
    assert_only_named_as_computing(stage)


def assert_only_named_as_computing(stage: Stage) -> None:
    """The rank is named, and its silence is no fault: nothing shows that it computes for ever."""
    (verdict,) = not_working(stage)
    assert (verdict.kind, verdict.cause) == (VerdictKind.UNKNOWN, Cause.COMPUTING)
    assert verdict.culprit is not None
    assert verdict.culprit.rank == 0
    assert decide(verdict, Act.RESTART).act is Act.OBSERVE


def test_job__effort_is_believed_up_to_the_cap_only() -> None:
    stage = trained(policy=Policy(quiet_cap_s=120))
    stage.become(stage.rank(0), "run")
    all_wait(stage, 0)
    stage.run(115)
    assert_only_named_as_computing(stage)
    stage.run(15)
    assert [verdict.kind for verdict in not_working(stage)] == [
        VerdictKind.UNKNOWN,
        VerdictKind.HUNG,
    ]


@pytest.mark.parametrize(("backoff", "is_lost"), [(5, False), (6, True)])
def test_judge__where_packets_are_lost_a_link_is_lost_later(backoff: int, is_lost: bool) -> None:
    stage = trained()
    stage.rank(1).backoff = backoff
    all_wait(stage, -1)
    stage.run(4)
    found = judge(replace(stage.job.snapshot(), lossy=True))
    assert (found.kind is VerdictKind.LOST_LINK) == is_lost
    assert judge(replace(stage.job.snapshot(), lossy=False)).kind is VerdictKind.LOST_LINK


@pytest.mark.parametrize(
    ("rates", "slowed"),
    [
        ([1000] * 8 + [100] * 7, False),  # not enough passes yet
        ([1000] * 8 + [599] * 8, True),
        ([1000] * 8 + [600] * 8, False),
        ([1000] * 8 + [1000] * 8, False),
        ([0] * 16, False),
        ([1000] * 300 + [100] * 3, False),  # a hiccup
    ],
)
def test_job__a_job_is_slowed_when_it_moves_much_fewer_bytes(
    rates: list[int], slowed: bool
) -> None:
    pace = trained().job.pace
    pace._payload_rates.clear()
    for rate in rates:
        pace.note_payload(rate, NS)
    assert pace.slowed == slowed


def test_job__fast_passes_between_which_nothing_moved_do_not_make_a_job_slow() -> None:
    pace = trained().job.pace
    pace._payload_rates.clear()
    for _ in range(16):
        pace.note_payload(1000, NS)
    for number in range(48):
        pace.note_payload(1000 if number % 3 == 0 else 0, NS // 3 + 1)
        assert not pace.slowed


def test_job__bytes_before_the_training_say_nothing_about_its_pace() -> None:
    pace = Stage().job.pace
    for rate in [1000] * 8 + [100] * 8:
        pace.note_payload(rate, NS)
    assert not pace.slowed


def test_unobserved__a_process_that_cannot_be_read_is_named_as_unobserved_until_it_is_read() -> (
    None
):
    stage = trained()
    rank = stage.rank(2)
    all_wait(stage, 2)
    stage.become(rank, "fault")
    stage.run(1)
    stage.feed(Unreadable(stage.now_ns, Pid(rank.pid), stage.now_ns - NS))
    assert any("the memory of pid 102" in text for text in unobserved(stage.job))
    stage.run(1)
    assert not any("the memory of" in text for text in unobserved(stage.job)), "it was read again"
    stage.feed(Unreadable(stage.now_ns, Pid(rank.pid), stage.now_ns - NS))
    stage.exit(rank, signal=9)
    assert not any("the memory of" in text for text in unobserved(stage.job))


def test_job__a_job_none_of_whose_processes_can_be_read_is_never_called_healthy() -> None:
    """A node's agent that is started anew beside a hung rank does not learn that it is one."""
    stage = Stage(world=0)
    stage.feed(ProcessFork(stage.now_ns, Pid(1), Pid(100), "x"))
    stage.run(3)
    assert stage.tracker.current is not None
    assert stage.tracker.current.kind is VerdictKind.WORKING
    stage.feed(Unreadable(stage.now_ns, Pid(100), stage.now_ns - NS))
    stage.run(3)
    assert (stage.tracker.current.kind, stage.tracker.current.cause) == (
        VerdictKind.UNKNOWN,
        Cause.UNKNOWN,
    )
    assert "pid 100" in stage.tracker.current.evidence[0].text
    stage.world = 1
    stage.add(Proc(100, rank=0))
    stage.run(8)
    assert stage.tracker.current.kind is VerdictKind.WORKING


def test_verdict_object__how_slow_a_straggler_is_reaches_the_report_and_the_json() -> None:
    stage = trained()
    straggling(stage, 2)
    (verdict,) = not_working(stage)
    assert verdict.factor is not None
    assert 1.2 < verdict.factor < 4
    assert verdict_object(verdict)["factor"] == verdict.factor
    assert verdict_of(verdict, "a", verdict.time_s, {}, {}).factor == verdict.factor
