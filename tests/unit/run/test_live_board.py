"""`run --live`: what the grid shows of a job that starts, trains, hangs, and is ended."""

from __future__ import annotations

import os
import pty
import re
from dataclasses import replace

import pytest

from kcover_ebpf.cli import main
from kcover_ebpf.diagnosis.decisions import Decision
from kcover_ebpf.model.verdict import Verdict
from kcover_ebpf.output.board_text import LEGEND, lines_of_one
from kcover_ebpf.output.job_board import Mark
from kcover_ebpf.run import terminal_table
from kcover_ebpf.run.live_board import BoardSink, board_of_run
from kcover_ebpf.run.out import Out
from kcover_ebpf.settings import Act
from tests.unit.support.scripted_job import Stage
from tests.unit.support.terminals import everything, resize


def stopped(stage: Stage) -> Verdict:
    stage.stop_signal(stage.rank(2))
    stage.become(stage.rank(2), "stopped")
    for rank in {*range(stage.world)} - {2}:
        stage.become(stage.rank(rank), "futex")
    stage.run(8)
    verdict = stage.verdicts[-1]
    return replace(verdict, time_s=stage.now_ns / 1e9)


def marks(stage: Stage, verdict: Verdict | None, act: Act = Act.OBSERVE) -> dict[str, Mark]:
    job = board_of_run(stage.job, "train", verdict, act, stage.now_ns / 1e9)
    return {cell.name: cell.mark for node in job.nodes for cell in node.cells}


def test_board_of_run__ranks_start_then_train_then_one_is_the_culprit() -> None:
    stage = Stage()
    stage.run(1)
    assert set(marks(stage, None).values()) == {Mark.STARTS}
    stage.run(30)
    assert set(marks(stage, stage.verdicts[-1]).values()) == {Mark.TRAINS}
    verdict = stopped(stage)
    assert verdict.culprit is not None
    assert marks(stage, verdict) == dict.fromkeys("013", Mark.WAITS) | {"2": Mark.CULPRIT}


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (Act.RESTART, "will be restarted in 41 s if nothing moves"),
        (Act.SHUTDOWN, "will be ended in 41 s if nothing moves"),
        (Act.OBSERVE, "HUNG"),
    ],
)
def test_board_of_run__says_what_is_left_of_the_patience_of_who_may_act(
    act: Act, words: str
) -> None:
    stage = Stage()
    stage.run(30)
    verdict = stopped(stage)
    now_s = stage.now_ns / 1e9
    due = replace(verdict, acts_at_s=now_s + 41.0)
    assert board_of_run(stage.job, "train", due, act, now_s).text.startswith(words)
    assert board_of_run(stage.job, "train", due, act, now_s).incident == verdict.incident


def test_lines_of_one__many_ranks_are_rows_and_the_culprits_is_the_first() -> None:
    stage = Stage(world=40)
    stage.run(30)
    job = board_of_run(stage.job, "train", stopped(stage), Act.OBSERVE, stage.now_ns / 1e9)
    assert [node.node for node in job.nodes] == ["from 0", "from 16", "from 32"]
    lines = lines_of_one(job, 100, 8)
    assert (len(lines), lines[-1]) == (7, LEGEND)
    assert lines[0] == "train act observe  40 ranks  HUNG"
    assert "2! 3~" in lines[3]
    cut = lines_of_one(job, 100, 7)
    assert (len(cut), cut[-2]) == (7, "  and 1 more rows")


def test_board_sink__draws_the_grid_below_the_lines_and_gives_the_terminal_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(terminal_table.LiveSink, "_is_foreground", lambda _: True)
    reader, writer = pty.openpty()
    resize(writer, 30, 100)
    stage = Stage()
    stage.run(30)
    sink = BoardSink(Out(writer), lambda _: None, "train", Act.SHUTDOWN)
    sink.on_start({"text": "watching"})
    sink.job_of = lambda: stage.job
    sink.on_waits((), "WORKING training")
    drawn = everything(reader)
    assert "\x1b[32m0.\x1b[0m" in drawn, "green while it trains"
    sink.on_verdict(verdict := stopped(stage))
    assert "\x1b[1;97;41m2!\x1b[0m" in everything(reader), "red once it is the culprit"
    sink.on_action(Decision(Act.SHUTDOWN, "proven", verdict), "killed 4 processes")
    assert "train: is being ended: killed 4 processes" in everything(reader)
    sink.on_end({"text": "the job was shut down"})
    last = everything(reader)
    assert re.search(r"\x1b\[r.*the job was shut down", last, re.DOTALL)
    os.close(reader)
    os.close(writer)


def test_main__live_needs_no_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--live", "-o", "json", "--", "true"]) == 2
    assert "--live draws on a terminal" in capsys.readouterr().err
