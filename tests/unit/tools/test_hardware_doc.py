"""How results of tests in guests become a matrix: nothing that failed or did not run may read as a yes."""

from __future__ import annotations

import pytest

from tools import hardware_doc
from tools.hardware_doc import (
    BEGIN,
    END,
    Notes,
    cell,
    figures,
    matrix,
    members_of,
    page,
    report,
    take,
)
from tools.pages import ROOT


def ran(family: str = "aer", outcome: str = "passed", reason: str = "", **figures: object):
    return {
        "family": family,
        "outcome": outcome,
        "reason": reason,
        "seconds": 2.0,
        "figures": figures,
        "version": "6.1.0-56-amd64",
        "commit": "abc1234",
        "date": "2026-11-21",
        "load": 1.25,
    }


PASSED = ran()
SKIPPED = ran(outcome="skipped", reason="needs x: not here")
FAILED = ran(outcome="failed", reason="AssertionError: 22 == 23")


@pytest.mark.parametrize(
    ("tests", "expected", "notes"),
    [
        ({}, "not run", ""),
        ({"m::a": PASSED, "m::b": PASSED}, "yes", ""),
        ({"m::a": PASSED, "m::b": SKIPPED}, "yes (1)", "1. without `b`: needs x: not here\n"),
        ({"m::a": SKIPPED, "m::b": SKIPPED}, "- (1)", "1. needs x: not here\n"),
        ({"m::a": PASSED, "m::b": FAILED}, "**no** (1)", "1. `b`: AssertionError: 22 == 23\n"),
        ({"m::a": SKIPPED, "m::b": FAILED}, "**no** (1)", "1. `b`: AssertionError: 22 == 23\n"),
    ],
    ids=["none", "all", "some", "skipped", "one failed", "failed and skipped"],
)
def test_cell__a_cell(tests, expected, notes):
    remarks = Notes()
    assert (cell(tests, remarks), remarks.lines()) == (expected, notes)


def test_cell__a_test_that_was_left_out_is_named():
    remarks = Notes()
    ran = {"m::a": PASSED, "m::c[x]": PASSED}
    assert cell(ran, remarks, ["a", "b", "c"]) == "yes (1)"
    assert remarks.lines() == "1. without `b`: not run\n"


def test_members_of__the_members_of_a_family_are_found_in_the_sources():
    assert "test_23_fatal_errors_end_the_job_that_holds_the_gpu" in members_of("aer")
    assert members_of("storm") == ["test_a_storm_of_corrected_errors_is_counted"]
    assert len(members_of("latency")) == 3


def test_matrix__each_remark_is_written_once():
    text = matrix({"6.1": {"m::a": SKIPPED}, "6.12": {"m::a": SKIPPED}})
    assert "| - (1) | - (1) |" in text
    assert text.count("needs x") == 1


def test_matrix__a_column_for_each_kernel_that_ran():
    text = matrix({"newest": {"m::a": PASSED}, "5.10": {"m::a": PASSED}, "drivers": {}})
    assert text.startswith("| family | 5.10 | newest (6.1.0-56-amd64) |\n")


def test_figures__are_beside_the_kernel_they_were_taken_on():
    text = figures({"6.1": {"m::a": ran(p99_ms=3.8)}, "6.12": {"m::a": ran(p99_ms=4.1)}})
    assert "| `a` | p99 ms |  | 3.8 | 4.1 |  |\n" in text


def test_take__what_ran_later_replaces_and_what_is_gone_is_dropped():
    name = "test_aer::test_23_corrected_errors"
    before = {
        "6.1": {name: FAILED, "test_aer::test_of_old": PASSED},
        "5.10": {name: PASSED},
        "6.12": {"test_aer::test_of_old": PASSED},
    }
    now = {"6.1": {name: PASSED, f"{name}[x]": SKIPPED}}
    expected = {"6.1": {name: PASSED, f"{name}[x]": SKIPPED}, "5.10": {name: PASSED}}
    assert take(before, now) == expected


def test_page__the_page_keeps_what_people_wrote():
    before = f"# Head\n{BEGIN}old{END}tail\n"
    after = page({"6.1": {"m::a": PASSED}}, before)
    assert after.startswith(f"# Head\n{BEGIN}\n| family | 6.1 |")
    assert after.endswith(f"{END}tail\n")
    assert page({"6.1": {"m::a": PASSED}}, after) == after


def test_report__the_report_names_commit_and_date():
    text = report({"6.1": {"m::a": PASSED}, "drivers": {"m::b[open-535]": SKIPPED}})
    assert "Run on 2026-11-21.\n" in text
    assert "| `m::a` | passed, 2 s, abc1234, load 1 |" in text
    assert "| `b[open-535]` | skipped: needs x: not here |" in text


def test_hardware_doc__every_family_is_shown_by_some_test():
    sources = "".join(file.read_text() for file in (ROOT / "tests/vm").glob("test_*.py"))
    assert [name for name in hardware_doc.FAMILIES if f'family("{name}")' not in sources] == []
