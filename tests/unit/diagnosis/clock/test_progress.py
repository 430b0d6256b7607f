"""When start-up is over, and what is learned from then on."""

import pytest

from kcover_ebpf.diagnosis.clock.progress import JobProgress
from kcover_ebpf.diagnosis.clock.stragglers import Place
from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.facts.kernel import NO_SYSCALL
from kcover_ebpf.facts.syscalls import SyscallTable
from kcover_ebpf.ids import NS, Pid, Tid
from kcover_ebpf.settings import Policy
from tests.unit.support.scripted_job import all_wait, trained
from tests.unit.support.thread_samples import POLL, YIELD, burning


def start() -> tuple[JobProgress, dict[Pid, ProcessHistory]]:
    pace = JobProgress(Policy(), SyscallTable("x86_64"))
    ranks = {Pid(pid): ProcessHistory(Pid(pid), 0) for pid in (1, 2)}
    for view in ranks.values():
        pace.join(view)
    return pace, ranks


def move(progress: JobProgress, ranks: dict[Pid, ProcessHistory], *seconds: float) -> None:
    for second in seconds:
        for pid in ranks:
            progress.progress(pid, int(second * NS))
        progress.watch_training(ranks, len(ranks), 0)


def talk(ranks: dict[Pid, ProcessHistory], second: float) -> None:
    for view in ranks.values():
        view.peer_bytes_ns = int(second * NS)


def test_job_progress__gaps_of_the_start_are_forgotten_once_the_ranks_talk() -> None:
    pace, ranks = start()
    move(pace, ranks, *range(1, 12), 30)
    assert pace.trained
    assert pace.longest_s > 10
    talk(ranks, 31)
    move(pace, ranks, 31)
    assert pace.longest_s == 0
    move(pace, ranks, 32, 33, 45)
    assert pace.longest_s == 12


def test_job_progress__a_job_whose_ranks_never_talk_trains_by_its_moves() -> None:
    pace, ranks = start()
    move(pace, ranks, *range(1, 8))
    assert not pace.trained
    move(pace, ranks, 8, 9, 10)
    assert pace.trained


def test_job_progress__nothing_is_reported_before_all_ranks_have_come() -> None:
    pace, ranks = start()
    talk(ranks, 1)
    pace.watch_training(ranks, 3, 0)
    assert not pace.trained


def test_job_progress__a_rank_that_asks_again_and_again_waits_and_one_that_computes_does_not() -> (
    None
):
    pace, ranks = start()
    view = ranks[Pid(1)]
    assert not pace.waits(view)
    for calls, waits in (([YIELD], True), ([POLL], True), ([NO_SYSCALL], False)):
        view.threads[Tid(1)] = burning(16, calls, 16)
        assert pace.waits(view) is waits


def test_job_progress__a_restarted_job_has_the_thresholds_of_the_last_incarnation() -> None:
    first, ranks = start()
    move(first, ranks, *range(1, 12), 30)
    talk(ranks, 31)
    move(first, ranks, *range(31, 120, 4))
    first.remember()
    assert (first.memory.start_s, first.memory.step_s) == (19, 4)
    again, ranks = start()
    again.memory = first.memory
    for pid, view in ranks.items():
        again.leave(pid)
        again.join(view)
    assert again.threshold_s(Pid(1)) == 1.5 * 19
    talk(ranks, 1)
    move(again, ranks, 1)
    assert not again.learned(ranks)
    assert again.threshold_s(Pid(1)) == 1.5 * 4


def test_job_progress__a_job_without_a_memory_has_the_ordinary_thresholds() -> None:
    pace, ranks = start()
    assert pace.threshold_s(Pid(1)) == 8
    talk(ranks, 1)
    move(pace, ranks, 1)
    assert pace.threshold_s(Pid(1)) == 8
    assert pace.memory.step_s == 0


def test_job_progress__a_job_is_slowed_by_what_it_moved_in_the_last_hour() -> None:
    pace, ranks = start()
    talk(ranks, 1)
    move(pace, ranks, 1)
    for minute in range(30):
        for _ in range(60):
            pace.note_payload(1000 - 20 * minute, NS)
    for _ in range(120):
        pace.note_payload(400, NS)
    assert pace.slowed
    for _ in range(60):
        pace.note_payload(800, NS)
    assert not pace.slowed


@pytest.mark.parametrize(
    ("mode", "place"),
    [
        ("run", Place.COMPUTES),
        ("write", Place.STORES),
        ("sleep", Place.SLEEPS),
        ("ioctl", Place.ON_DEVICE),
        ("read", Place.READS),
    ],
)
def test_job_progress__what_a_rank_does_while_the_others_wait_is_seen(
    mode: str, place: Place
) -> None:
    stage = trained(seconds=60)
    stage.become(stage.rank(2), mode)
    all_wait(stage, 2)
    stage.one_pass(NS)
    (*_, last_pass) = stage.job.pace.passes
    assert (last_pass.last, last_pass.found[Pid(102)]) == (102, place)
    assert 0 < last_pass.waited_s <= 1.5


def test_job_progress__a_rank_that_waits_on_a_cpu_waits_since_it_did_something_else() -> None:
    stage = trained(seconds=60)
    for rank in (0, 1, 3):
        stage.become(stage.rank(rank), "yield")
    stage.become(stage.rank(2), "run")
    for _ in range(2):
        stage.one_pass(NS)
    waits_s = [
        where
        for one_pass in stage.job.pace.passes
        for where in one_pass.found.values()
        if not isinstance(where, Place)
    ]
    assert waits_s
    assert max(waits_s) <= 4
