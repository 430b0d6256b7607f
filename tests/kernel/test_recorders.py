"""A job whose ranks all spin in one collective: the recorders of its PyTorch name the rank, with file and line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testbed.skips import ROOT
from tests.kernel.command import PYTHON, Run, impatient, run

STEPS, WORLD = 40, 3
IN_SECONDS = "200s"
"""Ranks that spin have no share of their own beside others'; it takes 16 s alone."""
RANK = (
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE={folder}/fr_ TORCH_FR_DUMP_TEMP_FILE={folder}/dump_ "
    "RANK=$r WORLD_SIZE=3 {python} {program} {steps} {odd} {way}"
)
JOB = f"for r in 0 1 2; do {RANK} & done; wait"

pytestmark = [pytest.mark.needs("cgroup2"), pytest.mark.timeout(270)]


def job(folder: Path, odd: int, way: str) -> list[str]:
    program = ROOT / "testbed/faults/recorder.py"
    script = JOB.format(
        folder=folder, python=PYTHON, program=program, steps=STEPS, odd=odd, way=way
    )
    return ["--", "sh", "-c", script]


def last_fault(one: Run) -> dict[str, Any]:
    return [event for event in one.events() if event.get("verdict") in {"HUNG", "DEADLOCK"}][-1]


def asked(folder: Path) -> list[str]:
    """What each rank read from its pipe."""
    return [path.read_text() for path in sorted(folder.glob("asked-*"))]


def test_the_rank_that_skipped_a_collective_is_named_with_its_line(tmp_path: Path) -> None:
    options = (*impatient(tmp_path), "-o", "json", "--act", "shutdown", "--for", IN_SECONDS)
    with run(*options, *job(tmp_path, 1, "skipped"), folder=tmp_path) as one:
        assert one.finish(240) == 75, one.out[-4000:]
    fault = last_fault(one)
    assert (fault["verdict"], fault["cause"]) == ("DEADLOCK", "collective_mismatch")
    assert (fault["culprit"]["rank"], fault["victims"]) == (1, [0, 2])
    said = [item["text"] for item in fault["evidence"] if item["kind"] == "collective"]
    assert any("rank 1 called all_gather" in text and "train.py:57" in text for text in said)
    assert any("ranks 0, 2 called all_reduce" in text for text in said)
    questions = [text.split() for text in asked(tmp_path)]
    assert len(questions) == WORLD
    assert all(set(question) == {"1"} for question in questions), "by one byte each time"


@pytest.mark.long
def test_the_rank_that_never_called_a_collective_is_named_with_its_last_line(
    tmp_path: Path,
) -> None:
    options = (*impatient(tmp_path), "-o", "json", "--act", "shutdown", "--for", IN_SECONDS)
    with run(*options, *job(tmp_path, 2, "behind"), folder=tmp_path) as one:
        assert one.finish(240) == 75, one.out[-4000:]
    fault = last_fault(one)
    assert (fault["verdict"], fault["cause"]) == ("HUNG", "not_in_collective")
    assert fault["culprit"]["rank"] == 2
    said = " ".join(item["text"] for item in fault["evidence"] if item["kind"] == "collective")
    assert "which rank 2 has not called" in said
    assert "train.py:40" in said


@pytest.mark.long
def test_ranks_that_do_not_answer_are_said_to_be_unobserved(tmp_path: Path) -> None:
    options = ("-o", "json", "--for", "60s")
    with run(*options, *job(tmp_path, -1, "deaf"), folder=tmp_path) as one:
        one.finish(100)
    fault = last_fault(one)
    assert fault["culprit"] is None
    for rank in range(WORLD):
        assert any(f"flight recorder of rank {rank}" in text for text in fault["unobserved"])


def test_a_healthy_job_is_never_asked(tmp_path: Path) -> None:
    with run("-o", "json", *job(tmp_path, -1, "healthy"), folder=tmp_path) as one:
        assert one.finish(100) == 0, one.err
    assert asked(tmp_path) == []
    assert not any(tmp_path.glob("dump_*"))
