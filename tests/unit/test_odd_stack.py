"""Of the Python stacks of all ranks the odd one is named, with file and line; nobody where there is no majority."""

from __future__ import annotations

import pytest

from kcover_ebpf.diagnosis.verdict import EvidenceKind
from kcover_ebpf.trace.grouping import odd_one
from kcover_ebpf.trace.records import Stack

COLLECTIVE = ("wait (torch/distributed/c10d.py:27)", "step (train.py:40)", "<module> (train.py:90)")
LOCK = (
    "acquire (threading.py:320)",
    "save (train.py:71)",
    "step (train.py:44)",
    "<module> (train.py:90)",
)


def stack(rank: int, frames: tuple[str, ...]) -> Stack:
    return Stack(100 + rank, 100 + rank, rank, frames)


def test_the_rank_that_is_elsewhere_is_named_where_its_way_parts() -> None:
    found = odd_one(
        [stack(0, COLLECTIVE), stack(1, LOCK), stack(2, COLLECTIVE), stack(3, COLLECTIVE)]
    )
    assert found is not None
    assert found.kind is EvidenceKind.STACK
    assert found.text == (
        "rank 1 is at save (train.py:71), the 3 other ranks are at wait (torch/distributed/c10d.py:27)"
    )


def test_a_caller_that_goes_no_further_is_named_by_its_innermost_frame() -> None:
    loop = ("step (train.py:60)", "<module> (train.py:90)")
    found = odd_one([stack(3, loop), *(stack(rank, COLLECTIVE) for rank in range(3))])
    assert found is not None
    assert "rank 3 is at step (train.py:60)" in found.text


def test_ranks_that_poll_in_one_loop_are_at_one_place() -> None:
    polls = [stack(rank, (f"poll (x.py:{rank})", "<module> (train.py:90)")) for rank in range(4)]
    assert odd_one(polls) is None
    found = odd_one([*polls, stack(4, LOCK)])
    assert found is not None
    assert "rank 4 is at step (train.py:44)" in found.text


@pytest.mark.parametrize(
    "stacks",
    [
        [],
        [stack(rank, COLLECTIVE) for rank in range(4)],
        [stack(0, LOCK), stack(1, COLLECTIVE), stack(2, COLLECTIVE)],
        [stack(rank, LOCK if rank < 2 else COLLECTIVE) for rank in range(6)],
        [
            stack(0, LOCK),
            stack(1, ("f (a.py:1)",)),
            *(stack(each, COLLECTIVE) for each in (2, 3, 4)),
        ],
        [stack(0, LOCK), stack(1, ()), *(stack(each, COLLECTIVE) for each in (2, 3, 4))],
    ],
    ids=["none", "all alike", "two others", "two are odd", "three places", "one was not read"],
)
def test_nobody_is_named(stacks: list[Stack]) -> None:
    assert odd_one(stacks) is None


def test_the_owner_of_the_interpreter_lock_is_not_odd_for_that() -> None:
    owner = stack(0, ("holds the interpreter lock", *COLLECTIVE))
    assert odd_one([owner, *(stack(each, COLLECTIVE) for each in (1, 2, 3))]) is None
