"""Which numbers are missing in a world, and on one host of it."""

import pytest

from kcover_ebpf.diagnosis.membership.rank_numbers import MOST_RANKS, absent, lost_before_trace


@pytest.mark.parametrize(
    ("present", "size", "local_size", "missing"),
    [
        pytest.param({0, 1, 2, 3}, 4, None, [], id="all are there"),
        pytest.param({0, 3}, 4, None, [1, 2], id="two of the world are missing"),
        pytest.param(set(), 2, None, [0, 1], id="none is there"),
        pytest.param({4, 7}, 16, 4, [5, 6], id="the others of the second host"),
        pytest.param({5}, 16, 4, [4, 6, 7], id="its first one too"),
        pytest.param({0, 6}, 16, 4, [1, 2, 3], id="the host with the lowest number"),
        pytest.param(set(), 16, 4, [0, 1, 2, 3], id="none is there, so the first host"),
    ],
)
def test_absent__of_a_world_and_of_a_host(
    present: set[int], size: int, local_size: int | None, missing: list[int]
) -> None:
    assert absent(present, size, local_size) == missing


def test_absent__an_invented_size_costs_no_more_than_a_large_job() -> None:
    assert len(absent({0}, 10**12)) == MOST_RANKS - 1
    assert len(absent({0}, 10**12, 10**12)) == MOST_RANKS - 1


def test_lost_before_trace__names_the_rank_and_when_it_may_have_ended() -> None:
    assert lost_before_trace(2, 3, 4, "on this host") == (
        "rank 2 is missing: 3 of 4 ranks run on this host, and it ended before this trace, or never started"
    )
