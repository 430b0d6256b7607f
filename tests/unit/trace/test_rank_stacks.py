"""The stacks of ranks for an archive: what is read first, and what takes the place of what was not read."""

from __future__ import annotations

from typing import Any

import pytest

from kcover_ebpf.facts.python_stacks import PythonFrame
from kcover_ebpf.ids import Pid
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.rank_snapshot import RankSnapshot
from kcover_ebpf.model.roles import Role
from kcover_ebpf.trace import rank_stacks
from kcover_ebpf.trace.stack_helpers import Frames
from tests.unit.support import report_builders as build

FIRST = 9_000_000
"""No process has such a number."""


def rank(number: int, state: State = State.FUTEX, **more: Any) -> RankSnapshot:
    python = (PythonFrame("step", "train.py", 4),)
    pid = Pid(FIRST + number)
    values: dict[str, Any] = {"pid": pid, "tid": pid, "python": python, "stack": ("libtorch.so+1",)}
    return build.rank(number, state, **values | more)


RANKS = (
    rank(0),
    rank(1),
    rank(2, State.STORAGE),
    rank(3, exit="code 1"),
    rank(4, role=Role.LOADER),
)
PIDS = [FIRST + number for number in range(5)]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Ranks in the order in which they are read; only the first is read in time."""
    found: list[int] = []

    class FakeHelpers:
        def __init__(self, threads: list[tuple[int, int]], _: object) -> None:
            found.extend(pid - FIRST for pid, _ in threads)
            self.first = threads[0]

        def collect(self, *_: object) -> Frames:
            native: dict[tuple[int, int], tuple[str, ...]] = {self.first: ("__write (libc.so.6)",)}
            return Frames(native=native, blind=["native frames of 3 threads"])

        def close(self) -> None: ...

    monkeypatch.setattr(rank_stacks, "_helpers", FakeHelpers)
    return found


def test_rank_stacks__who_does_not_only_wait_is_read_first(asked: list[int]) -> None:
    stacks, unread = rank_stacks.read(PIDS, RANKS, 1e12)
    assert asked == [2, 0, 1, 4]
    assert [stack.rank for stack in stacks] == [2, 0, 1, 4]
    assert unread == ["native frames of 3 threads"]


def test_rank_stacks__frames_with_names_and_sampled_words_are_not_mixed(asked: list[int]) -> None:
    stacks, _ = rank_stacks.read(PIDS, RANKS, 1e12)
    assert asked
    assert [stack.native for stack in stacks] == [("__write (libc.so.6)",), (), (), ()]
    assert {stack.python for stack in stacks} == {("step (train.py:4)",)}


def test_rank_stacks__without_time_what_the_sensor_knows_is_kept(asked: list[int]) -> None:
    stacks, unread = rank_stacks.read(PIDS, RANKS, 0.0)
    assert asked == []
    assert {stack.native for stack in stacks} == {("libtorch.so+1",)}
    assert unread == ["stacks (no time was left)"]


def test_rank_stacks__ranks_that_become_known_while_stacks_are_read_are_named(
    asked: list[int],
) -> None:
    reading = rank_stacks.StackReading(PIDS, RANKS[:1])
    stacks, _ = reading.finish(RANKS, 1e12)
    assert asked == [0]
    assert [stack.rank for stack in stacks] == [2, 0, 1, 4]
    assert stacks[1].native == ("__write (libc.so.6)",)
