"""The run that shows what a number that decides changes if it is halved or doubled."""

from __future__ import annotations

from typing import Any

from bench.tapebench.deciding import Number
from bench.tapebench.thresholds import markdown, moved, played, runs_left, tapes

FAULT = {
    "shape": "a",
    "seed": 1,
    "fault": "stop",
    "rank": 3,
    "named": [3],
    "detected_s": 3.0,
    "text": "HUNG stopped",
    "certainty": "proven",
    "acts_s": 5.0,
    "passes": 10,
}
HEALTHY = {"shape": "b", "seed": 1, "fault": "", "hours": 0.3, "passes": 9, "reported": {}}


def with_change(**change: Any) -> dict[str, int]:
    """What moved on one faulty tape, besides the detail that something did."""
    found = moved([FAULT | change], [FAULT])
    assert found.pop("detail", 0) == bool(change)
    return found


def test_runs_left__what_the_file_has_is_not_played_again() -> None:
    number = Number("diagnosis", "A", "1.0", ("judge",))
    assert runs_left((), [number]) == [(number, 0.5), (number, 2.0)]
    done = [{"threshold": "as shipped", "factor": 1.0}, {"threshold": "A", "factor": 0.5}]
    assert runs_left(done, [number]) == [(number, 2.0)]


def test_moved__each_kind_of_change_is_counted() -> None:
    assert with_change() == {}
    assert with_change(passes=11, detected_s=3.9, acts_s=5.9) == {}
    assert with_change(detected_s=None, named=[]) == {"missed": 1}
    assert with_change(named=[1, 3]) == {"wrong rank": 1}
    assert with_change(named=[]) == {"other rank": 1}
    assert with_change(certainty="inferred", acts_s=90.0) == {"other certainty": 1}
    assert with_change(acts_s=None) == {"other acts_at": 1}
    assert with_change(detected_s=4.5) == {"later": 1}
    assert with_change(detected_s=1.5, text="HUNG frozen") == {"other cause": 1, "sooner": 1}
    assert moved([FAULT], [FAULT | {"detected_s": None}]) == {"found": 1, "detail": 1}


def test_moved__a_healthy_job_that_is_ended_or_reported() -> None:
    ended = HEALTHY | {"shutdown": "HUNG stopped", "reported": {"HUNG stopped names a rank": 1}}
    assert moved([ended], [HEALTHY]) == {"healthy ended": 1, "healthy reported": 1, "detail": 1}
    loading = HEALTHY | {"reported": {"WORKING loading": 2}}
    assert moved([loading], [HEALTHY]) == {"detail": 1}


def test_tapes__every_fault_and_every_kind_of_waiting_is_among_them() -> None:
    faults = [work[2] for work in tapes()]
    assert len(set(faults) - {""}) == 11
    assert len({work[0] for work in tapes("life-*") if not work[2]}) == 10
    assert list(tapes()) == list(tapes())


def test_markdown__one_row_for_each_number_with_what_moved() -> None:
    shipped = {"threshold": "as shipped", "factor": 1.0, "faulty": 2, "missed": 0, "wrong": 0}
    lines: list[dict[str, Any]] = [
        shipped | {"healthy": 1, "hours": 0.3, "ended": 0},
        {"threshold": "VICTIM_S", "factor": 0.5, "moved": {"later": 3, "detail": 4}},
        {"threshold": "VICTIM_S", "factor": 2.0, "moved": {"detail": 4}},
        {"threshold": "INERT_S", "factor": 0.5, "moved": {}},
    ]
    page = markdown(lines)
    assert "| `VICTIM_S` | `0.4` | judge | 3 later | same |" in page
    assert "| `INERT_S` | `8.0` | judge | untouched | - |" in page


def test_played__a_changed_number_changes_what_the_judge_does() -> None:
    signs = Number("diagnosis", "TRAINING_SIGNS", "8", ("clock",))
    shipped, never = played(None, 1.0, "slow-start"), played(signs, 1e6, "slow-start")
    assert len(shipped) == len(never) > 0
    assert shipped != never
