"""A real job of four Python ranks, one of them at a lock: the verdict says in which function, file and line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from testbed.ports import free_ports
from testbed.skips import ROOT
from tests.kernel.command import PYTHON, impatient, run

STEPS, ODD, WORLD = 60, 2, 4
RANK = "RANK=$r WORLD_SIZE={world} BASE={base} {python} {program} {steps} {odd} lock"
JOB = f"for r in 0 1 2 3; do {RANK} & done; wait"

pytestmark = pytest.mark.needs("cgroup2")


@pytest.mark.alone  # py-spy is given a moment only
def test_the_line_of_the_rank_that_is_elsewhere_is_reported_before_the_job_is_ended(
    tmp_path: Path,
) -> None:
    script = JOB.format(
        base=free_ports(WORLD),
        world=WORLD,
        python=PYTHON,
        program=ROOT / "testbed/faults/odd_rank.py",
        steps=STEPS,
        odd=ODD,
    )
    options = (
        *impatient(tmp_path),
        "-o",
        "json",
        "--act",
        "shutdown",
        "--for",
        "120s",
        "--snapshot-dir",
        "kept",
    )
    with run(*options, "--", "sh", "-c", script, folder=tmp_path) as one:
        assert one.finish(150) == 75, one.err
    events = one.events()
    last = [event for event in events if event["event"] == "verdict"][-1]
    assert (last["verdict"], last["culprit"]["rank"]) == ("HUNG", ODD)
    (text,) = [item["text"] for item in last["evidence"] if item["kind"] == "outlier"]
    assert text.startswith(f"rank {ODD} is at save_metrics (testbed/faults/odd_rank.py:")
    assert "the 3 other ranks are at receive (testbed/faults/odd_rank.py:" in text
    # it is in what is kept of the job as well
    kept = json.loads(next((tmp_path / "kept").glob("*HUNG/verdict.json")).read_text())
    assert text.partition(";")[0] in {item["text"].partition(";")[0] for item in kept["evidence"]}
    act = next(
        event for event in events if event["event"] == "action" and event["act"] == "shutdown"
    )
    # and it is no reason
    assert "outlier" not in act["reason"]
    (incident,) = {event["incident"] for event in events if event.get("verdict") == "HUNG"}
    assert incident == act["incident"]
