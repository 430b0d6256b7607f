"""The board of all jobs: which mark a rank has, what is shown first, and what is left out where there is no room."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kcover_ebpf.api.incident import Phase, RestartAction, RestartMethod
from kcover_ebpf.model.rank_snapshot import RankPace
from kcover_ebpf.output.board_text import changes, lines_of, object_of
from kcover_ebpf.output.job_board import BoardJob, Mark
from tests.unit.support.board_builders import HANG, HUNG, big_jobs, board, incident
from tests.unit.support.report_builders import NOW_S, rank, report


def marks(job: BoardJob) -> dict[str, Mark]:
    return {cell.name: cell.mark for node in job.nodes for cell in node.cells}


def test_board__the_culprit_comes_first_and_says_what_is_left_of_the_patience() -> None:
    (job,) = board(*HUNG, incidents=[incident()])
    assert [node.node for node in job.nodes] == ["b", "a"]
    waits = dict.fromkeys(("0", "2", "3"), Mark.WAITS)
    assert marks(job) == {"1": Mark.CULPRIT, **waits}
    assert (job.state, job.acts_in_s, job.is_well) == ("Open", 41.0, False)
    assert job.text.startswith("will be restarted in 41 s if nothing moves")
    assert "the job was silent for 20 s before" in job.text


def test_board__a_restart_shows_its_step_and_no_patience() -> None:
    action = RestartAction(RestartMethod.IN_PLACE, "Kill", 1, NOW_S - 2.0)
    acting = replace(HANG, action=action).enter(Phase.SHUTTING_DOWN, NOW_S - 3.0, "killing them")
    (job,) = board(*HUNG, incidents=[incident(acting)])
    assert (job.state, job.acts_in_s) == ("ShuttingDown", None)
    assert job.text == "InPlace, step Kill for 2.0s: killing them"


def test_board__a_job_that_trains_has_its_ranks_by_pace_or_its_pods() -> None:
    well = report("a", rank(0), ranks=(), suspicious=False)
    paced = replace(well, paces=(RankPace(7, 0.5, 9, rank=4), RankPace(8, 0.5, 9, rank=5)))
    assert marks(board(well)[0]) == {"j-0": Mark.TRAINS}
    (job,) = board(paced)
    assert (marks(job), job.state, job.is_well) == (
        {"4": Mark.TRAINS, "5": Mark.TRAINS},
        "training",
        True,
    )
    (starting,) = board(report("a", rank(0), ranks=(), suspicious=False, trained=False))
    assert starting.state == "starting"


def test_board__what_is_not_reported_any_more_is_never_well() -> None:
    well = report("a", rank(0), ranks=(), suspicious=False)
    (job,) = board(well, now_s=NOW_S + 1000.0)
    assert marks(job) == {"j-0": Mark.UNKNOWN}
    assert (job.state, job.is_well) == ("unknown", False)


def test_board__an_incident_of_a_job_without_reports_is_shown_and_a_closed_one_is_not() -> None:
    (job,) = board(incidents=[incident()])
    assert (job.name, job.state, job.nodes) == ("j", "Open", ())
    assert board(incidents=[incident(replace(HANG, closed_s=1.0))]) == ()


def test_lines_of__signs_say_what_colours_say() -> None:
    jobs = board(*HUNG, incidents=[incident()])
    plain, coloured = lines_of(jobs, 200), lines_of(jobs, 200, colours=True)
    assert plain[2] == "ns/j Job  4 ranks on 2 nodes  Open"
    assert plain[-2:] == ["  b  1! 3~", "  a  0~ 2~"]
    assert plain[4] == "  culprit: 1, no progress for 9.5s, stopped"
    assert "\x1b[1;97;41m1!\x1b[0m" in coloured[-2]
    assert "\x1b" not in "".join(plain)


@pytest.mark.parametrize(("width", "height"), [(40, 10), (80, 24), (20, 4)])
def test_lines_of__no_line_is_wider_and_no_board_higher_than_the_terminal(
    width: int, height: int
) -> None:
    jobs = big_jobs()
    lines = lines_of(jobs, width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= max(width, len("  and 120 more nodes"))


def test_lines_of__of_a_thousand_ranks_the_culprits_node_is_the_first() -> None:
    jobs = big_jobs()
    assert jobs[0].nodes[0].node == "n054"
    assert any("437!" in line for line in lines_of(jobs, 200, 50))


def test_changes__a_line_for_each_job_in_another_state() -> None:
    well = board(report("a", rank(0), ranks=(), suspicious=False))
    hung = board(*HUNG, incidents=[incident()])
    later = board(*HUNG, incidents=[incident()], now_s=NOW_S + 1.0)
    assert changes((), well) == ["ns/j training"]
    (line,) = changes(well, hung)
    assert line.startswith("ns/j Open culprit 1  will be restarted in 41 s")
    assert changes(hung, later) == [], "that time passes is no news"
    assert changes(hung, ()) == ["ns/j is gone"]


def test_object_of__marks_are_words() -> None:
    (job,) = board(*HUNG, incidents=[incident()])
    said = json.loads(json.dumps(object_of(job)))
    assert said["nodes"][0]["cells"][0] == {
        "name": "1",
        "mark": "culprit",
        "age_s": 9.5,
        "doing": "stopped",
    }
