"""The library of life: its table, and the row that comes from the lines of a run."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from bench.lifebench.job import RunningPhase, launched
from bench.lifebench.phase import BadTableError, Phase, chosen, phases_of
from bench.lifebench.results import Row, record, row_of, shown, summary, summary_shown
from bench.lifebench.runner import OWN, main, table
from testbed.workloads import network

PHASE = Phase("checkpoint", "storage", "rank 0 saves", "checkpoint.py", 60.0)
ENTRY = """
[[phase]]
name = "{name}"
kind = "storage"
normal = "rank 0 saves"
program = "checkpoint.py"
lasts_s = 60
{more}
"""
Lines = list[dict[str, Any]]
TRAINED: Lines = [
    {"event": "step", "rank": 0, "unix": 100.0},
    {"event": "step", "rank": 1, "unix": 100.2},
    {"event": "step", "rank": 1, "unix": 101.0},
    {"event": "phase_begin", "rank": 0, "unix": 120.0},
    {"event": "phase_end", "rank": 0, "unix": 140.0},
]


def verdict(kind: str, time_s: float, **more: Any) -> dict[str, Any]:
    return {"event": "verdict", "verdict": kind, "time": time_s, **more}


def entry(name: str = "checkpoint", more: str = "") -> str:
    return ENTRY.format(name=name, more=more)


def test_phases_of__an_entry_is_a_phase_and_the_rest_has_defaults() -> None:
    (phase,) = phases_of(entry(more='arguments = [1, "x"]\nneeds = ["torch"]'))
    assert (phase.name, phase.ranks, phase.launcher, phase.hosts) == ("checkpoint", 4, "loop", 1)
    assert phase.arguments == ("1", "x")
    assert phase.limit_s == 120 + 4 * 60


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "[[phase]] entries"),
        ("a = 1", "[[phase]] entries"),
        ("[[phase", "no TOML"),
        ("[[phase]]\nname = 'a'", "a: kind is missing"),
        (entry() + entry(), "checkpoint is listed twice"),
        (entry(more="colour = 1"), "unknown field colour"),
        (entry(more="launcher = 'srun'"), "launcher must be one of"),
        (entry(more="needs = ['gpu']"), "unknown need gpu"),
        (entry(more="stdin = 'file'"), "stdin must be"),
        (entry(more="hosts = 3"), "4 ranks of loop on 3 hosts"),
        (entry(more="hosts = 2\nlauncher = 'mpi'"), "4 ranks of mpi on 2 hosts"),
    ],
)
def test_phases_of__a_bad_table_says_what_is_wrong(text: str, reason: str) -> None:
    with pytest.raises(BadTableError) as caught:
        phases_of(text)
    assert reason in str(caught.value)


def test_chosen__globs_match_names_and_kinds() -> None:
    phases = phases_of(
        entry("save-a") + entry("save-b") + entry("load").replace("storage", "input")
    )
    assert [phase.name for phase in chosen(phases, "")] == ["save-a", "save-b", "load"]
    assert [phase.name for phase in chosen(phases, "*-b, inp*")] == ["save-b", "load"]


def test_table__every_program_of_our_own_phases_exists() -> None:
    found = table([OWN], "")
    assert len(found) >= 3
    missing = [
        phase.name
        for folder, phase in found
        if not (folder / phase.program).is_file()
        or not (folder / (phase.beside or phase.program)).is_file()
    ]
    assert missing == []


def test_table__our_own_phases_are_thirty_and_more_and_ten_of_them_have_several_hosts() -> None:
    phases = [phase for _, phase in table([OWN], "")]
    assert len(phases) >= 32
    assert sum(phase.hosts > 1 for phase in phases) >= 10
    assert all(20 <= phase.lasts_s <= 90 for phase in phases if phase.kind != "long")


def runs_of(path: Path) -> set[str]:
    """The keys of a program's table RUNS, without importing the framework that it needs."""
    for statement in ast.parse(path.read_text()).body:
        if isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) == "RUNS":
            assert isinstance(statement.value, ast.Dict)
            return {ast.literal_eval(key) for key in statement.value.keys if key}
    return set()


def test_table__each_run_of_a_program_is_one_of_our_own_phases() -> None:
    asked: dict[str, set[str]] = {}
    for _, phase in table([OWN], ""):
        asked.setdefault(phase.program, set()).update(phase.arguments)
    tables = {name: runs_of(OWN / name) for name in asked if name.endswith(".py")}
    assert {name: keys for name, keys in tables.items() if keys} == {
        name: asked[name] for name, keys in tables.items() if keys
    }


def test_row_of__a_job_that_completes_without_a_verdict() -> None:
    row = row_of(PHASE, 3, TRAINED, [(0, [{"event": "start"}, verdict("WORKING", 105.0)])])
    assert (row.completed, row.ended, row.reported, row.problem) == (True, False, False, "")
    assert (row.trained_s, row.phase_s, row.steps, row.run) == (20.0, 20.0, 2, 3)


def test_row_of__verdicts_are_timed_from_the_beginning_of_the_phase() -> None:
    lines = [
        verdict("UNKNOWN", 118.0),
        verdict("HUNG", 127.5, cause="blocked_lock", culprit={"rank": 0}, certainty="suspected"),
    ]
    row = row_of(PHASE, 0, TRAINED, [(0, lines)])
    assert [(v.verdict, v.after_s, v.is_fault) for v in row.verdicts] == [
        ("UNKNOWN", -2.0, False),
        ("HUNG", 7.5, True),
    ]
    assert row.verdicts[1].certainty == "suspected"
    assert row.reported
    assert not row.ended
    assert "8 s HUNG suspected blocked_lock rank 0" in shown(row)


def test_row_of__a_verdict_says_who_waits_for_whom_and_when_the_job_is_ended() -> None:
    graph = ["ranks 1, 2 -> collective -> rank 0 -> thread 41"]
    lines = [
        verdict("HUNG", 123.0, graph=graph, acts_at=240.0, acts_why="little is known"),
        verdict("UNKNOWN", 124.0, graph=None, acts_at=None, acts_why=None),
    ]
    first, second = row_of(PHASE, 0, TRAINED, [(0, lines)]).verdicts
    assert (first.graph, first.acts_s, first.acts_why) == (tuple(graph), 120.0, "little is known")
    assert (second.graph, second.acts_s, second.acts_why) == ((), None, "")


def test_row_of__unknown_alone_is_no_fault() -> None:
    row = row_of(PHASE, 0, TRAINED, [(0, [verdict("UNKNOWN", 130.0)])])
    assert not row.reported
    assert len(row.verdicts) == 1


def test_row_of__one_host_of_two_that_was_ended_counts_as_ended_though_the_other_failed() -> None:
    row = row_of(PHASE, 0, TRAINED, [(1, []), (75, [verdict("HUNG", 131.0)])])
    assert row.ended
    assert row.counts
    assert row.verdicts[0].host == 1


@pytest.mark.parametrize(
    ("code", "events", "problem"),
    [
        (1, TRAINED, "ended by itself with code 1"),
        (None, TRAINED, "took too long and was killed"),
        (0, TRAINED[:3], "never began its phase"),
        (0, TRAINED, ""),
        (75, TRAINED[:1], ""),
    ],
)
def test_row_of__a_job_that_fails_by_itself_counts_nowhere(
    code: int | None, events: Lines, problem: str
) -> None:
    row = row_of(PHASE, 0, events, [(code, [])])
    assert row.problem == problem
    assert row.counts is (problem == "")


@pytest.mark.parametrize("code", [0, 75])
def test_row_of__a_run_beside_which_a_program_failed_counts_nowhere(code: int) -> None:
    row = row_of(PHASE, 0, TRAINED, [(code, [])], beside_code=1)
    assert row.problem == "the program outside the job failed with code 1"
    assert row_of(PHASE, 0, TRAINED, [(code, [])], beside_code=0).problem == ""


def test_summary__counts_only_what_was_carried_out() -> None:
    rows = [
        row_of(PHASE, 0, TRAINED, [(0, [])]),
        row_of(PHASE, 1, TRAINED, [(0, [verdict("LOST_LINK", 121.0)])]),
        row_of(PHASE, 2, TRAINED, [(75, [verdict("HUNG", 121.0)])]),
        row_of(PHASE, 3, TRAINED, [(1, [verdict("CRASHED", 121.0)])]),
        Row("other", "storage", 0, skipped="no PyTorch"),
    ]
    found = summary(rows)
    assert found == {
        "runs": 3,
        "ended": 1,
        "reported": 2,
        "suspected": 0,
        "hours": 0.03,
        "invalid": 1,
        "skipped": 1,
    }
    assert summary_shown(found).startswith("ended 1 of 3, reported as a fault 2, only suspected 0")


def test_summary__what_was_only_suspected_is_no_report() -> None:
    row = row_of(PHASE, 0, TRAINED, [(0, [verdict("UNKNOWN", 125.0, certainty="suspected")])])
    assert (row.suspected, row.reported, row.lasted_s) == (True, False, 40.0)
    assert summary([row])["suspected"] == 1


def test_record__is_json_and_says_whether_it_was_reported() -> None:
    row = row_of(PHASE, 2, TRAINED, [(75, [verdict("HUNG", 121.0)])])
    line = json.loads(json.dumps(record(row)))
    assert line["reported"] is True
    assert line["exit_codes"] == [75]
    assert line["verdicts"][0]["verdict"] == "HUNG"


def test_launched__ranks_of_the_second_host_are_numbered_after_those_of_the_first() -> None:
    phase = Phase("a", "b", "c", "d.py", 1.0, hosts=2)
    words = " ".join(launched(phase, ["d"], 1, "10.0.0.1", 5000))
    assert "--ranks 2 --first 2 --world 4 -- d" in words


@pytest.mark.parametrize(("hosts", "address"), [(1, "127.0.0.1"), (2, network.address(2))])
def test_variables__ranks_and_what_runs_beside_them_know_the_address_of_the_latter(
    hosts: int, address: str, tmp_path: Path
) -> None:
    phase = Phase("a", "b", "c", "d.py", 1.0, hosts=hosts, beside="e.py")
    run = RunningPhase(phase, tmp_path, tmp_path, "kfb1-2", None)
    for host in range(hosts + 1):
        variables = run.variables("10.0.0.1", 5000, host)
        assert variables["LIFE_ADDRESS"] == address
        assert variables["LIFE_HOST"] == str(host)
        assert variables.get("LIFE_NETWORK") == ("kfb1-2" if hosts > 1 else None)


def test_main__a_folder_without_a_table_is_bad_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--list", "--phases", str(tmp_path)]) == 2
    assert "phases.toml: No such file" in capsys.readouterr().err


def test_main__a_pattern_that_matches_nothing_is_bad_usage(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--list", "--only", "no-such-phase"]) == 2
    assert "see --list" in capsys.readouterr().err
