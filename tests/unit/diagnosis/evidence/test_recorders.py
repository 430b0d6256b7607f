"""The recordings of all ranks side by side: who is named, and who is not."""

from __future__ import annotations

from typing import Any

import pytest

from kcover_ebpf.diagnosis.evidence.recorders import RecorderComparison, compare
from testbed.driver.recorder_dumps import call, steps
from tests.unit.support.recorder_builders import record

PAIR = {"9": ("pair", "[2, 3]")}


def named(comparison: RecorderComparison) -> list[int]:
    return [rank_record.rank for rank_record in comparison.named]


WAITS = steps(5, ends="all_reduce")


def test_compare__the_rank_that_has_not_called_what_the_others_wait_in() -> None:
    ranks = [record(rank, WAITS) for rank in (0, 1, 3)] + [record(2, steps(5))]
    found = compare(ranks, 4)
    assert (named(found), found.mismatch) == ([2], False)
    assert found.texts == (
        (
            "ranks 0, 1, 3 wait in collective 6 of group 0 (default_pg), all_reduce [16x4 Float] "
            "at /jobs/train.py:40 (step), which rank 2 has not called"
        ),
        "the last call of rank 2 is all_reduce [16x4 Float], number 5 of group 0 at /jobs/train.py:40 (step)",
    )


def test_compare__a_rank_that_called_something_else() -> None:
    other = steps(5, ends="all_gather", line=57)
    found = compare([record(rank, WAITS) for rank in (0, 1, 2)] + [record(3, other)], 4)
    assert (named(found), found.mismatch) == ([3], True)
    assert "rank 3 called all_gather [16x4 Float] at /jobs/train.py:57 (step)" in found.texts[1]


def test_compare__two_against_two_name_no_rank() -> None:
    other = steps(5, ends="all_gather")
    ranks = [record(0, WAITS), record(1, WAITS), record(2, other), record(3, other)]
    found = compare(ranks, 4)
    assert (named(found), found.mismatch) == ([], True)


def test_compare__those_that_are_not_known_might_be_on_the_other_side() -> None:
    other = steps(5, ends="all_gather")
    found = compare([record(0, WAITS), record(1, WAITS), record(2, other)], 8)
    assert (named(found), found.mismatch) == ([], True)


@pytest.mark.parametrize(
    ("operation", "sizes", "is_mismatch"),
    [
        ("all_reduce", [[7]], True),
        ("all_reduce", [[64]], False),
        ("all_gather", [[7]], False),
        ("all_to_all", [[7]], False),
    ],
    ids=["another size", "the same elements", "uneven parts", "any sizes"],
)
def test_compare__sizes_are_compared_where_they_must_agree(
    operation: str, sizes: list[list[int]], is_mismatch: bool
) -> None:
    odd = [*steps(5), call(6, operation, state="scheduled", sizes=sizes)]
    others = steps(5, ends=operation)
    found = compare([record(rank, others) for rank in (0, 1, 2)] + [record(3, odd)], 4)
    assert found.mismatch is is_mismatch
    assert named(found) == ([3] if is_mismatch else [])


def inner(number: int, state: str, record_number: int = 20) -> dict[str, Any]:
    return call(number, state=state, group="9", purpose="pair", record=record_number, line=71)


def test_compare__a_chain_of_groups_is_followed_to_its_end() -> None:
    """0 and 1 wait for 2 and 3, 2 waits in another group for 3: 3 is at fault."""
    ranks = [
        record(0, WAITS, groups=PAIR),
        record(1, WAITS, groups=PAIR),
        record(2, [*steps(5), inner(1, "scheduled")], groups=PAIR),
        record(3, steps(5), groups=PAIR),
    ]
    found = compare(ranks, 4)
    assert (named(found), found.mismatch) == ([3], False)


def test_compare__ranks_that_wait_for_each_other_in_two_groups_are_both_innocent() -> None:
    ranks = [
        record(0, WAITS, groups=PAIR),
        record(1, WAITS, groups=PAIR),
        record(2, [*steps(5), inner(1, "scheduled")], groups=PAIR),
        record(3, WAITS, groups=PAIR),
    ]
    found = compare(ranks, 4)
    assert (named(found), found.mismatch, found.joined) == ([], False, False)
    assert any("rank 2 waits in collective 1 of group 9 (pair)" in text for text in found.texts)


def test_compare__who_may_wait_for_a_rank_that_is_not_known_is_not_named() -> None:
    """2 is late for 0, and may wait for 3."""
    groups = {"9": ("pair", "[2, 3]")}
    ranks = [
        record(0, WAITS, groups=groups),
        record(2, [*steps(5), inner(1, "scheduled")], groups=groups),
    ]
    assert named(compare(ranks, 4)) == []
    late = [record(0, WAITS), record(2, steps(5))]
    assert named(compare(late, 4)) == [2], "it is in no collective, whatever 1 and 3 do"


def message(operation: str, number: int, state: str = "scheduled") -> dict[str, Any]:
    return call(number, operation, message=True, group="9", purpose="pp", record=30, state=state)


def test_compare__a_receiver_waits_for_its_sender() -> None:
    groups = {"9": ("pp", "[0, 1]")}
    ranks = [
        record(0, steps(5), members="[0, 1]", groups=groups),
        record(1, [*steps(5), message("recv 1<-0", 1)], members="[0, 1]", groups=groups),
    ]
    assert named(compare(ranks, 2)) == [0]
    ranks[0] = record(0, [*steps(5), message("send 0->1", 1)], members="[0, 1]", groups=groups)
    assert named(compare(ranks, 2)) == [], "both have come"


def test_compare__all_have_joined() -> None:
    found = compare([record(rank, WAITS) for rank in range(4)], 4)
    assert (named(found), found.joined) == ([], True)
    assert not compare([record(rank, WAITS) for rank in range(3)], 4).joined


def test_compare__nothing_is_said_of_ranks_that_wait_for_nothing() -> None:
    assert compare([record(rank, steps(5)) for rank in range(4)], 4) == RecorderComparison()
    assert compare([record(0, WAITS)], 4) == RecorderComparison()
    assert compare([], None) == RecorderComparison()


def test_compare__the_order_of_the_ranks_does_not_matter() -> None:
    ranks = [record(rank, WAITS) for rank in (0, 1, 3)] + [record(2, steps(5))]
    assert compare(ranks[::-1], 4) == compare(ranks, 4)
