"""The table of verdicts and causes: complete, and without what is never reported."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from kcover_ebpf.diagnosis.evidence.snapshot import Finding
from kcover_ebpf.model.verdict import CAUSES, Cause, VerdictKind
from kcover_ebpf.output import metrics

PACKAGE = Path(metrics.__file__).parents[1]
SOURCES = [
    path
    for folder in ("diagnosis", "gang", "controller", "agent")
    for path in sorted((PACKAGE / folder).rglob("*.py"))
    if path.name != "verdict.py"
]


def said() -> set[Cause]:
    """Causes that a judgement names; `Cause.X` in its source."""
    found = set()
    for source in SOURCES:
        for node in ast.walk(ast.parse(source.read_text())):
            match node:
                case ast.Attribute(value=ast.Name(id="Cause"), attr=name):
                    found.add(Cause[name])
    return found


def test_pairs__each_cause_has_a_verdict_and_code_that_emits_it() -> None:
    listed = set().union(*CAUSES.values())
    assert listed == set(Cause)
    assert listed - said() == set()
    assert set(CAUSES) == set(VerdictKind)


@pytest.mark.parametrize("kind", [kind for kind in VerdictKind if kind is not VerdictKind.UNKNOWN])
def test_pairs__quiet_causes_are_no_faults(kind: VerdictKind) -> None:
    assert bool(CAUSES[kind] & CAUSES[VerdictKind.WORKING]) is (kind is VerdictKind.WORKING)


def test_pairs__metrics_have_each_from_the_start_and_no_other() -> None:
    sink = metrics.MetricsSink(lambda: (), dict)
    (family,) = [item for item in sink.registry.collect() if item.name == "kcover_verdicts"]
    shown = {(sample.labels["verdict"], sample.labels["cause"]) for sample in family.samples}
    listed = {(kind.value, cause.value) for kind, causes in CAUSES.items() for cause in causes}
    assert shown == listed


def test_pairs__tests_of_the_judge_are_held_to_the_table() -> None:
    with pytest.raises(AssertionError):
        Finding(VerdictKind.DEADLOCK, Cause.WAIT_CYCLE, 0)
