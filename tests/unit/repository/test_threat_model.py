"""Every test that docs/threat-model.md cites exists, and every known attack has one."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/threat-model.md").read_text()
NAMED = re.findall(r"^(\| ([A-Z]\d+) \|.*)$", PAGE, re.MULTILINE)
ROWS = {name: row for row, name in NAMED}
PROGRAMS = dict(re.findall(r"^\| (N\d+b?), (.*)$", PAGE, re.MULTILINE))
"""What became of each program of the second review."""
CITED = re.compile(r"`([a-z]+(?:/[a-z_]+)*/test_\w+\.py)::(\w+)`")


@cache
def defined_in(path: str) -> frozenset[str]:
    """Names of the test functions of a file under tests/; none where there is no such file."""
    file = ROOT / "tests" / path
    if not file.exists():
        return frozenset()
    tree = ast.parse(file.read_text())
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )


def absent(row: str) -> list[str]:
    """What a row cites and no file has."""
    return [f"{path}::{name}" for path, name in CITED.findall(row) if name not in defined_in(path)]


def test_threat_model__every_known_attack_is_listed() -> None:
    known = {f"A{n}" for n in range(1, 24)} | {f"B{n}" for n in (1, 3, 4, 5, 6, 7, 8, 9)}
    assert set(ROWS) >= known | {f"C{n}" for n in (1, 2, 3, 4, 5, 9)}


def test_threat_model__no_two_attacks_have_one_name() -> None:
    assert len(NAMED) == len(ROWS)


def test_threat_model__every_program_of_the_second_review_has_a_row() -> None:
    with_program = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 29}
    by_reading = {19, 20, 21, 22, 23, 24, 25, 26, 27, 28}
    numbers = {f"N{number}" for number in with_program | by_reading}
    assert set(PROGRAMS) == numbers | {"N2b", "N13b"}


@pytest.mark.parametrize("row", PROGRAMS.values(), ids=PROGRAMS)
def test_threat_model__every_program_of_the_second_review_has_a_test_that_exists(row: str) -> None:
    assert CITED.search(row)
    assert absent(row) == []


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_threat_model__every_attack_has_a_test_that_exists(row: str) -> None:
    assert CITED.search(row)
    assert absent(row) == []


FROM_OUTSIDE = [f"A{number}" for number in range(1, 18)]
FROM_OUTSIDE += [f"N{number}" for number in (1, 2, 4, 5, 8, 11, 12, 14, 16, 21, 22, 29)]


@pytest.mark.parametrize("name", FROM_OUTSIDE)
def test_threat_model__what_a_tenant_could_do_is_tried_on_a_real_cluster(name: str) -> None:
    assert any(path.startswith("attack/") for path, _ in CITED.findall(ROWS[name]))


def test_threat_model__every_attack_on_a_real_cluster_is_listed() -> None:
    files = (ROOT / "tests/attack").glob("test_*.py")
    written = {(f"attack/{file.name}", name) for file in files
               for name in defined_in(f"attack/{file.name}")}  # fmt: skip
    assert written == {found for found in CITED.findall(PAGE) if found[0].startswith("attack/")}


def test_threat_model__a_test_that_is_gone_is_noticed() -> None:
    assert absent(
        "`unit/controller/test_owners.py::test_nothing`, `unit/test_gone.py::test_x`"
    ) == [
        "unit/controller/test_owners.py::test_nothing",
        "unit/test_gone.py::test_x",
    ]
