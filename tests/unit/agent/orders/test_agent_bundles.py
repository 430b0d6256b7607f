"""The Python stacks in the bundle that an agent keeps before a gang is ended."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from kcover_ebpf.agent.orders import bundles
from kcover_ebpf.host import procfs
from kcover_ebpf.ids import Pid
from kcover_ebpf.model.roles import Role
from kcover_ebpf.watching import py_spy
from tests.unit import report_builders as build

PID = Pid(9_000_001)
SPY = """#!/bin/sh
echo '[{"os_thread_id": 9000001, "frames": [
  {"name": "save", "filename": "/jobs/train.py", "short_filename": "train.py", "line": 71},
  {"name": "step", "filename": "/jobs/train.py", "short_filename": "train.py", "line": 44}]}]'
"""


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    program = tmp_path / "py-spy"
    program.write_text(SPY)
    program.chmod(0o755)
    monkeypatch.setattr(py_spy, "program", lambda: str(program))
    monkeypatch.setattr(procfs, "comm", lambda _: "python3")
    return program


def kept(limit_s: float = 20.0) -> list[str]:
    ranks = (
        build.rank(2, pid=PID, tid=PID),
        build.rank(3, pid=Pid(PID + 1), exit="signal 9"),
        build.rank(0, pid=Pid(PID + 2), role=Role.LOADER),
    )
    return bundles.python_stacks(ranks, time.monotonic() + limit_s).splitlines()


def test_python_stacks__the_frames_of_each_living_rank_are_kept(spy: Path) -> None:
    assert spy.exists()
    assert kept() == [
        "rank 2 (pid 9000001)",
        "  save (train.py:71)",
        "  step (train.py:44)",
    ]


def test_python_stacks__what_does_not_come_in_time_is_said(spy: Path) -> None:
    spy.write_text("#!/bin/sh\nexec sleep 60\n")
    assert kept(0.2) == [
        "rank 2 (pid 9000001)",
        "not observable: Python frames (pid 9000001: no time was left)",
    ]


def test_python_stacks__a_program_that_is_not_python_is_left_out(
    spy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert spy.exists()
    monkeypatch.setattr(procfs, "comm", lambda _: "hpl")
    assert kept() == [""]
