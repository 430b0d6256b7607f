"""A rank with thousands of children: the cost of a pass must not grow with their square; other jobs wait for it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

from kcover_ebpf.diagnosis.members import Members
from kcover_ebpf.diagnosis.process import ProcessHistory
from kcover_ebpf.facts.host import WaitedFile
from kcover_ebpf.ids import Inode, Pid

from .scripted_job import Proc, Stage, trained

PIPE = WaitedFile(3, "pipe", "pipe:[77]", Inode(77), "", "")


def crowded(children: int) -> Stage:
    """A stopped rank, so that everything is inspected, and its children, which all wait for one pipe."""
    stage = trained(2)
    for number in range(children):
        stage.add(Proc(10_000 + number, ppid=100, mode="read", files=(PIPE,)))
    stage.become(stage.rank(0), "stopped")
    stage.run(4)
    assert len(stage.job.snapshot().processes) == children + 2
    return stage


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by one whenever all members are gone through."""
    counted: list[str] = []
    for name in ("owned", "all_ranks"):
        getter = getattr(Members, name).fget

        def count(
            members: Members, name: str = name, getter: Callable[..., Any] = getter
        ) -> dict[Pid, ProcessHistory]:
            counted.append(name)
            found: dict[Pid, ProcessHistory] = getter(members)
            return found

        monkeypatch.setattr(Members, name, property(count))
    return counted


def test_members_are_gone_through_as_often_for_many_as_for_few(walks: list[str]) -> None:
    counts = []
    for children in (3, 60):
        stage = crowded(children)
        walks.clear()
        stage.job.snapshot()
        counts.append(walks.count("owned"))
    assert counts[0] == counts[1] <= 2


def test_children_that_are_killed_do_not_cost_a_walk_each(walks: list[str]) -> None:
    stage = crowded(60)
    children = [proc for proc in stage.procs.values() if proc.ppid == 100]
    walks.clear()
    for each in children:
        stage.exit(each, signal=signal.SIGKILL)
    assert len(walks) <= 2
