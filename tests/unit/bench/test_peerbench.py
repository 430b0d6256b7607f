"""The bench beside other tools: how words and events of an attempt become figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.peerbench import report
from bench.peerbench.daemons import problems, unhealthy
from bench.peerbench.figures import figures, trains_again_s, typical
from bench.peerbench.runner import chosen
from bench.peerbench.stack_loop import is_hang, odd_one
from bench.peerbench.ways import WAYS, by_sensor, by_torchrun, command
from tools import pages

WORLD, CULPRIT = 2, 1
Lines = list[dict[str, Any]]


def started(pids: tuple[int, int], at_s: float) -> Lines:
    return [
        {"event": "start", "rank": rank, "pid": pid, "unix": at_s} for rank, pid in enumerate(pids)
    ]


def stepped(pids: tuple[int, int], at_s: float) -> Lines:
    return [
        {"event": "step", "rank": rank, "pid": pid, "unix": at_s} for rank, pid in enumerate(pids)
    ]


FAULT: Lines = [{"event": "fault", "pid": 9, "rank": None, "unix": 100.0}]
BEFORE = started((1, 2), 80.0) + stepped((1, 2), 99.0)
AGAIN = started((3, 4), 112.0) + stepped((3, 4), 118.0)


def word(at_s: float, rank: int | None) -> dict[str, Any]:
    return {"unix": at_s, "rank": rank, "text": "something is wrong"}


def test_figures__times_run_from_the_fault() -> None:
    found = figures(BEFORE + FAULT + AGAIN, [word(103, None), word(105, 1)], CULPRIT, WORLD)
    assert (found.detected_s, found.named_s, found.again_s) == (3.0, 5.0, 18.0)
    assert not found.named_wrong


def test_figures__a_wrong_name_first_is_wrong_though_the_right_one_follows() -> None:
    found = figures(BEFORE + FAULT + AGAIN, [word(103, 0), word(105, 1)], CULPRIT, WORLD)
    assert found.named_wrong
    assert found.named_s is None


def test_figures__words_before_the_fault_and_after_the_recovery_do_not_count() -> None:
    found = figures(BEFORE + FAULT + AGAIN, [word(90, 1), word(130, 1)], CULPRIT, WORLD)
    assert found.named_s is None
    assert found.detected_s == 12.0, "who starts the ranks again has noticed"


def test_trains_again_s__a_rank_that_was_not_started_again_does_not_train_again() -> None:
    half = [entry for entry in AGAIN if entry["rank"] == 0]
    assert trains_again_s(BEFORE + FAULT + half, WORLD) is None
    steps_of_the_old = stepped((1, 2), 101.0)
    assert trains_again_s(BEFORE + FAULT + steps_of_the_old, WORLD) is None


@pytest.mark.parametrize(("more", "ended"), [([], False), (AGAIN, True)])
def test_figures__a_quiet_phase_is_ended_or_left_alone(more: Lines, ended: bool) -> None:
    phase: Lines = [{"event": "phase_begin", "pid": 1, "rank": 0, "unix": 100.0}]
    found = figures(BEFORE + phase + more, [], CULPRIT, WORLD)
    assert found.ended_healthy is ended
    assert found.detected_s is None


def test_typical__a_figure_that_came_in_half_of_the_attempts_has_no_median() -> None:
    assert typical([{"x": 1.0}, {"x": None}], "x") is None
    assert typical([{"x": 1.0}, {"x": 3.0}, {"x": None}], "x") == 2.0


def test_by_torchrun__torchrun_names_the_worker_that_failed_first() -> None:
    line = "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 2 (pid: 7) of"
    found = by_torchrun(line)
    assert found is not None
    assert found.rank == 2
    assert by_torchrun("WARNING: Sending process 7 closing signal SIGTERM") is None


def test_by_sensor__unknown_counts_only_with_a_name() -> None:
    line: dict[str, Any] = {"event": "verdict", "verdict": "UNKNOWN", "culprit": None}
    assert by_sensor(line) is None
    named = by_sensor(line | {"culprit": {"rank": 3}})
    assert named is not None
    assert named.rank == 3
    assert by_sensor({"event": "verdict", "verdict": "WORKING", "culprit": {"rank": 3}}) is None


def test_is_hang__stacks_that_stay_name_the_odd_one() -> None:
    waiting = {0: "recv", 1: "recv", 2: "acquire"}
    assert odd_one(waiting) == 2
    assert odd_one({0: "recv", 1: "recv"}) is None
    assert odd_one({0: "recv", 1: "recv", 2: "a", 3: "b"}) is None
    assert is_hang([waiting] * 3)
    assert not is_hang([{0: "step"}, waiting, waiting])
    assert not is_hang([waiting] * 2)


def test_problems__of_the_daemons() -> None:
    metrics = '# HELP x\nproblem_counter{reason="TaskHung"} 2\nproblem_gauge{type="a"} 0\n'
    assert problems(metrics) == {'reason="TaskHung"': 2.0, 'type="a"': 0.0}
    states = [
        {"component": "disk", "states": [{"health": "Healthy"}]},
        {"component": "os", "states": [{"health": "Degraded", "reason": "too many zombies"}]},
        {"component": "none", "states": None},
    ]
    assert unhealthy(json.dumps(states)) == {"os: too many zombies": 1.0}


def test_chosen__an_unknown_name_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        chosen("torchrun,magic", WAYS)
    assert error.value.code == 2
    assert "no 'magic'; there are: torchrun" in capsys.readouterr().err


def test_command__a_way_comes_before_torchrun() -> None:
    argv = command(WAYS["exit-codes"], "/f", "/e", ["--step-s", "1"])
    assert argv[:3] == ["/usr/bin/python3", "-m", "bench.peerbench.exit_codes"]
    assert argv[argv.index("--max_restarts") + 1] == "0"


def record(way: str, **more: Any) -> dict[str, Any]:
    values = {"detected_s": 2.0, "named_s": 2.5, "named_wrong": False, "again_s": 9.0}
    cost = {"ended_healthy": False, "cores": 0.01, "resident_bytes": 3e7}
    return {"way": way, "fault": "stopped", **values, **cost, **more}


def test_write__the_tables_say_who_is_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = record("torchrun", named_s=None, named_wrong=True, detected_s=75.0, again_s=81.0)
    ended = record("py-spy", fault="checkpoint", ended_healthy=True)
    daemon = {"way": "gpud", "hours": 1.0, "problem": "", "cores": 0.02, "resident_bytes": 9e7}
    found = [record("kcover-ebpf"), wrong, ended, daemon | {"reported": ["os: zombies"]}]
    results = tmp_path / "results"
    results.mkdir()
    for number, entry in enumerate(found):
        (results / f"{number}.json").write_text(json.dumps(entry))
    monkeypatch.setattr(report, "SVG", tmp_path / "peers.svg")
    monkeypatch.setattr(pages, "DATA", tmp_path / "data")
    assert report.write(results) == 0
    printed = capsys.readouterr().out
    assert "| a rank is stopped | 75.0 / wrong 1 of 1 / 81.0 | - | 2.0 / 2.5 / 9.0 |" in printed
    assert "**ended 1 of 1**" in printed
    assert "- gpud, 1.0 hours: os: zombies" in printed
    assert len((tmp_path / "data/peers.jsonl").read_text().splitlines()) == 4
    assert "kcover-ebpf: 9 s" in (tmp_path / "peers.svg").read_text()


def test_write__a_report_without_results_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report.write(tmp_path) == 2
    assert "run tools/peerbench/run first" in capsys.readouterr().err
