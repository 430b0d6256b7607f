"""Which node of a job asks its NCCL first, and which ones take over."""

from __future__ import annotations

import pytest

from kcover_ebpf.collectives.ras.turns import turn_s

CASES: dict[str, tuple[list[int | None], int | None, float | None]] = {
    "the node of rank 0": ([0, 1, 2, 3], 16, 0.0),
    "the second node": ([4, 5, 6, 7], 16, 15.0),
    "the third node": ([8, 9, 10, 11], 16, 30.0),
    "the fourth node": ([12, 13, 14, 15], 4096, 45.0),
    "the fifth node leaves it to them": ([16, 17, 18, 19], 4096, None),
    "a rank of its own each": ([3], 16, 45.0),
    "dealt out in turn": ([1, 17, 33, 49], 64, 15.0),
    "all ranks are here": ([0, 1], 2, 0.0),
    "the size of the job is not known": ([40, 41], None, 0.0),
    "ranks without numbers": ([None, None], 16, 0.0),
    "a rank without a number beside others": ([None, 5], 8, None),
}


@pytest.mark.parametrize(("numbers", "world_size", "expected"), CASES.values(), ids=CASES)
def test_turn_s__whose_turn_it_is(
    numbers: list[int | None], world_size: int | None, expected: float | None
) -> None:
    assert turn_s(numbers, world_size) == expected


@pytest.mark.parametrize("per_node", [1, 3, 8])
def test_turn_s__of_a_large_job_a_few_nodes_ask_one_after_the_other(per_node: int) -> None:
    world = 1500 * per_node
    turns = [turn_s(range(at, at + per_node), world) for at in range(0, world, per_node)]
    assert sorted(turn for turn in turns if turn is not None) == [0.0, 15.0, 30.0, 45.0]
