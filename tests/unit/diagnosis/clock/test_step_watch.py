"""How a host watches the steps of its ranks, and how soon it names a slow one."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from kcover_ebpf.diagnosis.clock.pass_slots import next_pause_s
from kcover_ebpf.diagnosis.clock.step_watch import StepWatch
from kcover_ebpf.diagnosis.clock.stragglers import Place
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.tunables.stragglers import (
    COMPARED_PERIOD_MOST_S,
    COMPARED_PERIOD_S,
    COMPARED_S,
    FASTER,
)

WORKS = Place.COMPUTES


def lag(watch: StepWatch, begin_s: int, seconds: int, every: int = 3) -> int:
    """Rank 1 never waits, the others do in some passes, once a second; passes in which they were compared."""
    compared = 0
    for second in range(begin_s, begin_s + seconds):
        where: float | Place = 0.2 if second % every == 0 else WORKS
        watch.observe({Pid(1): WORKS, Pid(2): where, Pid(3): where}, second * NS)
        compared += watch.compares(second * NS)
    return compared


def test_step_watch__ranks_of_which_one_may_lag_are_compared_for_a_while_and_rarely() -> None:
    watch = StepWatch()
    assert lag(watch, 0, 3) == 0, "too few steps"
    assert lag(watch, 3, 100) == COMPARED_S
    assert lag(watch, 103, 300) == 0, "it is no slower than before"
    assert lag(watch, 403, 60, every=2) == COMPARED_S
    assert lag(watch, 463, 60, every=1) == 0, "not so soon again"
    assert COMPARED_S <= COMPARED_PERIOD_S / 4


def test_step_watch__after_a_calm_time_ranks_are_compared_as_soon_as_at_first() -> None:
    watch = StepWatch()
    assert lag(watch, 0, 60) == COMPARED_S
    assert lag(watch, 60, 340, every=1000) == 0
    assert lag(watch, 400, 60) == COMPARED_S
    assert lag(watch, 460, 62, every=1000) == 0
    assert lag(watch, 522, 60, every=2) == COMPARED_S


def test_step_watch__ranks_that_wait_alike_are_not_compared() -> None:
    watch = StepWatch()
    for second in range(200):
        where: float | Place = 0.2 if second % 3 == 0 else WORKS
        watch.observe({Pid(pid): where for pid in range(4)}, second * NS)
        assert not watch.compares(second * NS)


@pytest.mark.parametrize("elsewhere", [True, False])
def test_step_watch__ranks_that_begin_to_wait_alike_are_compared_if_others_are_elsewhere(
    *, elsewhere: bool
) -> None:
    watch, compared = StepWatch(), list[bool]()
    for second in range(120):
        where: float | Place = 0.2 if second >= 80 and second % 3 == 0 else WORKS
        watch.observe({Pid(1): where, Pid(2): where}, second * NS, elsewhere=elsewhere)
        compared.append(watch.compares(second * NS))
    assert not any(compared[:80])
    assert any(compared[80:]) is elsewhere


def test_straggler__a_rank_that_never_waits_here_may_keep_none_elsewhere_waiting() -> None:
    # as a parameter server with one of its workers on this host
    watch = StepWatch()
    for second in range(300):
        where: float | Place = 0.2 if second >= 200 else WORKS
        watch.observe({Pid(1): WORKS, Pid(2): where}, second * NS, elsewhere=True)
    assert watch.straggler() is None
    watch.observe({Pid(1): WORKS, Pid(2): 0.2}, 300 * NS)
    assert watch.straggler() is not None


def test_straggler__what_was_seen_of_a_rank_that_left_is_forgotten() -> None:
    watch = StepWatch()
    lag(watch, 0, 200)
    assert watch.straggler() is not None
    watch.observe({Pid(2): 0.2, Pid(3): 0.2}, 200 * NS)
    assert watch.straggler() is None
    assert len(watch.passes) == 1


def test_straggler__a_rank_that_was_named_stays_slow_until_the_others_do_not_wait_for_it() -> None:
    watch, named_at = StepWatch(), list[int]()
    for second in range(900):
        late = 200 <= second < 600 and second % 13 >= 10
        where: float | Place = second % 13 - 9.5 if late else WORKS
        watch.observe({Pid(pid): WORKS if pid == 1 else where for pid in range(4)}, second * NS)
        if watch.straggler() is not None:
            named_at.append(second)
    assert named_at == list(range(named_at[0], named_at[-1] + 1)), "without a gap"
    assert 200 < named_at[0] < 300
    assert 600 <= named_at[-1] < 800


def test_others_wait__by_the_last_few_passes_of_all_others_together() -> None:
    watch = StepWatch()
    for second in range(16):
        assert not watch.others_wait(Pid(1))
        watch.observe({Pid(1): WORKS, Pid(2): 0.2, Pid(3): WORKS}, second * NS)
    assert watch.others_wait(Pid(1))
    assert not watch.others_wait(Pid(2))


# ---- simulated


class Job:
    """Ranks that compute, and exchange what they computed once all are done. Lengths of a step differ at random."""

    def __init__(self, world: int, step_s: float, dice: random.Random) -> None:
        self.step_s, self.dice = step_s, dice
        self.differ: Callable[[], float] = lambda: dice.gauss(1.0, 0.04)
        self.factor = 1.0
        self.end_s, self.ready_s = 0.0, [0.0] * world

    def found(self, now_s: float) -> dict[Pid, float | Place]:
        while now_s >= self.end_s:
            lengths_s = [self.step_s * self.differ() for _ in self.ready_s]
            lengths_s[0] *= self.factor
            self.ready_s = [self.end_s + length_s for length_s in lengths_s]
            self.end_s = max(self.ready_s) + 0.03 * self.step_s
        return {
            Pid(rank): now_s - at_s if now_s >= at_s else WORKS
            for rank, at_s in enumerate(self.ready_s)
        }


def named(job: Job, watch: StepWatch, begin_s: float, seconds: float) -> tuple[float, int] | None:
    """After how many seconds a rank was named, and which."""
    now_s = begin_s
    while now_s < begin_s + seconds:
        now_ns = round(now_s * NS)
        watch.observe(job.found(now_s), now_ns)
        if (slow := watch.straggler()) is not None:
            return now_s - begin_s, int(slow.rank)
        now_s += next_pause_s(now_s, 1 / FASTER if watch.compares(now_ns) else 1.0)
    return None


@pytest.mark.parametrize("world", [2, 4, 8])
def test_step_watch__a_rank_that_is_1_3_times_slower_is_named_within_half_a_minute(
    world: int,
) -> None:
    dice, found, early = random.Random(world), list[tuple[float, int]](), 0
    for step_s in (0.2, 0.5, 1.0, 2.0, 5.0):
        for _ in range(20):
            job, watch, begin_s = Job(world, step_s, dice), StepWatch(), dice.uniform(0, 1000)
            job.end_s = begin_s
            early += named(job, watch, begin_s, 250.0) is not None
            job.factor = 1.3
            found.append(named(job, watch, begin_s + 250.0, 150.0) or (150.0, 0))
    in_time = sum(time_s < 30.0 for time_s, _ in found)
    print(f"{world} ranks: {in_time} of {len(found)} within 30 s, {early} while healthy")
    assert in_time >= 0.9 * len(found)
    assert {rank for _, rank in found} == {0}
    assert early <= 1


def test_step_watch__what_comes_again_and_again_in_vain_is_compared_ever_more_rarely() -> None:
    job, watch, now_s = Job(2, 0.2, random.Random(2)), StepWatch(), 0.0
    job.differ = lambda: job.dice.uniform(0.7, 1.3)
    begun_at, compared = list[float](), False
    while now_s < 7200.0:
        watch.observe(job.found(now_s), round(now_s * NS))
        if watch.compares(round(now_s * NS)) and not compared:
            begun_at.append(now_s)
        compared = watch.compares(round(now_s * NS))
        assert watch.straggler() is None
        now_s += next_pause_s(now_s, 1 / FASTER if compared else 1.0)
    periods = [later_s - begun_s for begun_s, later_s in pairwise(begun_at)]
    rests = [COMPARED_PERIOD_S * 2**doubled for doubled in range(3)]
    rests += [COMPARED_PERIOD_MOST_S] * (len(periods) - len(rests))
    assert len(periods) >= 6
    for period_s, rest_s in zip(periods, rests, strict=True):
        assert rest_s <= period_s < 2 * rest_s, "as soon as it may be, or a little later"


@pytest.mark.parametrize("world", [2, 8])
@pytest.mark.parametrize("spread", [0.04, 0.3])
def test_step_watch__in_a_healthy_job_none_is_named(world: int, spread: float) -> None:
    dice = random.Random(1)
    for step_s in (0.2, 2.0):
        job = Job(world, step_s, dice)
        job.differ = lambda: dice.uniform(1 - spread, 1 + spread)
        assert named(job, StepWatch(), 0.0, 3600.0) is None
