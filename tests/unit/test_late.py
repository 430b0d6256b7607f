"""A look at a job that was stuck before anybody watched."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.incidents import late
from kcover_ebpf.incidents.finding import Finding
from kcover_ebpf.incidents.verdict import Cause, Kind

from .scene import NS, Proc, Stage


def waiting(present: list[int], world: int, environ: dict[str, str], mode: str = "futex") -> Stage:
    """A job of which only some ranks are here, all in one mode, seen for four seconds."""
    stage = Stage(world=0)
    stage.world = world
    for rank in present:
        stage.add(Proc(100 + rank, rank=rank, mode=mode))
    stage.job.examine()
    stage.one_pass(NS)
    for view in stage.job.members.views.values():
        if view.seen is not None:
            view.seen = replace(view.seen, rank_environ=view.seen.rank_environ | environ)
    for _ in range(4):
        stage.job.examine()
        stage.one_pass(NS)
    return stage


LOCAL = {"LOCAL_WORLD_SIZE": "4"}
CASES = {
    "a gap in the numbers": ([0, 1, 3], 4, {}, 2),
    "the last one, told by the launcher": ([0, 1, 2], 4, LOCAL, 3),
    "the first one": ([1, 2, 3], 4, LOCAL, 0),
    "the last of a host of many": ([4, 5, 6], 8, LOCAL, 7),
    "none: the others may be elsewhere": ([0, 1, 2], 4, {}, None),
    "none: the launcher started no more here": ([0, 1, 2, 3], 8, LOCAL, None),
    "none: all are here": ([0, 1, 2, 3], 4, LOCAL, None),
}


@pytest.mark.parametrize("name", CASES)
def test_a_rank_that_is_gone_leaves_a_gap(name: str) -> None:
    present, world, environ, lost = CASES[name]
    found = late.lost_before(waiting(present, world, environ).job)
    assert (None if found is None else found.rank) == lost
    if found is not None:
        assert (found.kind, found.cause) == (Kind.HUNG, Cause.MISSING_RANK)


def test_nobody_is_lost_while_one_works() -> None:
    stage = waiting([0, 1, 3], 4, LOCAL, mode="run")
    assert not late.nobody_moves(stage.job)
    assert late.lost_before(stage.job) is None


def test_a_lost_link_that_nobody_here_explains_leads_to_the_lost_rank() -> None:
    stage = waiting([0, 1, 3], 4, LOCAL)
    link = Finding(Kind.LOST_LINK, Cause.LINK, stage.now_ns)
    assert late.name_the_lost(stage.job, link).rank == 2
    named = replace(link, rank=1)
    assert late.name_the_lost(stage.job, named) is named
    several = waiting([0, 3], 4, LOCAL)
    assert late.name_the_lost(several.job, link) is link


def test_a_look_goes_on_while_a_rank_waits_without_reason() -> None:
    assert late.somebody_waits(waiting([0, 1], 4, LOCAL).job)
    assert not late.somebody_waits(waiting([0, 1], 4, LOCAL, mode="run").job)


def busy(modes: list[str], passes: int) -> Stage:
    """Ranks that burn their CPUs, seen so often."""
    stage = Stage(world=0)
    stage.world = len(modes)
    for rank, mode in enumerate(modes):
        stage.add(Proc(100 + rank, rank=rank, mode=mode))
    for _ in range(passes):
        stage.job.examine()
        stage.one_pass(NS // 4)
    return stage


@pytest.mark.parametrize(
    ("modes", "passes", "undecided"),
    [
        (["yield", "yield", "run"], 6, True),
        (["yield", "yield", "run"], 16, False),
        (["yield", "yield", "spin"], 16, True),
        (["yield", "yield", "yield"], 16, False),
        (["yield", "yield", "futex"], 16, False),
    ],
)
def test_who_waits_busily_is_told_from_who_works_by_looking_for_longer(
    modes: list[str], passes: int, undecided: bool
) -> None:
    assert late.undecided(busy(modes, passes).job) is undecided


@pytest.mark.parametrize(
    ("present", "world", "cause"),
    [
        ([2], 4, Cause.STOPPED),
        ([0, 1], 2, Cause.SUSPENDED),
        pytest.param([2], 0, Cause.STOPPED, id="numbers below, and no word on how many"),
        pytest.param([0, 1], 0, Cause.SUSPENDED, id="no numbers below"),
    ],
)
def test_a_part_of_a_job_that_is_stopped_was_not_suspended(
    present: list[int], world: int, cause: Cause
) -> None:
    stage = waiting(present, world, {}, mode="stopped")
    suspended = Finding(Kind.WORKING, Cause.SUSPENDED, stage.now_ns)
    found = late.held_here(stage.job, suspended)
    assert found.cause is cause
    assert found.rank == (2 if cause is Cause.STOPPED else None)
