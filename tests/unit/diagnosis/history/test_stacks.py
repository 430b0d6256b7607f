"""Stacks as sets: alike, in groups, known, and who differs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.diagnosis.history.stacks import (
    KnownWaits,
    Stack,
    groups,
    minority,
    outliers,
    similarity,
    waits_in,
)
from kcover_ebpf.tunables.diagnosis import SAME_STACK_SHARE

STACKS = st.lists(st.sampled_from([f"m+{number:x}" for number in range(12)]), max_size=8).map(tuple)
A, B, C = (tuple(f"lib{name}.so+{number:x}" for number in range(20)) for name in "abc")
A_NOISY = (*A[:18], "stale+1", "stale+2")


@given(STACKS, STACKS)
def test_similarity__is_a_share_and_symmetric(one: Stack, other: Stack) -> None:
    assert 0 <= similarity(one, other) <= 1
    assert similarity(one, other) == similarity(other, one)
    assert similarity(one, one) == (1 if one else 0)


@given(st.dictionaries(st.integers(), STACKS, max_size=8))
def test_minority__groups_share_out_all_owners_largest_first(stacks: dict[int, Stack]) -> None:
    found = groups(stacks)
    assert sorted(key for group in found for key in group) == sorted(stacks)
    assert [len(group) for group in found] == sorted(map(len, found), reverse=True)
    assert set(minority(found)) <= stacks.keys()
    assert len(minority(found)) < max(1, len(stacks))


def test_groups__leftover_words_do_not_part_a_group() -> None:
    assert groups({0: A, 1: B, 2: A_NOISY}) == [[0, 2], [1]]


@pytest.mark.parametrize(
    ("ordered", "odd"),
    [
        ([[0, 1, 2], [3]], [3]),
        ([[0, 1, 2], [3], [4]], [3, 4]),
        ([[0, 1], [2, 3]], []),
        ([[0], [1]], []),
        ([[0, 1]], []),
        ([], []),
    ],
)
def test_minority__without_a_single_largest_group_none_is_odd(
    ordered: list[list[int]], odd: list[int]
) -> None:
    assert minority(ordered) == odd


def known(*stacks: Stack) -> KnownWaits:
    waits = KnownWaits()
    for stack in stacks:
        waits.learn(stack)
    return waits


IN_GLOO: Stack = ("libc.so.6+885d8", "libtorch_cpu.so+44a5023", "libtorch_cpu.so+3b3411c")
IN_PYTHON: Stack = ("libc.so.6+885d8", "python3.11+1b50f8", "python3.11+11e3df")


@pytest.mark.parametrize(
    ("stacks", "waits", "odd"),
    [
        ({0: A, 1: A, 2: B}, known(A), [2]),
        ({0: A, 1: B, 2: B}, known(A), []),
        ({0: A, 1: B}, known(A, B), []),
        ({0: A, 1: A, 2: B}, known(), [2]),
        ({0: A, 1: B}, known(), []),
        ({0: A, 1: A, 2: B}, known(C), [2]),
        ({0: IN_GLOO, 1: IN_PYTHON}, known(), [1]),
        ({0: IN_GLOO, 1: IN_PYTHON}, known(IN_PYTHON), []),
        ({0: IN_GLOO, 1: IN_PYTHON}, known(IN_GLOO, IN_PYTHON), []),
        ({0: IN_GLOO, 1: IN_PYTHON, 2: IN_PYTHON[::-1]}, known(), [0]),
    ],
)
def test_outliers__which_wait_where_none_ever_left(
    stacks: dict[int, Stack], waits: KnownWaits, odd: list[int]
) -> None:
    assert outliers(stacks, {key for key in stacks if waits.knows(stacks[key])}) == odd


def test_known_waits__are_few_and_different() -> None:
    waits = known(A, A_NOISY, B, ())
    assert waits.count == 2
    assert waits.knows(A_NOISY)
    assert not waits.knows(C)
    many = known(*((f"x+{number}", f"y+{number}") for number in range(100)))
    assert many.count == 64
    assert many.knows(("x+99", "y+99"))
    assert not many.knows(("x+0", "y+0"))


EVALUATES = tuple(f"python3.11+{number:x}" for number in range(20))
LOCKS = ("libc.so.6+1", "libc.so.6+2", "python3.11+aa", *EVALUATES[2:])
"""It waits for a lock of Python: most words are those of any program in Python."""


def test_known_waits__one_that_ran_python_says_nothing_of_one_that_sleeps() -> None:
    assert similarity(EVALUATES, LOCKS) > SAME_STACK_SHARE
    assert not known(EVALUATES).knows(LOCKS)
    assert known(EVALUATES).knows((*EVALUATES[1:], "python3.11+bb"))
    assert known(LOCKS).knows(EVALUATES)
    assert known(LOCKS).knows(("libc.so.6+3", *LOCKS[1:]))


@pytest.mark.parametrize(
    ("stack", "name"),
    [
        (
            ("libc.so.6+1", "libstdc++.so.6+2", "libtorch_cpu.so+3", "libnccl.so+4"),
            "libtorch_cpu.so",
        ),
        (("libc.so.6+1", "python3.11+2"), None),
        ((), None),
    ],
)
def test_waits_in__the_library_that_waits(stack: Stack, name: str | None) -> None:
    assert waits_in(stack) == name
