"""Who is slow, from passes that found all ranks but one waiting."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.diagnosis.clock.stragglers import Pass, Place, Straggler, latest, seen, straggler
from kcover_ebpf.tunables.stragglers import CHANCE, LATE_SHARE, LATE_STEPS

WHERE = st.one_of(st.floats(0, 10), st.sampled_from(Place))
PASSES = st.lists(st.lists(WHERE, min_size=3, max_size=3), max_size=200)


def steps(lengths: Sequence[tuple[int, int]], world: int = 4) -> list[Pass[int]]:
    """A pass a second. In each step rank 1 computes for the first number of seconds, the others for the second."""
    passes, at_s = list[Pass[int]](), 0.0
    for slow, others in lengths:
        for number in range(max(slow, others)):
            at_s += 1.0
            ready = {rank: slow if rank == 1 else others for rank in range(world)}
            found: dict[int, float | Place] = {
                rank: number - at + 0.5 if number >= at else Place.COMPUTES
                for rank, at in ready.items()
            }
            passes.append(seen(at_s, 1.0, found))
    return passes


def named(lengths: Sequence[tuple[int, int]], world: int = 4) -> Straggler[int] | None:
    passes = steps(lengths, world)
    return straggler(passes, passes[-1].at_s)


HEALTHY = [(10, 10)] * 30


def test_straggler__the_rank_that_is_last_in_every_step_by_far_is_slow() -> None:
    found = named([*HEALTHY, *[(13, 10)] * 4])
    assert found is not None
    assert (found.rank, found.place, found.steps) == (1, Place.COMPUTES, 4)
    assert found.factor == pytest.approx(1.4, abs=0.1)
    assert found.text.startswith("all others wait for it in 2")
    assert "as the last of 4 steps: about 1.4 times slower. It computes then, which" in found.text
    assert "takes 100% of its time and 71% of theirs" in found.text


@pytest.mark.parametrize(
    "lengths",
    [
        [*HEALTHY, (13, 10), (13, 10)],  # too few steps
        [*HEALTHY, *[(11, 10)] * 6],  # too little
        [(13, 10)] * 4,  # it may have been so for ever, by chance
        [*HEALTHY, *[(10, 13), (13, 10)] * 4],  # in turn
        [*[(14, 10), (10, 14)] * 6, *[(13, 10)] * 4],  # one had to wait for longer before
    ],
)
def test_straggler__else_none_is_named(lengths: Sequence[tuple[int, int]]) -> None:
    assert named(lengths, 2) is None


@pytest.mark.parametrize("world", [2, 4, 8])
def test_straggler__who_was_always_last_is_slow_once_chance_does_not_explain_it(
    world: int,
) -> None:
    counts = [count for count in range(3, 30) if named([(13, 10)] * count, world) is not None]
    assert min(counts) == next(n for n in range(99) if world * world**-n <= CHANCE)


@pytest.mark.parametrize("phase", [15, 30, 60, 180])
def test_straggler__one_long_phase_of_one_rank_is_no_slow_rank(phase: int) -> None:
    assert named([*HEALTHY, (10 + phase, 10)]) is None
    assert named([*HEALTHY, (10 + phase, 10), *HEALTHY[:6]]) is None


def test_straggler__the_longer_a_job_trained_the_fewer_steps_are_needed() -> None:
    def needed(trained_steps: int) -> int:
        return next(
            count
            for count in range(1, 30)
            if named([*HEALTHY[:1] * trained_steps, *[(13, 10)] * count], 2) is not None
        )

    assert needed(1) > needed(10) > needed(50)


def test_straggler__what_it_does_while_they_wait_is_said() -> None:
    passes = steps([*HEALTHY, *[(13, 10)] * 4])
    stored = [
        seen(one_pass.at_s, 1.0, {**one_pass.found, 1: Place.STORES})
        if one_pass.last == 1
        else one_pass
        for one_pass in passes
    ]
    found = straggler(stored, stored[-1].at_s)
    assert found is not None
    assert found.place is Place.STORES
    assert found.others_share == 0.0
    assert "It is in calls to files then" in found.text


def test_straggler__what_was_not_seen_is_not_counted() -> None:
    passes = steps([*HEALTHY, *[(13, 10)] * 4])
    assert straggler(passes[:-30], passes[-1].at_s) is None


def test_seen__two_that_work_or_none_that_waits_are_nobodys_last() -> None:
    works = Place.COMPUTES
    assert seen(1.0, 1.0, {1: works, 2: 0.5, 3: 0.25}).last == 1
    assert seen(1.0, 1.0, {1: works, 2: 0.5, 3: 0.25}).waited_s == 0.25
    assert seen(1.0, 1.0, {1: works, 2: works, 3: 0.25}).last is None
    assert seen(1.0, 1.0, {1: works}).last is None
    assert seen(1.0, 1.0, {1: 0.1, 2: 0.2}).last is None


def test_latest__passes_within_one_wait_are_one_step() -> None:
    waits_s = [0.1, 0.4, 0.7, 0.1, 0.4]
    passes = [
        seen(at_s, 0.3, {1: Place.COMPUTES, 2: waited_s})
        for at_s, waited_s in zip([1.0, 1.3, 1.6, 3.0, 3.3], waits_s, strict=True)
    ]
    late = latest(passes)
    assert late is not None
    assert list(late.waited_s) == [0.7, 0.4]
    assert late.lasts_s == pytest.approx(1.5)
    assert late.other_steps == 0


@given(PASSES)
def test_straggler__whatever_was_seen_it_is_one_that_others_wait_for(
    found: list[list[float | Place]],
) -> None:
    passes = [seen(float(at), 1.0, dict(enumerate(where))) for at, where in enumerate(found)]
    slow = straggler(passes, float(len(found)))
    assert slow is None or (slow.share >= LATE_SHARE and slow.steps >= LATE_STEPS)
    assert slow is None or slow.factor > 1


def test_straggler__one_that_is_known_is_slow_for_as_long_as_the_others_wait_for_it() -> None:
    passes = steps([(13, 10)] * 4)
    assert straggler(passes, passes[-1].at_s) is None
    assert straggler(passes, passes[-1].at_s, 2) is None
    assert straggler(passes, passes[-1].at_s, 1) is not None
    over = steps([(10, 10)] * 30)
    assert straggler(over, over[-1].at_s, 1) is None


def test_straggler__a_server_and_its_workers_work_in_turn() -> None:
    server, workers = {0: Place.COMPUTES}, (1, 2, 3)
    passes = [
        seen(
            float(second),
            1.0,
            {**server, **dict.fromkeys(workers, 0.5)}
            if second % 2
            else {0: 0.5, **dict.fromkeys(workers, Place.COMPUTES)},
        )
        for second in range(300)
    ]
    assert straggler(passes, 300.0) is None
