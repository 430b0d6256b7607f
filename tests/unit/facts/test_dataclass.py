"""Our `dataclass` against the standard one: what both make is the same, but for assignments."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from kcover_ebpf.dataclass import dataclass, replace
from kcover_ebpf.facts.kernel import Tick


def made(decorator: Callable[..., Any]) -> Any:
    """One class with a field of each sort."""

    @decorator(frozen=True, slots=True)
    class Sample:
        """What was seen."""

        pid: int
        note: str = dataclasses.field(default="", compare=False)
        share: float = dataclasses.field(default=0.0, repr=False)
        tags: tuple[str, ...] = ()

    return Sample


OURS, STANDARD = made(dataclass), made(dataclasses.dataclass)
ARGUMENTS = [(1,), (1, "x"), (1, "", 2.0), (2,), (1, "", math.nan), (1, "", 0.0, ("a",))]


@pytest.mark.parametrize("left", ARGUMENTS)
@pytest.mark.parametrize("right", ARGUMENTS)
def test_dataclass__objects_are_equal_where_the_standard_ones_are(left: Any, right: Any) -> None:
    assert (OURS(*left) == OURS(*right)) is (STANDARD(*left) == STANDARD(*right))
    if STANDARD(*left) == STANDARD(*right):
        assert hash(OURS(*left)) == hash(OURS(*right))


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_dataclass__an_object_shows_what_the_standard_one_shows(arguments: Any) -> None:
    assert repr(OURS(*arguments)) == repr(STANDARD(*arguments))


def test_dataclass__fields_patterns_and_replace_are_the_standard_ones() -> None:
    assert OURS.__match_args__ == STANDARD.__match_args__
    assert OURS.__slots__ == STANDARD.__slots__
    assert OURS.__doc__ == STANDARD.__doc__
    assert dataclasses.asdict(OURS(1, "x")) == dataclasses.asdict(STANDARD(1, "x"))
    assert dataclasses.replace(OURS(1), pid=3) == OURS(3)
    assert OURS(1) != STANDARD(1)


def test_replace__is_the_standard_one_and_leaves_the_old_object_alone() -> None:
    old = OURS(1, "x", 2.0, ("a",))
    new = replace(old, pid=3)
    assert new == dataclasses.replace(old, pid=3) == OURS(3, "x", 2.0, ("a",))
    assert (old.pid, new.note, new.tags) == (1, "x", ("a",))
    with pytest.raises(AttributeError):
        replace(old, other=1)


def test_replace__what_is_done_after_construction_is_done_again() -> None:
    @dataclass(slots=True)
    class Square:
        side: int
        area: int = dataclasses.field(init=False)

        def __post_init__(self) -> None:
            self.area = self.side**2

    assert replace(Square(2), side=3).area == 9


def test_dataclass__an_object_without_slot_cannot_be_given_one() -> None:
    with pytest.raises(AttributeError):
        OURS(1).other = 1


def test_dataclass__what_may_change_has_no_hash_and_what_is_itself_compares_by_identity() -> None:
    @dataclass(slots=True)
    class Kept:
        numbers: list[int] = dataclasses.field(default_factory=list)

    @dataclass(slots=True, eq=False)
    class Node:
        number: int = 0

    assert Kept([1]) == Kept([1])
    with pytest.raises(TypeError, match="unhashable"):
        hash(Kept([1]))
    assert copy.deepcopy(Kept([1])) == Kept([1])
    assert Node() != Node()
    assert len({Node(), Node()}) == 2


def test_dataclass__its_own_methods_stay() -> None:
    @dataclass(frozen=True)
    class Named:
        name: str

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Named) and self.name.lower() == other.name.lower()

        def __hash__(self) -> int:
            return hash(self.name.lower())

        def __repr__(self) -> str:
            return self.name

    assert Named("A") == Named("a")
    assert len({Named("A"), Named("a")}) == 1
    assert repr(Named("A")) == "A"


def test_dataclass__an_object_goes_through_pickle() -> None:
    tick = Tick(1, 2, 3, late=False)
    assert pickle.loads(pickle.dumps(tick)) == tick
