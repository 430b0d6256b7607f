"""What a host says that has only some of the ranks: what it does not see may well continue."""

import pytest

from kcover_ebpf.model.verdict import Cause, VerdictKind
from tests.unit.support.scripted_job import Stage


def trained(world: int, here: int | None) -> Stage:
    stage = Stage(world=world, here=here)
    stage.run(20)
    return stage


def last(stage: Stage) -> tuple[VerdictKind, Cause]:
    verdict = stage.verdicts[-1]
    return verdict.kind, verdict.cause


@pytest.mark.parametrize(
    ("world", "here", "expected"),
    [
        (1, None, (VerdictKind.WORKING, Cause.SUSPENDED)),
        (4, 1, (VerdictKind.UNKNOWN, Cause.STOPPED)),
    ],
    ids=["the whole job was suspended", "the rest may continue"],
)
def test_part_of_a_job__all_ranks_here_are_stopped(
    world: int, here: int | None, expected: tuple[VerdictKind, Cause]
) -> None:
    stage = trained(world, here)
    stage.become(stage.rank(0), "stopped")
    stage.run(8)
    assert last(stage) == expected


def test_part_of_a_job__training_is_seen_without_the_others() -> None:
    assert trained(4, 2).job.pace.trained


def test_part_of_a_job__a_rank_on_another_host_is_not_missing() -> None:
    stage = trained(4, 2)
    stage.run(60)
    assert last(stage) == (VerdictKind.WORKING, Cause.TRAINING)


def test_part_of_a_job__the_only_rank_here_is_killed() -> None:
    stage = trained(4, 1)
    stage.exit(stage.rank(0), signal=9)
    stage.run(2)
    assert last(stage) == (VerdictKind.CRASHED, Cause.KILLED)
