"""How closely a job is watched: when suspicion begins and ends, and what is read."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from kcover_ebpf.diagnosis.clock.progress import JobProgress, Stall
from kcover_ebpf.diagnosis.clock.suspicion import Suspicion, reading_period_ns
from kcover_ebpf.facts.host import ThreadReading
from kcover_ebpf.facts.kernel import Detail, SampleRequest
from kcover_ebpf.facts.syscalls import SyscallTable
from kcover_ebpf.ids import NS, Pid, Tid
from tests.unit.support.scripted_job import (
    COLLECTIVE,
    LOCK,
    START_NS,
    Proc,
    Stage,
    all_wait,
    trained,
)

TABLE = SyscallTable("x86_64")


def reading(pid: int, at_ns: int, stack: tuple[str, ...] = COLLECTIVE) -> ThreadReading:
    return ThreadReading(at_ns, Pid(pid), Tid(pid), "", None, False, (), stack, None, ())


def last_readings(suspicion: Suspicion) -> dict[Pid, ThreadReading]:
    """Of the first thread of each process."""
    return {
        pid: last_reading
        for (pid, tid), last_reading in suspicion.last_readings().items()
        if int(tid) == int(pid)
    }


def test_suspicion__a_healthy_job_is_watched_at_leisure() -> None:
    stage = trained()
    assert (stage.job.urgent, stage.job.detailed) == (False, set())


def test_suspicion__a_silent_job_is_watched_closely_loaders_included_and_calmly_after_a_while() -> (
    None
):
    stage = trained()
    stage.add(Proc(501, ppid=101))
    stage.add(Proc(60, argv=("torchrun",)))
    stage.become(stage.rank(0), "run")
    all_wait(stage, 0)
    stage.run(10)
    assert (stage.job.urgent, stage.job.detailed) == (True, {100, 101, 102, 103, 501})
    stage.run(40)
    assert (stage.job.urgent, stage.job.detailed) == (False, {100, 101, 102, 103, 501})
    for proc in stage.procs.values():
        stage.become(proc, "train")
    stage.run(5)
    assert not stage.job.detailed


def test_suspicion__each_process_is_sampled_as_closely_as_its_job_needs() -> None:
    stage = Stage()
    assert set(stage.job.sampling().values()) == {SampleRequest(every=4)}, "it never trained"
    stage = trained(seconds=20)
    assert set(stage.job.sampling().values()) == {SampleRequest(every=2)}, "habits are learned"
    stage = trained(seconds=60)
    assert set(stage.job.sampling().values()) == {SampleRequest()}
    launcher = stage.add(Proc(60, argv=("torchrun",)))
    all_wait(stage, 0)
    stage.become(stage.rank(0), "run")
    stage.run(10)
    requests = stage.job.sampling()
    assert requests.pop(Pid(launcher.pid)) == SampleRequest()
    assert set(requests.values()) == {SampleRequest(Detail.ALL, every=1)}
    stage.run(40)
    assert stage.job.sampling()[Pid(100)] == SampleRequest(Detail.ON, every=4)
    stage.job.examine()
    assert stage.job.sampling()[Pid(100)] == SampleRequest(Detail.ALL, every=1)


def test_suspicion__while_ranks_are_compared_their_side_threads_are_sampled_as_in_calm_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = trained(seconds=60)
    monkeypatch.setattr(JobProgress, "compares", lambda progress, now_ns: True)
    assert stage.job.pace.compares(stage.now_ns)
    assert set(stage.job.sampling().values()) == {SampleRequest()}


def test_suspicion__another_lead_thread_is_named_to_the_sampler() -> None:
    stage = trained(seconds=60)
    stage.job.members.ranks[Pid(101)]._worker = Tid(5101)
    assert stage.job.sampling()[Pid(101)] == SampleRequest(lead=Tid(5101))


def test_suspicion__examine_samples_closely_for_one_pass() -> None:
    stage = trained()
    stage.job.examine()
    stage.one_pass(NS)
    assert stage.job.detailed
    stage.one_pass(NS)
    assert not stage.job.detailed


def test_suspicion__ends_once_and_forgets_the_readings() -> None:
    attention = Suspicion(TABLE)
    assert not attention.suspect(False, Stall.NONE, 0)
    assert not attention.suspect(True, Stall.NONE, NS)
    attention.on_reading(reading(1, NS))
    assert attention.readings(Pid(1), 1)
    assert attention.suspect(False, Stall.NONE, 2 * NS)
    assert not attention.suspect(False, Stall.NONE, 3 * NS)
    assert not attention.readings(Pid(1), 1)


STEP_S = 20.0


def test_suspicion__a_wait_is_known_once_its_thread_was_seen_to_leave_it() -> None:
    attention = Suspicion(TABLE)
    attention.on_reading(reading(1, 0))
    assert not attention.known.knows(COLLECTIVE)
    attention.on_progress(Pid(1), 2 * NS, NS, STEP_S)
    assert attention.known.knows(COLLECTIVE)
    attention.suspect(True, Stall.NONE, NS)
    attention.on_reading(reading(1, NS, LOCK))
    # whatever the suspicion was: data that arrives meanwhile shows nothing
    attention.on_progress(Pid(1), 3 * NS, NS, STEP_S)
    assert not attention.known.knows(LOCK)
    attention.on_progress(Pid(1), 3 * NS, 2 * NS, STEP_S)
    assert attention.known.knows(LOCK)


def test_suspicion__data_of_the_step_that_it_will_not_leave_does_not_make_a_wait_a_known_one() -> (
    None
):
    attention = Suspicion(TABLE)
    attention.on_reading(reading(1, 100 * NS, LOCK))
    attention.on_progress(Pid(1), 119 * NS, 99 * NS, STEP_S)
    assert not attention.known.knows(LOCK)


def test_suspicion__data_of_later_steps_shows_that_a_wait_ended_unseen() -> None:
    """Its thread is in the same wait at each pass, and does what little it does in between."""
    attention = Suspicion(TABLE)
    attention.on_reading(reading(1, 100 * NS))
    attention.on_progress(Pid(1), 119 * NS, 99 * NS, STEP_S)
    attention.on_progress(Pid(1), 121 * NS, 99 * NS, STEP_S)
    assert attention.known.knows(COLLECTIVE)


def test_suspicion__a_process_that_is_gone_teaches_nothing() -> None:
    attention = Suspicion(TABLE)
    attention.on_reading(reading(1, 0))
    attention.forget(Pid(1))
    attention.on_progress(Pid(1), 2 * NS, NS, STEP_S)
    assert attention.known.count == 0
    assert last_readings(attention) == {}


def test_suspicion__readings_per_thread_are_few() -> None:
    attention = Suspicion(TABLE)
    for step in range(100):
        attention.on_reading(reading(1, step))
    assert len(attention.readings(Pid(1), 1)) == 48
    assert last_readings(attention)[Pid(1)].boottime_ns == 99


def test_suspicion__a_suspicious_job_is_read_in_all_waiting_leads_but_none_that_burns() -> None:
    stage = trained()
    all_wait(stage, -1)
    stage.become(stage.rank(2), "run")
    stage.run(6)
    stage.now_ns += NS // 2
    stage.job.now_ns = stage.now_ns
    assert {want.pid for want in stage.job.wants()} == {100, 101, 103}


@pytest.mark.parametrize(
    ("age_s", "period_s"),
    [(-5, 0.2), (0, 0.2), (4, 0.2), (8, 0.8), (20, 5), (40, 20), (4000, 20)],
)
def test_reading_period_ns__readings_get_rarer_the_longer_nothing_changes(
    age_s: float, period_s: float
) -> None:
    assert reading_period_ns(int(age_s * NS)) == period_s * NS


def test_suspicion__a_thread_that_moved_is_read_again_at_once() -> None:
    stage = trained()
    all_wait(stage, -1)
    stage.run(40)
    rank = stage.rank(1)
    last = partial(last_readings, stage.job.attention)
    assert stage.now_ns - last()[Pid(rank.pid)].boottime_ns > NS
    stage.become(rank, "run")
    stage.one_pass(NS // 4)
    stage.become(rank, "futex")
    stage.one_pass(NS // 4)
    stage.one_pass(NS // 4)
    assert stage.now_ns - last()[Pid(rank.pid)].boottime_ns <= NS // 4
    assert stage.now_ns - last()[Pid(stage.rank(2).pid)].boottime_ns > NS


def test_suspicion__a_job_that_never_trained_is_soon_watched_calmly() -> None:
    attention = Suspicion(TABLE)
    attention.suspect(True, Stall.NONE, 0)
    assert attention.urgent(11 * NS, trained=False)
    assert not attention.urgent(12 * NS, trained=False)
    assert attention.urgent(29 * NS, trained=True)
    assert not attention.urgent(30 * NS, trained=True)
    attention.suspect(False, Stall.NONE, 40 * NS)
    attention.suspect(True, Stall.NONE, 41 * NS)
    assert attention.urgent(50 * NS, trained=False)


def test_suspicion__a_job_that_never_trained_and_is_only_silent_is_not_watched_fast() -> None:
    attention = Suspicion(TABLE)
    attention.suspect(True, Stall.NONE, 0, only_silent=True)
    assert not attention.urgent(NS, trained=False)
    assert attention.urgent(NS, trained=True)
    attention.suspect(True, Stall.NONE, NS)
    assert attention.urgent(2 * NS, trained=False)


def test_suspicion__a_job_that_never_trained_and_is_only_silent_is_sampled_ever_more_rarely() -> (
    None
):
    attention = Suspicion(TABLE)
    attention.suspect(True, Stall.NONE, 0, only_silent=True)
    assert [attention.ease(at_s * NS, trained=False) for at_s in (0, 6, 12, 60)] == [1, 1, 2, 3]
    assert attention.ease(60 * NS, trained=True) == 1
    attention.suspect(True, Stall.NONE, 61 * NS)
    assert attention.ease(62 * NS, trained=False) == 1, "something is wrong"


def read_in_passes(stage: Stage, count: int, period_ns: int) -> list[set[int]]:
    """Which ranks are read in each of the next passes."""
    found = []
    for _ in range(count):
        before = last_readings(stage.job.attention)
        stage.one_pass(period_ns)
        after = last_readings(stage.job.attention)
        found.append({int(pid) for pid in after if after[pid] is not before.get(pid)})
    return found


def test_suspicion__every_wait_is_read_once_and_then_a_few_at_a_time_in_their_turn() -> None:
    stage = trained(world=12)
    all_wait(stage, -1)
    ranks = {100 + rank for rank in range(12)}
    passes = read_in_passes(stage, 16, NS // 4)
    begin = next(number for number, pass_ in enumerate(passes) if len(pass_) > 2)
    assert set.union(*passes[: begin + 1]) == ranks, "first readings are never put off"
    further = passes[begin + 1 : begin + 4]
    assert [len(item) for item in further] == [4, 4, 4]
    assert set.union(*further) == ranks


@pytest.mark.parametrize("world", [2, 12, pytest.param(64, marks=pytest.mark.long)])
def test_suspicion__no_wait_in_storage_goes_without_a_reading_for_longer_than_the_proof_can_bear(
    world: int,
) -> None:
    """However many wait alike, and however long they do: a proof takes 45 s from the first reading to the last."""
    stage = trained(world=world)
    for rank in range(world):
        stage.become(stage.rank(rank), "write")
    stage.run(16)
    for _ in range(60):
        stage.one_pass(NS)
        last = last_readings(stage.job.attention)
        assert {int(pid) for pid in last} == {100 + rank for rank in range(world)}
        assert all(
            stage.now_ns - thread_reading.boottime_ns <= 10 * NS for thread_reading in last.values()
        )


def test_suspicion__a_job_that_never_trained_is_read_once_a_second() -> None:
    stage = Stage(world=3, connected=False)
    for proc in stage.procs.values():
        stage.become(proc, "futex")
    stage.run(6)
    assert stage.job.detailed
    read = Counter(pid for in_pass_ in read_in_passes(stage, 8, NS // 4) for pid in in_pass_)
    assert read == {100: 2, 101: 2, 102: 2}


def test_suspicion__healthy_waits_are_learned_a_few_at_a_time() -> None:
    stage = trained(world=4, seconds=1)
    stage.one_pass(NS)
    assert len(stage.job.wants()) <= 2
    stage.run(30)
    assert stage.job.attention.known.knows(COLLECTIVE)
    assert stage.now_ns > START_NS
