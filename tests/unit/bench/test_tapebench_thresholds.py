"""The run that shows how much verdicts depend on thresholds that were chosen."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path

from bench.tapebench.thresholds import CHOSEN, compared, markdown, play, summary
from kcover_ebpf.tunables import diagnosis

SHIPPED = {
    "hours": 2.0,
    "ended": 0,
    "faults": 1,
    "right": 1,
    "wrong": 0,
    "tapes": {"a 1 ": [{}, None, None, 10], "b 1 stop": [{"HUNG": 1}, "HUNG", [3], 5]},
}


def documented() -> dict[str, str]:
    """Each tunable of the judge with its docstring."""
    body = ast.parse(Path(diagnosis.__file__).read_text(encoding="utf-8")).body
    return {
        target.id: statement.value.value
        for one, statement in itertools.pairwise(body)
        if isinstance(one, ast.Assign) and isinstance(statement, ast.Expr)
        for target in one.targets
        if isinstance(target, ast.Name)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    }


def test_chosen__is_every_threshold_of_the_judge_without_a_measurement() -> None:
    chosen = {name for name, text in documented().items() if "Chosen" in text}
    assert chosen == set(CHOSEN)


def test_compared__a_verdict_and_a_pass_that_differ_are_counted_apart() -> None:
    other = SHIPPED | {
        "ended": 1,
        "tapes": {"a 1 ": [{}, "HUNG", None, 12], "b 1 stop": [{"HUNG": 1}, "HUNG", [3], 6]},
    }
    line = compared("X", 2.0, other, SHIPPED)
    assert (line["ended"], line["verdicts_differ"], line["passes_differ"]) == (1, 1, 2)
    assert compared("X", 1.0, SHIPPED, SHIPPED)["passes_differ"] == 0
    assert "| `X` | 2 | 2.0 | 1 | 1 | 1 | 0 | 1 | 2 |" in markdown([line])


def test_summary__another_rank_named_beside_the_right_one_is_wrong() -> None:
    fault = {"shape": "s", "seed": 1, "fault": "stop", "rank": 2}
    lines = [
        fault | {"named": [2]},
        fault | {"seed": 2, "named": [1, 2]},
        fault | {"seed": 3, "named": []},
        {"shape": "s", "seed": 1, "fault": "", "hours": 0.5, "shutdown": "HUNG"},
    ]
    found = summary(lines)
    assert (found["faults"], found["right"], found["wrong"]) == (3, 1, 1)
    assert (found["hours"], found["ended"]) == (0.5, 1)


def test_play__a_changed_threshold_changes_what_the_judge_does() -> None:
    words = ["--hours=0.3", "--fault-rounds=0", "--seed=3"]
    shipped, never = play("TRAINING_SIGNS", 1.0, words), play("TRAINING_SIGNS", 1e6, words)
    assert len(shipped) == len(never) > 0
    assert shipped != never
