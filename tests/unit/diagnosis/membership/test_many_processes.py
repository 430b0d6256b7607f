"""A rank with thousands of children: the cost of a pass must not grow with their square; other jobs wait for it."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.diagnosis.membership import members
from kcover_ebpf.diagnosis.membership.endpoints import EndpointIndex
from kcover_ebpf.diagnosis.membership.file_holders import FileHolders
from kcover_ebpf.diagnosis.membership.roster import Roster, roster_of
from kcover_ebpf.facts.host import WaitedFile
from kcover_ebpf.facts.kernel import DescriptorSample
from kcover_ebpf.ids import Inode, Pid
from kcover_ebpf.tunables.host import LINKS_OF_A_RANK
from tests.unit.support.scripted_job import Proc, Stage, trained

PIPE = WaitedFile(3, "pipe", "pipe:[77]", Inode(77), "", "")


def crowded(children: int) -> Stage:
    """A stopped rank, so that everything is read, and its children, which all wait for one pipe."""
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

    def count(views: Mapping[Pid, ProcessHistory]) -> Roster:
        counted.append(len(views))
        return roster_of(views)

    monkeypatch.setattr(members, "roster_of", count)
    return counted


def test_roster_of__children_that_are_killed_do_not_cost_a_walk_each(walks: list[int]) -> None:
    stage = crowded(60)
    children = [proc for proc in stage.procs.values() if proc.ppid == 100]
    walks.clear()
    for child in children:
        stage.exit(child, signal=signal.SIGKILL)
    assert len(walks) <= 2


def test_file_holders__who_holds_a_pipe_is_looked_up_once_for_all_that_wait_for_it() -> None:
    """Of each process the descriptors are gone through once, however many ask."""
    stage = crowded(60)
    read: list[int] = []

    class Counted(dict[tuple[int, Inode], DescriptorSample]):
        def values(self) -> Any:
            read.append(1)
            return super().values()

    views = stage.job.members.views
    for pid, view in views.items():
        sample = DescriptorSample(stage.now_ns, pid, 3, "pipe", PIPE.inode, None)
        view.descriptors = Counted({(3, PIPE.inode): sample})
    holders = FileHolders(stage.job.members, EndpointIndex(views.values()))
    found = [holders.of(pid, PIPE) for pid in views]
    assert {len(pair) for pair in found} == {len(views) - 1}
    assert len(read) <= 3 * len(views)


def test_shown__of_very_many_connections_those_that_are_judged_and_reported_are_taken() -> None:
    """A rank with sixteen thousand: each snapshot of it would cost a tenth of a second."""
    stage = trained(2)
    view = stage.job.members.views[Pid(100)]
    (payload,) = view.links.fds
    sample = view.sockets[payload]
    for fd in range(100, 100 + 2 * LINKS_OF_A_RANK):
        far = "127.0.0.9", 20_000 + fd
        idle = replace(sample, fd=fd, inode=Inode(fd), remote=far, last_send_ns=fd)
        view.on_socket(replace(idle, unsent_bytes=7) if fd == 333 else idle)
    (shown,) = [rank.sockets for rank in stage.job.snapshot().processes.values() if rank.pid == 100]
    assert len(shown) == LINKS_OF_A_RANK
    assert [place for place, socket in enumerate(shown) if socket.payload] == [0]
    assert [socket.remote.port for socket in shown if socket.unsent] == [20_333]
    newest = 20_000 + 100 + 2 * LINKS_OF_A_RANK - 1
    assert newest in {socket.remote.port for socket in shown}
