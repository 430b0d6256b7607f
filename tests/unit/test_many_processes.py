"""A rank with thousands of children: what a pass costs must not grow with their square, or all jobs of the node wait."""

from __future__ import annotations

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
def walks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one whenever all members are gone through."""
    counted: list[int] = []
    owned = Members.owned.fget
    assert owned is not None

    def count(members: Members) -> dict[Pid, ProcessHistory]:
        counted.append(1)
        return owned(members)

    monkeypatch.setattr(Members, "owned", property(count))
    return counted


def test_members_are_gone_through_as_often_for_many_as_for_few(walks: list[int]) -> None:
    counts = []
    for children in (3, 60):
        stage = crowded(children)
        walks.clear()
        stage.job.snapshot()
        counts.append(len(walks))
    assert counts[0] == counts[1] <= 2
