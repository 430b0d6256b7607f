"""The user probes on NCCL: every call is counted once, for its own process and communicator, and for no other."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kcover_ebpf.collectives.nccl.counts import Counted, Launched
from kcover_ebpf.collectives.nccl.probes import NcclProbes
from kcover_ebpf.collectives.nccl.tables import Tables
from kcover_ebpf.host import capabilities
from kcover_ebpf.ids import Pid
from testbed.skips import ROOT
from tests.kernel.command import PYTHON
from tests.kernel.helpers import FIRINGS, Running
from tests.waiting import until

pytestmark = pytest.mark.needs("root", "bpf", "gcc")
REAL = ROOT / ".bench/nccl/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2"


@pytest.fixture
def probes() -> Iterator[NcclProbes]:
    opened = NcclProbes()
    assert opened.status.attached, opened.status
    yield opened
    opened.close()


class Caller(Running):
    """A process that calls NCCL's functions as it is asked to."""

    def __init__(self, path: Path) -> None:
        super().__init__(PYTHON, str(ROOT / "testbed/faults/nccl_calls.py"), str(path))
        assert self.line() == "loaded"

    def does(self, *lines: str) -> None:
        for line in lines:
            self.say(line)
            assert self.line() == "done", line


Start = Callable[[Path], Caller]


@pytest.fixture
def start() -> Iterator[Start]:
    begun: list[Caller] = []

    def begin(path: Path) -> Caller:
        begun.append(Caller(path))
        return begun[-1]

    yield begin
    for caller in begun:
        caller.end()


def count(probes: NcclProbes, *callers: Caller) -> None:
    """Begin to count them."""

    def have_come() -> bool:
        for caller in callers:
            probes.attach(caller.pid)
        probes.collect()
        return all(probes.attempt(caller.pid) for caller in callers)

    until(have_come, "the probes to be attached")
    for caller in callers:
        attempt = probes.attempt(caller.pid)
        assert attempt is not None
        assert attempt.links, attempt


def open_count() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def launched(probes: NcclProbes, *callers: Caller) -> list[Launched]:
    found = probes.read([caller.pid for caller in callers]).launched
    return sorted(found, key=lambda item: (item.pid, item.birth.size))


def test_every_call_is_counted_once_and_for_its_own_process(
    probes: NcclProbes, start: Start, nccl_stub: Path
) -> None:
    one, other, uncounted = start(nccl_stub), start(nccl_stub), start(nccl_stub)
    count(probes, one, other)
    for rank, caller in enumerate((one, other, uncounted)):
        caller.does(f"init world {rank} 3", f"ncclAllReduce {FIRINGS + rank}", "ncclReduce 2")
    first, second = launched(probes, one, other)
    assert first.counts == {"AllReduce": FIRINGS, "Reduce": 2}
    assert second.counts == {"AllReduce": FIRINGS + 1, "Reduce": 2}
    assert first.birth.identity == second.birth.identity != 0
    assert [(item.birth.size, item.birth.rank) for item in (first, second)] == [(3, 0), (3, 1)]
    assert probes.totals() == {one.pid: FIRINGS + 2, other.pid: FIRINGS + 3}


@pytest.mark.parametrize(
    "kind", ["ncclCommInitRank", "ncclCommInitRankConfig", "ncclCommInitRankScalable"]
)
def test_a_communicator_is_known_before_it_is_used(
    probes: NcclProbes, start: Start, nccl_stub: Path, kind: str
) -> None:
    one = start(nccl_stub)
    count(probes, one)
    one.does(f"init first 5 8 {kind}", f"init second 2 4 {kind}")
    births = {(birth.size, birth.rank) for _, birth in probes.read([one.pid]).waiting}
    assert births == {(8, 5), (4, 2)}
    one.does("ncclAllGather 3")
    found = probes.read([one.pid])
    assert [(item.birth.size, item.counts) for item in found.launched] == [(4, {"AllGather": 3})]
    assert [birth.size for _, birth in found.waiting] == [8]


def test_the_ways_to_make_a_communicator_agree_about_its_identity(
    probes: NcclProbes, start: Start, nccl_stub: Path
) -> None:
    callers = [start(nccl_stub) for _ in range(3)]
    count(probes, *callers)
    kinds = ("ncclCommInitRank", "ncclCommInitRankConfig", "ncclCommInitRankScalable")
    for rank, (caller, kind) in enumerate(zip(callers, kinds, strict=True)):
        caller.does(f"init alike {rank} 3 {kind}")
    found = probes.read([caller.pid for caller in callers]).waiting
    assert len({birth.identity for _, birth in found}) == 1
    assert sorted(birth.rank for _, birth in found) == [0, 1, 2]


def test_a_split_has_an_identity_of_its_own_for_each_colour(
    probes: NcclProbes, start: Start, nccl_stub: Path
) -> None:
    callers = [start(nccl_stub) for _ in range(4)]
    count(probes, *callers)
    for rank, caller in enumerate(callers):
        caller.does(f"init world {rank} 4", f"split {rank % 2} {10 - rank}", "ncclAllReduce 1")
    found = launched(probes, *callers)
    by_rank = {item.birth.rank: item.birth for item in found if item.counts}
    assert by_rank[0].identity == by_rank[2].identity != by_rank[1].identity
    assert by_rank[1].identity == by_rank[3].identity
    assert all(birth.is_split for birth in by_rank.values())
    assert [by_rank[rank].key for rank in range(4)] == [10, 9, 8, 7]


def test_messages_are_counted_by_peer(probes: NcclProbes, start: Start, nccl_stub: Path) -> None:
    one = start(nccl_stub)
    count(probes, one)
    one.does("init world 1 4", f"ncclSend {FIRINGS} 2", "ncclRecv 5 0", "ncclRecv 1 2")
    found = probes.read([one.pid]).messages
    assert sorted(
        (messages.peer, messages.sent_count, messages.received_count) for messages in found
    ) == [
        (0, 0, 5),
        (2, FIRINGS, 1),
    ]


def test_a_communicator_that_was_destroyed_is_forgotten(
    probes: NcclProbes, start: Start, nccl_stub: Path
) -> None:
    one = start(nccl_stub)
    count(probes, one)
    # more than there is room for at a time, one after the other, used or not
    for number in range(70):
        one.does(f"init number{number} 0 1", *["ncclAllReduce 1"] * (number % 2), "destroy")
    one.does("init last 0 1", "ncclAllReduce 4")
    found = probes.read([one.pid])
    assert [item.counts for item in found.launched] == [{"AllReduce": 4}]
    assert found.launched[0].birth.identity
    assert not found.lost


def test_communicators_from_before_are_counted_without_identity(
    probes: NcclProbes, start: Start, nccl_stub: Path
) -> None:
    one = start(nccl_stub)
    one.does("init before 0 2", "ncclAllReduce 9")
    count(probes, one)
    one.does("ncclAllReduce 3")
    (found,) = launched(probes, one)
    assert (found.birth.identity, found.counts) == (0, {"AllReduce": 3})


def test_a_process_that_takes_its_share_loses_and_takes_nothing_of_others(
    probes: NcclProbes, start: Start, nccl_stub: Path
) -> None:
    greedy, modest = start(nccl_stub), start(nccl_stub)
    count(probes, greedy, modest)
    for number in range(70):
        greedy.does(f"init number{number} 0 1", "ncclAllReduce 1")
    modest.does("init modest 0 1", "ncclAllReduce 2")
    found = probes.read([greedy.pid, modest.pid])
    assert found.lost == {greedy.pid: 6}
    assert [item.counts for item in found.launched if item.pid == modest.pid] == [{"AllReduce": 2}]
    assert probes.totals()[greedy.pid] == 70
    assert probes.lost_count == 6


def test_nccl_that_is_linked_into_another_library_is_counted(
    probes: NcclProbes, start: Start, nccl_stub: Path, tmp_path: Path
) -> None:
    linked = tmp_path / "libtorch_cuda.so"
    shutil.copy(nccl_stub, linked)
    one = start(linked)
    count(probes, one)
    one.does("init world 0 1", f"ncclAllReduce {FIRINGS}")
    assert [item.counts for item in launched(probes, one)] == [{"AllReduce": FIRINGS}]


def test_who_is_forgotten_is_detached_and_leaves_nothing(
    probes: NcclProbes, start: Start, nccl_stub: Path
) -> None:
    one = start(nccl_stub)
    count(probes, one)
    one.does("init world 0 2", "ncclAllReduce 1", "ncclSend 1 1")
    descriptors = open_count()
    probes.forget(one.pid)
    until(lambda: open_count() < descriptors - 10, "the probes to go")
    until(lambda: probes.totals() == {}, "the tables to be cleared")
    one.does("ncclAllReduce 5")
    assert probes.read([one.pid]) == Counted()
    # its number is reused: counting starts at zero
    count(probes, one)
    one.does("ncclAllReduce 2")
    assert [item.counts for item in launched(probes, one)] == [{"AllReduce": 2}]


def test_a_program_is_counted_whose_predecessor_is_still_being_forgotten(
    probes: NcclProbes, start: Start, nccl_stub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell becomes the rank, of the same number, while it is searched for NCCL."""
    remove = probes._tables.remove

    def remove_late(pid: Pid) -> None:
        time.sleep(0.5)
        remove(pid)
        forgotten.append(pid)

    forgotten: list[Pid] = []
    monkeypatch.setattr(probes._tables, "remove", remove_late)
    one = start(nccl_stub)
    probes.attach(one.pid)
    probes.forget(one.pid)

    def is_counted() -> bool:
        probes.collect()
        probes.attach(one.pid)
        return probes.attempt(one.pid) is not None

    until(is_counted, "the probes to be attached")
    until(lambda: forgotten == [one.pid], "what was before to be forgotten")
    one.does("init world 0 1", "ncclAllReduce 3")
    assert [item.counts for item in launched(probes, one)] == [{"AllReduce": 3}]


def test_a_process_without_nccl_is_not_counted_and_says_why(probes: NcclProbes) -> None:
    ours = Pid(os.getpid())
    probes.attach(ours)
    while probes.attempt(ours) is None:
        probes.collect()
    attempt = probes.attempt(ours)
    assert attempt is not None
    assert attempt.may_come
    assert "no NCCL" in attempt.reason


@pytest.mark.needs("nccl")
def test_the_real_library_is_counted_at_its_entry(probes: NcclProbes, start: Start) -> None:
    """Its functions fail here: there is no GPU, and what is passed is no communicator."""
    one = start(REAL)
    count(probes, one)
    one.does("init world 2 4")
    one.does(f"ncclAllReduce {FIRINGS}", "ncclReduce 2", "ncclReduceScatter 3", "ncclAllGather 4")
    one.does("ncclBroadcast 5", "ncclBcast 6", "ncclAlltoAll 7", "ncclGather 8", "ncclScatter 9")
    one.does("ncclSend 10 3", "ncclRecv 11 1")
    found = probes.read([one.pid])
    assert [(item.birth.size, item.birth.rank, item.counts) for item in found.launched] == [
        (
            4,
            2,
            {
                "AllReduce": FIRINGS,
                "Reduce": 2,
                "ReduceScatter": 3,
                "AllGather": 4,
                "Broadcast": 11,
                "AlltoAll": 7,
                "Gather": 8,
                "Scatter": 9,
            },
        )
    ]
    messages = {
        message.peer: (message.sent_count, message.received_count) for message in found.messages
    }
    assert messages == {3: (10, 0), 1: (0, 11)}


def test_privileges_to_attach_are_used_for_a_moment_only(nccl_stub: Path) -> None:
    """In a child, because a dropped privilege is not regained; attaching works after they were dropped."""
    program = f"""
import subprocess, sys, time
from kcover_ebpf.collectives.nccl.probes import NcclProbes
from kcover_ebpf.ids import Pid
from kcover_ebpf.host import capabilities as c
probes = NcclProbes()
c.drop(c.KEPT, c.spare(nccl_probes=True))
rank = subprocess.Popen([{PYTHON!r}, {str(ROOT / "testbed/faults/nccl_calls.py")!r}, {str(nccl_stub)!r}],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE)
rank.stdout.readline()
probes.attach(Pid(rank.pid))
while probes.attempt(Pid(rank.pid)) is None:
    probes.collect(); time.sleep(0.01)
print(probes.attempt(Pid(rank.pid)))
assert c.Capability.SYS_ADMIN not in c.effective() and c.Capability.PERFMON not in c.effective()
rank.kill()
"""
    assert capabilities.Capability.SYS_ADMIN in capabilities.effective()
    done = subprocess.run(
        [str(ROOT / ".venv/bin/python"), "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"links=\(<", done.stdout), done.stdout


def test_tables_have_room_for_a_full_node_and_say_when_they_are_full(probes: NcclProbes) -> None:
    tables: Tables = probes._tables
    for number in range(24):
        tables.enter(Pid(1_000_000 + number))
    with pytest.raises(OSError, match="Argument list too long"):
        tables.enter(Pid(2_000_000))
    for number in range(24):
        tables.remove(Pid(1_000_000 + number))
    assert probes.totals() == {}
