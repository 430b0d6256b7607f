"""The Python stacks of ranks are read beside the loop, once, within a time; what cannot be read is said."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kcover_ebpf.confined import helper
from kcover_ebpf.diagnosis.decisions import Decision
from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.diagnosis.tracker import Tracker
from kcover_ebpf.facts.python_stacks import PythonFrame, PythonStack, PythonStacksSeen
from kcover_ebpf.facts.syscalls import SyscallTable
from kcover_ebpf.ids import Pid
from kcover_ebpf.model.verdict import EvidenceKind
from kcover_ebpf.settings import Act, Settings
from kcover_ebpf.watching import py_spy, stack_watch
from kcover_ebpf.watching.judging import Judging
from kcover_ebpf.watching.stack_watch import StackWatch
from tests.unit.support.scripted_job import Stage, all_wait, trained

PIDS = tuple(range(9_000_001, 9_000_005))
FRAMES = [{"name": "step", "filename": "/jobs/train.py", "short_filename": "train.py", "line": 40}]


def ranks(name: str = "python3", count: int = 4) -> Mapping[Pid, ProcessHistory]:
    found = {}
    for pid in PIDS[:count]:
        lead = SimpleNamespace(sample=SimpleNamespace(tid=pid, comm=name))
        found[Pid(pid)] = SimpleNamespace(lead=lead, seen=SimpleNamespace(comm=name))
    return cast("Mapping[Pid, ProcessHistory]", found)


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Path]:
    """Makes a stub of py-spy of a line of shell; $5 is the process. Returns the log of its starts."""
    log = tmp_path / "log"
    program = tmp_path / "py-spy"

    def make(script: str) -> Path:
        program.write_text(f"#!/bin/sh\necho $5 >> {log}\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setattr(py_spy, "program", lambda: str(program))
        monkeypatch.setattr(helper, "_FILE_BYTES", 4096)
        return log

    return make


def answering() -> str:
    thread = {"owns_gil": False, "frames": FRAMES}
    return f"echo '[{{\"os_thread_id\": '$5', {json.dumps(thread)[1:]}]'"


def taken(
    watch: StackWatch,
    people: Mapping[Pid, ProcessHistory],
    size: int = 4,
    *,
    wanted: bool = True,
) -> PythonStacksSeen:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if news := watch.tick(wanted, people, size):
            return news[0]
        time.sleep(0.01)
    raise AssertionError("nothing was read")


def test_stack_watch__all_ranks_are_read_once_in_a_stall(spy: Callable[[str], Path]) -> None:
    log = spy(answering())
    watch, people = StackWatch(), ranks()
    assert watch.tick(False, people, 4) == []
    seen = taken(watch, people)
    assert seen.unread == ()
    assert {stack.pid for stack in seen.stacks} == set(PIDS)
    assert {stack.frames for stack in seen.stacks} == {(PythonFrame("step", "train.py", 40),)}
    assert watch.is_ready(people), "it was read a moment ago"
    # the same stall, and another one soon after it
    assert watch.tick(True, people, 4) == watch.tick(False, people, 4) == []
    assert watch.tick(True, people, 4) == []
    assert len(log.read_text().split()) == len(PIDS)


def test_stack_watch__they_are_read_anew_before_an_action_if_that_was_long_ago(
    spy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = spy(answering())
    watch, people = StackWatch(), ranks()
    taken(watch, people)
    monkeypatch.setattr(stack_watch, "STACKS_FRESH_S", 0.0)
    assert not watch.is_ready(people)
    taken(watch, people)
    monkeypatch.setattr(stack_watch, "STACKS_FRESH_S", 60.0)
    assert watch.is_ready(people)
    assert len(log.read_text().split()) == 2 * len(PIDS)


def test_stack_watch__what_was_read_for_an_action_is_delivered_though_no_verdict_is_near(
    spy: Callable[[str], Path],
) -> None:
    spy(answering())
    watch, people = StackWatch(), ranks()
    assert not watch.is_ready(people)
    seen = taken(watch, people, wanted=False)
    assert {stack.pid for stack in seen.stacks} == set(PIDS)


def test_stack_watch__an_action_waits_for_a_reader_that_hangs_only_for_a_while(
    spy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    spy("exec sleep 600")
    monkeypatch.setattr(stack_watch, "STACKS_LIMIT_S", 2.0)
    watch, people = StackWatch(), ranks()
    assert not watch.is_ready(people)
    monkeypatch.setattr(stack_watch, "STACKS_BEFORE_ACTION_S", 0.0)
    assert watch.is_ready(people)
    seen = taken(watch, people)
    assert seen.stacks == ()
    # on a busy machine its own deadline may pass before it has answered
    assert "no time was left" in seen.unread[0] or seen.unread[0] == stack_watch._STUCK


def test_stack_watch__jobs_are_read_one_after_the_other(
    spy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They share the agent's memory; whoever comes too late says so."""
    spy(answering())
    monkeypatch.setattr(stack_watch, "STACKS_LIMIT_S", 0.2)
    with stack_watch._ONE_JOB:
        seen = taken(StackWatch(), ranks())
    assert (seen.stacks, seen.unread) == ((), (stack_watch._BUSY,))
    monkeypatch.setattr(stack_watch, "STACKS_LIMIT_S", 20.0)
    assert taken(StackWatch(), ranks()).unread == ()


def test_stack_watch__a_reader_that_fails_is_said(
    spy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack_watch, "STACKS_LIMIT_S", 20.0)
    spy("echo 'Error: no permission' >&2; exit 1")
    seen = taken(StackWatch(), ranks())
    assert seen.stacks == ()
    assert "Error: no permission and 3 more" in seen.unread[0]


@pytest.mark.parametrize("threads", ["[]", '[{"os_thread_id": \'$5\', "frames": []}]'])
def test_stack_watch__ranks_without_frames_are_counted(
    spy: Callable[[str], Path], threads: str
) -> None:
    spy(f"echo '{threads}'")
    seen = taken(StackWatch(), ranks())
    assert seen.stacks == ()
    assert seen.unread == ("Python frames of 4 ranks (their lead threads run no Python)",)


def test_stack_watch__where_py_spy_is_missing_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(py_spy, "program", lambda: None)
    seen = taken(StackWatch(), ranks())
    assert (seen.stacks, seen.unread) == ((), ("Python frames (py-spy is not installed)",))


@pytest.mark.parametrize(
    ("people", "size"),
    [(ranks("mpi_train"), 4), (ranks(count=2), 2), (cast("Any", {}), 4)],
    ids=["no Python", "two ranks", "no rank here"],
)
def test_stack_watch__nothing_is_read_where_no_rank_could_be_odd(
    spy: Callable[[str], Path], people: Mapping[Pid, ProcessHistory], size: int
) -> None:
    log = spy(answering())
    watch = StackWatch()
    assert watch.tick(True, people, size) == []
    assert watch.is_ready(people)
    assert not log.exists()


def test_stack_watch__two_ranks_of_a_larger_job_are_read(spy: Callable[[str], Path]) -> None:
    spy(answering())
    assert len(taken(StackWatch(), ranks(count=2), size=4).stacks) == 2


# --- between the verdict and the action


class FakeTape:
    """Keeps what a tape would have of the judgement."""

    def __init__(self) -> None:
        self.taken: list[str] = []

    def on_fact(self, fact: object) -> None:
        self.taken.append(type(fact).__name__)

    def on_reading(self) -> None:
        self.taken.append("reading")

    def on_ask(self) -> None:
        self.taken.append("ask")

    def on_judge(self, unix_offset_s: float) -> None:
        self.taken.append(f"judge {unix_offset_s}")

    def on_hold(self) -> None:
        self.taken.append("hold")


def judging(
    ready: Callable[[], bool], done: list[Decision], notes: FakeTape | None = None
) -> tuple[Stage, Judging]:
    """A job of which one rank is stopped; its judging acts as far as shutdown."""
    stage = trained()
    stage.become(stage.rank(2), "stopped")
    all_wait(stage, 2)
    made = Judging(
        Tracker("job", "host"),
        SyscallTable("x86_64"),
        Settings(act=Act.SHUTDOWN),
        (),
        done.append,
        recorder=notes,
        is_ready=ready,
    )
    made.job = stage.job
    return stage, made


def test_judging__a_job_is_ended_once_the_stacks_are_read_and_they_are_in_the_decision() -> None:
    done: list[Decision] = []
    answers = [False]
    notes = FakeTape()
    stage, made = judging(lambda: answers[0], done, notes)
    for _ in range(8):
        stage.run(1)
        made.judge(0.0)
    assert made.tracker.latest is not None
    assert done == []
    assert "hold" in notes.taken, "a tape has it, so that a replay acts when the run did"
    stacks = tuple(
        PythonStack(Pid(100 + rank), (PythonFrame("save" if rank == 2 else "step", "train.py", 7),))
        for rank in range(4)
    )
    stage.feed(PythonStacksSeen(stage.now_ns, stacks))
    answers[0] = True
    made.judge(0.0)
    (decision,) = done
    assert decision.act is Act.SHUTDOWN
    assert EvidenceKind.OUTLIER in {evidence.kind for evidence in decision.verdict.evidence}


def test_judging__a_job_that_recovers_while_they_are_read_is_not_ended() -> None:
    done: list[Decision] = []
    answers = [False]
    stage, made = judging(lambda: answers[0], done)
    for _ in range(5):
        stage.run(1)
        made.judge(0.0)
    for rank in range(4):
        stage.become(stage.rank(rank), "train")
    stage.run(3)
    answers[0] = True
    made.judge(0.0)
    assert done == []


def test_judging__stacks_are_wanted_only_while_a_verdict_is_near() -> None:
    stage, made = judging(lambda: True, [])
    assert not made.wants_stacks(), "nothing was judged"
    stage.run(4)
    made.judge(0.0)
    assert made.wants_stacks()
    for rank in range(4):
        stage.become(stage.rank(rank), "train")
    stage.run(10)
    made.judge(0.0)
    assert not made.wants_stacks()
