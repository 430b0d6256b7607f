"""The roster of a job: made once, and anew after every change of its processes."""

from dataclasses import replace

import pytest

from kcover_ebpf.facts.kernel import ProcessExec
from kcover_ebpf.ids import NS, Pid
from tests.unit.support.scripted_job import Proc, Stage


@pytest.fixture
def stage() -> Stage:
    """Two ranks that have met."""
    found = Stage(world=2)
    found.one_pass(NS)
    found.one_pass(NS)
    return found


def test_roster__it_is_made_once_while_nothing_changes(stage: Stage) -> None:
    roster = stage.job.members.roster
    assert list(roster.ranks) == [100, 101]
    stage.one_pass(NS)
    assert stage.job.members.roster is roster


def test_roster__a_rank_that_left_is_no_living_rank_at_once(stage: Stage) -> None:
    assert list(stage.job.members.ranks) == [100, 101]
    stage.exit(stage.rank(1), signal=9)
    assert list(stage.job.members.ranks) == [100]
    assert list(stage.job.members.owned) == [100]
    assert list(stage.job.members.all_ranks) == [100, 101]


def test_roster__a_loader_is_a_child_of_its_rank(stage: Stage) -> None:
    assert stage.job.members.children(Pid(101)) == ()
    stage.add(Proc(501, ppid=101))
    stage.one_pass(NS)
    members = stage.job.members
    assert [view.pid for view in members.children(Pid(101))] == [501]
    assert members.children(Pid(100)) == ()
    assert list(members.roster.loaders) == [501]


def test_roster__what_another_program_inherits_is_unknown_until_it_is_read(stage: Stage) -> None:
    for view in list(stage.job.members.views.values()):
        assert view.seen is not None
        environ = {**view.seen.rank_environ, "LOCAL_WORLD_SIZE": "2"}
        stage.feed(replace(view.seen, rank_environ=environ))
    assert stage.job.members.local_size == 2
    for pid in (100, 101):
        stage.feed(ProcessExec(stage.now_ns, Pid(pid), "sh"))
    assert stage.job.members.local_size is None
