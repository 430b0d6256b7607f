"""The page of measured attacks: the last run of each counts, and a goal can be missed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from testbed.attacks.meters import Lag, Use, lag_between
from testbed.attacks.stage import Recovery
from tests.attack.record import FILE, page_of, write


def line(attack: str, **other: object) -> dict[str, object]:
    measured = {
        "running_s": 7.5,
        "recovered_s": 8.6,
        "peak_bytes": {"agent": [71_000_000, 93_000_000], "controller": [57_000_000]},
        "pod_bytes": 120_000_000,
        "lag_p99_s": 0.1,
        "restarts": 0,
        "load": 1.2,
        "commit": "abc",
    }
    return {"attack": attack, **measured, **other}


def test_attack_record__the_last_run_of_each_attack_is_a_row() -> None:
    page = page_of(
        [
            line("test_n1_z"),
            *map(line, ("test_a10_x", "test_a2_y")),
            line("test_a10_x", recovered_s=9.9),
        ]
    )
    rows = [text for text in page.splitlines() if text.startswith(("| A", "| N"))]
    assert rows == [
        "| A2 y | 7.5 s | 8.6 s | 93 MB | 120 MB | 57 MB | 0.1 s | 0 | 1.2 | abc |",
        "| A10 x | 7.5 s | 9.9 s | 93 MB | 120 MB | 57 MB | 0.1 s | 0 | 1.2 | abc |",
        "| N1 z | 7.5 s | 8.6 s | 93 MB | 120 MB | 57 MB | 0.1 s | 0 | 1.2 | abc |",
    ]
    assert "Slowest recovery: 9.9 s (goal 60 s: kept)." in page
    assert "Most memory of one agent: 93 MB (goal 200 MB: kept)." in page


@pytest.mark.parametrize(
    "worse",
    [
        {"running_s": 10.5},
        {"recovered_s": 61.0},
        {"lag_p99_s": 0.5},
        {"peak_bytes": {"agent": [201_000_000], "controller": [1]}},
        {"peak_bytes": {"agent": [1], "controller": [300_000_001]}},
    ],
)
def test_attack_record__a_goal_that_is_missed_is_named(worse: dict[str, object]) -> None:
    assert page_of([line("test_a1_x"), line("test_a2_y", **worse)]).count("missed") == 1


def test_attack_record__nothing_measured_is_no_page() -> None:
    with pytest.raises(ValueError, match="no attack was recorded"):
        page_of([])


def test_attack_record__a_line_is_added_only_where_a_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "attack.jsonl"
    uses = [Use("a", "agent", 0, 5_000_000, 9_000_000), Use("c", "controller", 2, 7_000_000)]
    monkeypatch.delenv(FILE, raising=False)
    write("test_a1_x", Recovery(2.22, 3.14), uses, Lag(60, 0.1))
    assert not file.exists()
    monkeypatch.setenv(FILE, str(file))
    write("test_a1_x", Recovery(2.22, 3.14), uses, Lag(60, 0.1))
    (added,) = [json.loads(text) for text in file.read_text().splitlines()]
    assert (added["running_s"], added["recovered_s"], added["restarts"]) == (2.2, 3.1, 2)
    assert (added["pod_bytes"], added["lag_p99_s"]) == (9_000_000, 0.1)
    assert added["peak_bytes"] == {"agent": [5_000_000], "controller": [7_000_000]}


def test_lag_between__counts_of_all_agents_add_up_and_a_new_one_counts_from_its_start() -> None:
    end = float("inf")
    before = {"a": {0.1: 100.0, 0.25: 100.0, end: 100.0}}
    after = {"a": {0.1: 190.0, 0.25: 199.0, end: 200.0}, "b": {0.1: 100.0, 0.25: 100.0, end: 100.0}}
    assert lag_between(before, after) == Lag(200, 0.25)
    assert lag_between(after, after) == Lag(0, 0.1)
