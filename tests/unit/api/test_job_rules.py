"""What a user expects of a job's log: a line in time, a line again, a number within limits; and how far it has come."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.fault_policy import policy_of
from kcover_ebpf.api.job_rules import (
    JobRule,
    RuleAction,
    checked,
    of_table,
)
from kcover_ebpf.api.known_lines import KnownLine
from kcover_ebpf.api.log_report import ContainerLog
from kcover_ebpf.cli import entry
from kcover_ebpf.cli.logs import logs
from kcover_ebpf.errors import ObjectError, PolicyError
from kcover_ebpf.gang import job_rules
from kcover_ebpf.gang.job_rules import BrokenRule
from kcover_ebpf.logs.container_log import ContainerLogReader
from kcover_ebpf.logs.log_files import Chunk
from kcover_ebpf.model.verdict import Certainty, Verdict, VerdictKind
from tests.unit.support.report_builders import NOW_S, case, rank, report

HINTS = Path(__file__).resolve().parents[3] / "hints"
LOSS = JobRule(
    "loss", KnownLine.LOSS, within_seconds=60, every_seconds=20, action=RuleAction.RESTART
)
LOW = JobRule("low loss", KnownLine.LOSS, below=5.0, times=2)
START_S = NOW_S - 100.0
NODES = {"uid-0": "a", "uid-1": "b"}


def read(
    *printed: tuple[float, str], rules: tuple[JobRule, ...] = (LOSS,), uid: str = "uid-0",
    start: int = 0, reader: ContainerLogReader | None = None, is_first: bool = True,
) -> ContainerLog | None:  # fmt: skip
    """The log of a container whose lines were printed so long after its start."""
    reader = reader or ContainerLogReader(uid, "main", (), job_rules=rules)
    lines = [(0.0, "starting"), *printed]
    block = "".join(
        f"{rfc3339.to_text(START_S + at_s)} stderr F {text}\n" for at_s, text in lines
    ).encode()
    reader.feed(Chunk(start, block, is_first=is_first), NOW_S)
    return reader.summary(NOW_S)


def broken(
    *logs: ContainerLog | None, rules: tuple[JobRule, ...] = (LOSS,)
) -> tuple[BrokenRule, ...]:
    here: dict[str, list[ContainerLog]] = {"a": [], "b": []}
    for log in logs:
        if log is not None:
            here[NODES[log.pod_uid]].append(log)
    reports = [
        report(node, rank(number), logs=tuple(here[node]), arrived_s=NOW_S)
        for number, node in enumerate("ab")
        if here[node]
    ]
    nodes = NODES if len(logs) > 1 else {"uid-0": "a"}
    return job_rules.broken(rules, reports, nodes, NOW_S)


CASES = {
    "a line that comes again and again": ([(30, "loss: 2.0"), (90, "loss: 1.9")], []),
    "a line that stopped": ([(30, "loss: 2.0"), (70, "loss: 1.9")], ["the last such line came 30 s ago"]),
    "a line that never came": ([], ["no such line within 100 s of the start"]),
    "a line of another form": ([(90, "val loss is good")], ["no such line within 100 s of the start"]),
}  # fmt: skip


@pytest.mark.parametrize(("printed", "wrong"), CASES.values(), ids=CASES)
def test_broken__a_line_that_is_missing(printed: list[tuple[float, str]], wrong: list[str]) -> None:
    found = broken(read(*printed))
    assert [rule.text for rule in found] == [f"rule loss: {text}" for text in wrong]
    assert all(rule.action is RuleAction.RESTART for rule in found)


def test_broken__one_rank_that_prints_is_enough() -> None:
    silent = read(uid="uid-1")
    assert broken(read((95, "loss: 2.0")), silent) == ()
    (found,) = broken(read((30, "loss: 2.0")), silent)
    assert found.since_s == pytest.approx(START_S + 50, abs=0.1)


def test_broken__where_a_pod_is_not_reported_no_line_is_missing() -> None:
    assert broken(read(), None) == ()


def test_broken__a_log_that_was_not_read_from_its_beginning_misses_no_first_line() -> None:
    assert broken(read(is_first=False)) == ()


def test_broken__the_log_before_a_restart_does_not_count() -> None:
    reader = ContainerLogReader("uid-0", "main", (), job_rules=(LOSS,))
    before = read((99, "loss: 2.0"), reader=reader)
    after = read(start=1, reader=reader)
    assert before is not None
    assert after is not None
    both = report("a", rank(0), logs=(before, after), arrived_s=NOW_S)
    (found,) = job_rules.broken((LOSS,), [both], {"uid-0": "a"}, NOW_S)
    assert found.text.endswith("of the start")


NUMBERS = {
    "in bounds": (["2.0", "1.0"], False),
    "once outside": (["2.0", "9.0"], False),
    "outside again and again": (["9.0", "8.0"], True),
    "and back": (["9.0", "8.0", "2.0"], False),
    "no number": (["nan", "nan"], True),
    "without bounds": (["inf", "1e3"], True),
}


@pytest.mark.parametrize(("values", "is_broken"), NUMBERS.values(), ids=NUMBERS)
def test_broken__a_number_outside_of_its_limits(values: list[str], is_broken: bool) -> None:
    printed = [(90 + index, f"step {index} lm loss: {value}") for index, value in enumerate(values)]
    found = broken(read(*printed, rules=(LOW,)), rules=(LOW,))
    assert bool(found) is is_broken
    assert all("not below 5" in rule.text and rule.pod_uid == "uid-0" for rule in found)


BAD = {
    "no expectation": (JobRule("x", KnownLine.LOSS), "needs withinSeconds"),
    "no line": (JobRule("x", every_seconds=5), "needs either line or pattern"),
    "both": (JobRule("x", KnownLine.LOSS, "a", every_seconds=5), "needs either line or pattern"),
    "no number in the pattern": (JobRule("x", pattern="loss", below=1.0), "need a group"),
    "what RE2 does not take": (JobRule("x", pattern="(?=a)", every_seconds=5), "pattern"),
    "no time": (JobRule("x", pattern="a", every_seconds=0), "from 1 to"),
    "no name": (JobRule("", pattern="a", every_seconds=5), "needs a name"),
}


@pytest.mark.parametrize(("rule", "words"), BAD.values(), ids=BAD)
def test_checked__a_rule_that_says_nothing_is_refused_in_one_line(
    rule: JobRule, words: str
) -> None:
    with pytest.raises(PolicyError, match=words) as caught:
        checked([rule])
    assert "\n" not in str(caught.value)


def test_checked__too_many_and_equal_names_are_refused() -> None:
    with pytest.raises(PolicyError, match="at most 8"):
        checked([replace(LOSS, name=str(number)) for number in range(9)])
    with pytest.raises(PolicyError, match="the same name"):
        checked([LOSS, LOSS])


def test_policy__has_the_rules_of_its_jobs() -> None:
    rule = {
        "name": "loss",
        "line": "loss",
        "withinSeconds": 60,
        "everySeconds": 20,
        "action": "Restart",
    }
    found = policy_of({"metadata": {"name": "p"}, "spec": {"jobRules": [rule]}})
    assert found.policy.job_rules == (LOSS,)
    with pytest.raises(ObjectError, match="jobRules: loss: needs"):
        policy_of(
            {"metadata": {"name": "p"}, "spec": {"jobRules": [{"name": "loss", "line": "loss"}]}}
        )


def test_of_table__the_same_in_a_file() -> None:
    text = '[[job_rule]]\nname = "loss"\nline = "loss"\nwithin_seconds = 60\nevery_seconds = 20\naction = "Restart"\n'
    assert of_table(tomllib.loads(text), "rules x") == (LOSS,)
    for wrong in ("hue = 1", 'times = "a"', 'action = "Shout"'):
        with pytest.raises(PolicyError, match="rules x: loss: "):
            of_table(tomllib.loads(text.replace('action = "Restart"', wrong)), "rules x")


def test_logs__a_saved_log_is_tried_on_rules(tmp_path: Path) -> None:
    rules, log = tmp_path / "rules.toml", tmp_path / "0.log"
    rules.write_text('[[job_rule]]\nname = "loss"\nline = "loss"\nevery_seconds = 20\n')
    log.write_text(
        "2026-11-28T10:00:00Z stdout F loss: 2.0\n2026-11-28T10:00:10Z stdout F loss: 1.9\n"
        "2026-11-28T10:01:00Z stdout F waiting\n"
    )
    done = CliRunner().invoke(logs, [str(log), "--job-rules", str(rules)])
    assert done.output == "job rule loss: broken, the last line came 50 s before the end\n"
    done = CliRunner().invoke(logs, [str(log), "--job-rules", str(rules), "-o", "json"])
    assert json.loads(done.output)["job_rule"]["rule"] == "loss"
    log.write_text("loss: 2.0\n")
    assert entry.call(logs, "kcover-ebpf", [str(log), "--job-rules", str(rules)]) == 2


# --- how far it has come


def test_progress__steps_checkpoints_and_what_is_done_again() -> None:
    reader = ContainerLogReader("uid-0", "main", ())
    first = read(
        (10, "step 1 loss 3"), (50, "Saved checkpoint to /ckpt/step-100"), (60, "step 134 loss 2"),
        reader=reader,
    )  # fmt: skip
    assert first is not None
    assert first.progress is not None
    assert (first.progress.step, first.progress.checkpoint_step) == (134, 100)
    assert (first.progress.unsaved_steps, first.progress.redone_steps) == (34, None)
    assert first.progress.age_s == pytest.approx(40, abs=0.1)
    again = read((70, "step 101 loss 2"), (95, "step 110 loss 2"), start=1, reader=reader)
    assert again is not None
    assert again.progress is not None
    assert (again.progress.step, again.progress.redone_steps) == (110, 34)
    assert again.progress.checkpoint_step is None


def test_progress__numbers_that_it_prints_beside_a_step() -> None:
    found = read(
        (10, "step 100 | loss: 3.5 | consumed tokens: 1,000,000"),
        (30, "step 110 | loss: nan"),
        (40, "step 115 | loss: 3.25 | consumed tokens: 1,150,000"),
    )
    assert found is not None
    assert found.progress is not None
    assert (found.progress.loss, found.progress.tokens) == (3.25, 1_150_000)
    assert found.progress.step_s == pytest.approx(2.0, abs=0.01)


def test_progress__a_bar_of_one_epoch_moves_and_is_no_step() -> None:
    """Its number begins anew with each epoch: nothing is done again where it does."""
    reader = ContainerLogReader("uid-0", "main", ())
    bar = "Epoch {0}:  1%|#  | {1}/100 [00:42<00:58]"
    first = read((10, bar.format(0, 90)), (60, bar.format(1, 3)), reader=reader)
    assert first is not None
    assert first.progress is not None
    assert (first.progress.step, first.progress.unsaved_steps) == (None, None)
    assert first.progress.age_s == pytest.approx(40, abs=0.1)
    again = read((70, bar.format(0, 1)), start=1, reader=reader)
    assert again is not None
    assert again.progress is not None
    assert again.progress.redone_steps is None


CHECKPOINTS = {
    "Megatron-LM": ("  successfully saved checkpoint from iteration     100 to /ckpt", 100),
    "Hugging Face": ("Saving model checkpoint to /out/checkpoint-100", None),
    "torchtitan": ("Finished saving the checkpoint (or staging if async is enabled) in 3.1 seconds.", 134),
    "DeepSpeed": ("[Torch] Checkpoint global_step100 is ready now! Checkpoint global_step100 saved", 100),
    "begun": ("saving checkpoint at iteration 100", None),
    "a hint": ("kcover: checkpoint 100 is complete", 100),
}  # fmt: skip


@pytest.mark.parametrize(("line", "step"), CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_progress__a_checkpoint_counts_once_it_is_complete(line: str, step: int | None) -> None:
    found = read((10, "step 134 loss 2"), (20, line))
    assert found is not None
    assert found.progress is not None
    assert found.progress.checkpoint_step == step


def test_progress__of_a_job_is_the_furthest_that_any_container_says() -> None:
    logs = [
        read((50, "checkpoint 100 saved"), (90, "step 120")),
        read((95, "step 119"), (96, "kcover: phase evaluation up to 900 s"), uid="uid-1"),
    ]
    reports = [
        report(node, rank(number), logs=(log,), arrived_s=NOW_S)
        for number, (node, log) in enumerate(zip("ab", logs, strict=True))
        if log is not None
    ]
    found = job_rules.progress(reports, NODES, NOW_S)
    assert (found.step, found.unsaved_steps) == (120, 20)
    assert found.moved_s == pytest.approx(START_S + 95, abs=0.1)
    assert found.phase_until_s == pytest.approx(START_S + 996, abs=0.1)


# --- hints


def said(script: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=HINTS, capture_output=True, text=True, check=True
    )
    return done.stderr.splitlines()


def test_progress__a_hint_of_a_program_is_a_phase_until_it_ends() -> None:
    lines = said(
        "from kcover_hint import phase, checkpoint_complete\n"
        "with phase('evaluation', up_to_s=900): pass\ncheckpoint_complete(100)"
    )
    during = read((95, lines[0]))
    assert during is not None
    assert during.phase is not None
    assert (during.phase.name, during.phase.left_s, during.phase.refused) == (
        "evaluation",
        895.0,
        False,
    )
    after = read((95, lines[0]), (96, lines[1]), (97, lines[2]))
    assert after is not None
    assert after.phase is None
    assert after.progress is not None
    assert after.progress.checkpoint_step == 100


def test_progress__a_hint_of_a_script_keeps_the_exit_status() -> None:
    script = ". ./kcover_hint.sh; kcover_phase conversion 900 sh -c 'exit 3'; echo $?; kcover_checkpoint_complete 7"
    done = subprocess.run(
        ["sh", "-c", script], cwd=HINTS, capture_output=True, text=True, check=True
    )
    assert done.stdout == "3\n"
    assert done.stderr.splitlines() == [
        "kcover: phase conversion up to 900 s",
        "kcover: phase conversion ends",
        "kcover: checkpoint 7 is complete",
    ]


def test_progress__a_hint_of_a_script_within_another_ends_each_by_its_name() -> None:
    script = ". ./kcover_hint.sh; save() { kcover_phase save 60 true; }; kcover_phase fit 900 save"
    done = subprocess.run(
        ["sh", "-c", script], cwd=HINTS, capture_output=True, text=True, check=True
    )
    assert done.stderr.splitlines()[-2:] == ["kcover: phase save ends", "kcover: phase fit ends"]


def test_progress__a_hint_for_longer_than_is_allowed_counts_for_nothing() -> None:
    reader = ContainerLogReader("uid-0", "main", (), longest_phase_s=600)
    found = read((95, "kcover: phase evaluation up to 601 s"), reader=reader)
    assert found is not None
    assert found.phase is not None
    assert found.phase.refused
    seen = report("a", rank(0), logs=(found,), arrived_s=NOW_S)
    assert job_rules.progress([seen], {"uid-0": "a"}, NOW_S).phase_until_s is None


def test_progress__a_phase_within_another_ends_alone() -> None:
    begun = [(90, "kcover: phase fit up to 600 s"), (91, "kcover: phase save up to 60 s")]
    within = read(*begun)
    after = read(*begun, (92, "kcover: phase save ends"))
    assert within is not None
    assert after is not None
    assert within.phase == after.phase
    assert after.phase is not None
    assert (after.phase.name, after.phase.left_s) == ("fit", 590.0)


def test_progress__a_phase_that_is_refused_hides_none_that_is_allowed() -> None:
    found = read((90, "kcover: phase all up to 999999 s"), (91, "kcover: phase save up to 60 s"))
    assert found is not None
    assert found.phase is not None
    assert (found.phase.name, found.phase.refused) == ("save", False)


def test_progress__a_hint_is_over_when_its_time_is() -> None:
    found = read((10, "kcover: phase evaluation up to 60 s"))
    assert found is None or found.phase is None


# --- what a broken rule means


def verdict(rule: JobRule) -> Verdict | None:
    """Of a job on two nodes whose loss stopped being printed, and whose ranks have no other fault."""
    logs = [read((30, "loss: 2.0"), rules=(rule,)), read(uid="uid-1", rules=(rule,))]
    seen = [
        report(node, rank(number), logs=(log,), arrived_s=NOW_S, suspicious=False)
        for number, (node, log) in enumerate(zip("ab", logs, strict=True))
        if log is not None
    ]
    found = job_rules.verdict_of(case(*seen, pods=2), (rule,))
    return None if found is None else found.verdict


def test_verdict_of__a_rule_that_restarts_counts_as_an_announcement() -> None:
    found = verdict(LOSS)
    assert found is not None
    assert (found.kind, found.culprit) == (VerdictKind.HUNG, None)
    assert found.since_s == pytest.approx(START_S + 50, abs=0.1)
    assert found.certainty is Certainty.ANNOUNCED
    assert found.acts_at_s == found.since_s


def test_verdict_of__a_rule_that_is_observed_ends_no_job() -> None:
    found = verdict(replace(LOSS, action=RuleAction.OBSERVE))
    assert found is not None
    assert found.certainty is Certainty.SUSPECTED
    assert found.acts_at_s is None


def test_verdict_of__a_job_that_prints_is_well() -> None:
    assert verdict(replace(LOSS, every_seconds=600)) is None
