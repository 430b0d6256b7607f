"""The run that shows how much verdicts depend on thresholds that were chosen."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path
from types import ModuleType

from bench.tapebench.thresholds import CHOSEN, compared, markdown, play, runs_left, summary
from kcover_ebpf.tunables import certainty, diagnosis

SHIPPED = {
    "hours": 2.0,
    "ended": 0,
    "faults": 1,
    "right": 1,
    "wrong": 0,
    "tapes": {"a 1 ": [{}, None, None, 10], "b 1 stop": [{"HUNG": 1}, "HUNG", [3], 5]},
}


def documented(module: ModuleType) -> dict[str, str]:
    """Each tunable of a module with its docstring."""
    body = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8")).body
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
    texts = documented(diagnosis) | documented(certainty)
    chosen = {name for name, text in texts.items() if "Chosen" in text or "chosen by hand" in text}
    # the rate of the prior is chosen with its shape, below which the reason is
    assert chosen | {"PRIOR_RATE_PER_H", "PRIOR_SHAPE"} == set(CHOSEN)
    assert len(CHOSEN) == len(set(CHOSEN)) <= 60


def test_runs_left__what_the_file_has_is_not_played_again() -> None:
    assert runs_left((), ("A",)) == [("as shipped", 1.0), ("A", 0.5), ("A", 2.0)]
    done = [{"threshold": "as shipped", "factor": 1.0}, {"threshold": "A", "factor": 0.5}]
    assert runs_left(done, ("A",)) == [("A", 2.0)]


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
