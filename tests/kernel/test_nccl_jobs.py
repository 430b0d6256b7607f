"""Whole jobs under `run --nccl-probes`: the counts of the probes reach the verdict."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from testbed.skips import ROOT
from tests.kernel.command import PYTHON, impatient, run

pytestmark = pytest.mark.needs("root", "bpf", "gcc")
JOB = (
    "for r in 0 1 2; do RANK=$r WORLD_SIZE=3 {python} {program} {library} 40 {fault} 1 & done; wait"
)
IN_SECONDS = "90s"


def job(library: Path, fault: str) -> list[str]:
    program = ROOT / "testbed/faults/nccl_rank.py"
    script = JOB.format(python=PYTHON, program=program, library=library, fault=fault)
    return ["--", "sh", "-c", script]


@pytest.mark.needs("cgroup2")
def test_a_mismatch_is_called_a_mismatch(tmp_path: Path, nccl_stub: Path) -> None:
    options = (
        *impatient(tmp_path),
        "-o",
        "json",
        "--nccl-probes",
        "--act",
        "shutdown",
        "--for",
        IN_SECONDS,
    )
    with run(*options, *job(nccl_stub, "other"), folder=tmp_path) as one:
        assert one.finish(120) == 75, one.err
    last = [event for event in one.events() if event.get("verdict") in {"HUNG", "DEADLOCK"}][-1]
    assert (last["verdict"], last["cause"]) == ("DEADLOCK", "collective_mismatch")
    assert last["culprit"] is not None, last["evidence"]
    assert last["culprit"]["rank"] == 1
    texts = [item["text"] for item in last["evidence"] if item["kind"] == "collective"]
    assert any("AllGather 1, AllReduce 40" in text for text in texts)


@pytest.mark.needs("cgroup2")
@pytest.mark.parametrize("fault", ["absent", "unreceived"])
def test_the_rank_that_never_came_is_named_without_ras(
    tmp_path: Path, nccl_stub: Path, fault: str
) -> None:
    """All ranks spin; of messages, which RAS does not count, the end that posted no receive is behind."""
    options = ("-o", "json", "--nccl-probes", "--for", IN_SECONDS)
    with run(*options, *job(nccl_stub, fault), folder=tmp_path) as one:
        one.await_fact("collectives_seen")
        one.send(signal.SIGINT)
        one.reap()
    reported = [event for event in one.events() if event.get("fact") == "collectives_seen"]
    assert reported
    assert {item["rank"] for fact in reported for item in fact["behind"]} == {1}
    assert not any(fact["sides"] for fact in reported)
