"""The numbers that decide a verdict, found by who reads them (issue: few of them, each varied)."""

from __future__ import annotations

import ast

import pytest

from bench.tapebench import deciding
from bench.tapebench.deciding import NO_JUDGES, NO_THRESHOLDS, PACKAGE, ROOMS, changed, imports

MOST = 127
"""Numbers that decide. Each further one must replace one: derive it from another, or take one away."""
MOST_OF_CONCLUSIONS = 81
"""Of these, the ones that more than `history` and `membership` read: those two say what a thread or a link does, the
others what follows from it."""


def read_in_rooms() -> dict[str, set[tuple[str, str]]]:
    """Module of a room -> (module, name) of each tunable that it imports."""
    return {
        path.relative_to(PACKAGE).as_posix(): set(imports(path.read_text(encoding="utf-8")))
        for room in ROOMS
        for path in (PACKAGE / room).rglob("*.py")
    }


def test_deciding__there_are_no_more_than_before() -> None:
    numbers = deciding.deciding()
    assert len(numbers) <= MOST
    concluding = [number for number in numbers if not number.only_measures]
    assert len(concluding) <= MOST_OF_CONCLUSIONS


def test_deciding__every_number_that_a_room_reads_is_varied_or_derived_from_one_that_is() -> None:
    varied = {(number.module, number.name) for number in deciding.deciding()}
    values = {
        (path.stem, target.id): node.value
        for path in (PACKAGE / "tunables").glob("[a-z]*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    names = {name for _, name in varied}
    forgotten = [
        f"{place}: {name}"
        for place, read in read_in_rooms().items()
        for module, name in read - varied
        if place not in NO_JUDGES
        and module not in NO_THRESHOLDS
        and not names
        & {one.id for one in ast.walk(values[module, name]) if isinstance(one, ast.Name)}
    ]
    assert forgotten == []


def test_deciding__a_number_that_is_computed_is_varied_by_its_source() -> None:
    names = {number.name for number in deciding.deciding()}
    assert "PAYLOAD_RATE" in names
    assert "PEER_BYTES_FLOOR" not in names


def test_no_judges__each_is_there_and_reads_a_number() -> None:
    read = read_in_rooms()
    assert all(read[place] for place in NO_JUDGES)
    modules = {module for pairs in read.values() for module, _ in pairs}
    assert NO_THRESHOLDS.keys() <= modules


def value_of(number: deciding.Number, factor: float) -> object:
    """The value of a number in its module, changed."""
    path = PACKAGE / "tunables" / f"{number.module}.py"
    spaces: dict[str, object] = {}
    exec(changed(path.read_text(encoding="utf-8"), number.name, factor), spaces)
    return spaces[number.name]


def test_changed__every_number_can_be_halved_and_doubled() -> None:
    same = [
        (number.name, factor)
        for number in (*deciding.deciding(), *deciding.others())
        for factor in (0.5, 2.0)
        if value_of(number, factor) == value_of(number, 1.0) != 1
    ]
    assert same == []


def test_changed__a_share_stays_below_one_and_a_count_above_zero() -> None:
    assert deciding.times("BUSY_SHARE", 0.8, 2.0) == pytest.approx(0.9)
    assert deciding.times("MOVE_SHARE", 0.02, 2.0) == 0.04
    assert deciding.times("COUNT", 1, 0.5) == 1
    assert deciding.times("PERIODS_NS", (2, 30), 2.0) == (4, 60)
    with pytest.raises(KeyError):
        changed("A = 1\n", "B", 2.0)
