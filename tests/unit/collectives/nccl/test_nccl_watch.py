"""Which ranks are counted, what that says of their progress, and how it is joined with what RAS says."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

import pytest

from kcover_ebpf.collectives.nccl.counts import Birth, Counted, Launched
from kcover_ebpf.collectives.nccl.probes import Attempt
from kcover_ebpf.collectives.nccl.watch import NcclWatch, chosen
from kcover_ebpf.facts.host import CollectiveRank, CollectivesLaunched, CollectivesSeen
from kcover_ebpf.ids import NS, Pid
from tests.unit.support.scripted_job import Stage

RANKS = {Pid(100): None, Pid(101): None}
COUNTED = Attempt(links=(cast("Any", object()),))


class FakeProbes:
    """In place of the kernel's: what each process launched."""

    def __init__(self) -> None:
        self.counts: dict[Pid, dict[str, int]] = {}
        self.attempts: dict[Pid, Attempt] = {}
        self.asked: list[Pid] = []
        self.stuck: Collection[Pid] = ()

    def attach(self, pid: Pid) -> None:
        self.asked.append(pid)
        if pid in self.counts:
            self.attempts[pid] = COUNTED

    def attempt(self, pid: Pid) -> Attempt | None:
        return self.attempts.get(pid)

    def collect(self) -> None:
        pass

    def forget(self, pid: Pid) -> None:
        self.attempts.pop(pid, None)

    def totals(self) -> dict[Pid, int]:
        return {
            pid: sum(count.values()) for pid, count in self.counts.items() if pid in self.attempts
        }

    def read(self, pids: Collection[Pid]) -> Counted:
        return Counted(
            tuple(
                Launched(pid, Birth(7, len(self.counts), pid - 100), dict(self.counts[pid]))
                for pid in pids
            )
        )


class FakeBoottime:
    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now_ns = 100 * NS
        patch.setattr("kcover_ebpf.host.procfs.boottime_ns", lambda: self.now_ns)

    def wait(self, seconds: float) -> None:
        self.now_ns += int(seconds * NS)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeBoottime:
    return FakeBoottime(monkeypatch)


@pytest.fixture
def probes() -> FakeProbes:
    return FakeProbes()


@pytest.fixture
def asking(probes: FakeProbes) -> NcclWatch:
    return NcclWatch(cast("Any", probes))


def answer(watch: NcclWatch, *collectives: CollectivesSeen) -> CollectivesSeen | None:
    found = watch.joined(True, collectives, RANKS, 2)
    assert len(found) <= 1
    return found[0] if found else None


def test_nccl_watch__launches_are_reported_once_for_each_process(
    probes: FakeProbes, asking: NcclWatch, clock: FakeBoottime
) -> None:
    probes.counts = {Pid(100): {"AllReduce": 3}, Pid(101): {"AllReduce": 0}}
    assert asking.follow(RANKS) == [CollectivesLaunched(clock.now_ns, Pid(100), 3)]
    assert asking.follow(RANKS) == []
    probes.counts[Pid(101)] = {"AllReduce": 2}
    assert asking.follow(RANKS) == [CollectivesLaunched(clock.now_ns, Pid(101), 2)]


def test_nccl_watch__a_process_without_nccl_is_searched_ever_more_rarely(
    probes: FakeProbes, asking: NcclWatch, clock: FakeBoottime
) -> None:
    for _ in range(600):
        asking.follow({Pid(100): None})
        clock.wait(1)
    assert 20 <= len(probes.asked) <= 70
    assert probes.asked[:5] == [Pid(100)] * 5


def test_nccl_watch__one_job_does_not_take_all_room(probes: FakeProbes, asking: NcclWatch) -> None:
    asking.follow({Pid(pid): None for pid in range(100, 150)})
    assert len(probes.asked) == 16


def test_nccl_watch__who_ended_makes_room_and_begins_anew(
    probes: FakeProbes, asking: NcclWatch, clock: FakeBoottime
) -> None:
    probes.counts = {Pid(100): {"AllReduce": 3}}
    asking.follow(RANKS)
    asking.forget(Pid(100))
    assert Pid(100) not in probes.attempts
    probes.counts = {Pid(100): {"AllReduce": 1}}
    assert asking.follow(RANKS) == [CollectivesLaunched(clock.now_ns, Pid(100), 1)]
    asking.close()
    assert probes.attempts == {}


def test_nccl_watch__counts_that_do_not_move_name_who_is_behind(
    probes: FakeProbes, asking: NcclWatch, clock: FakeBoottime
) -> None:
    probes.counts = {Pid(100): {"AllReduce": 9}, Pid(101): {"AllReduce": 8}}
    asking.follow(RANKS)
    assert answer(asking) is None, "a rank is late for a moment always"
    clock.wait(0.2)
    assert answer(asking) is None, "too early"
    for count in (2, 3, 4):
        clock.wait(0.7)
        found = answer(asking)
        assert found is not None
        assert found.answer_count == count
        assert [(rank.rank, rank.pid, rank.launched) for rank in found.behind] == [(1, 101, 8)]
        assert found.since_ns == 100 * NS
    probes.counts[Pid(101)] = {"AllReduce": 9}
    clock.wait(0.7)
    found = answer(asking)
    assert found is not None
    assert found.moving
    clock.wait(0.7)
    found = answer(asking)
    assert found is not None
    assert found.equal
    assert found.since_ns == clock.now_ns - int(0.7 * NS)


def test_nccl_watch__why_nothing_is_counted_is_said(probes: FakeProbes, asking: NcclWatch) -> None:
    probes.attempts = {Pid(100): Attempt(reason="it has loaded no NCCL", may_come=True)}
    asking.follow(RANKS)
    found = answer(asking)
    assert found is not None
    assert found.trouble == "it has loaded no NCCL"


def test_nccl_watch__a_library_that_cannot_be_read_is_said(
    probes: FakeProbes, asking: NcclWatch
) -> None:
    probes.stuck = {Pid(101)}
    asking.follow(RANKS)
    found = answer(asking)
    assert found is not None
    assert "has not returned" in found.trouble


def test_nccl_watch__nothing_is_kept_from_one_stall_to_the_next(
    probes: FakeProbes, asking: NcclWatch, clock: FakeBoottime
) -> None:
    probes.counts = {Pid(100): {"AllReduce": 9}, Pid(101): {"AllReduce": 8}}
    asking.follow(RANKS)
    answer(asking)
    assert asking.joined(False, [], RANKS, 2) == []
    clock.wait(5)
    assert answer(asking) is None


LATE = (CollectiveRank(1, 2, "h"),)


def seen(at_s: int, since_s: int = 0, **fields: Any) -> CollectivesSeen:
    return CollectivesSeen(at_s * NS, since_s * NS, **fields)


@pytest.mark.parametrize(
    ("ras_said", "own", "expected"),
    [
        (None, None, None),
        (None, seen(9), "own"),
        (seen(9), None, "ras"),
        (seen(9, trouble="no port"), seen(9, behind=LATE), "own"),
        (seen(9, trouble="no port"), seen(9, trouble="none"), "ras"),
        (seen(9), seen(9, trouble="none"), "ras"),
        (seen(9, behind=LATE), seen(10, behind=LATE), "ras"),
        (seen(9), seen(10, behind=LATE), "own"),
        (seen(9), seen(10), "ras"),
        (seen(5, moving=True), seen(10, 6, behind=LATE), "own"),
        (seen(9, moving=True), seen(10, 6, behind=LATE), "ras"),
        (seen(5, behind=LATE), seen(10, moving=True), "own"),
    ],
    ids=[
        "neither",
        "no RAS",
        "no counts yet",
        "RAS gives no answer",
        "neither gives an answer",
        "nothing is counted",
        "RAS is of all hosts",
        "RAS counts no messages",
        "both equal",
        "it moved before the counts stopped",
        "it moved since",
        "it moves again",
    ],
)
def test_chosen__one_answer_of_two(
    ras_said: CollectivesSeen | None, own: CollectivesSeen | None, expected: str | None
) -> None:
    assert chosen(ras_said, own) is {"ras": ras_said, "own": own, None: None}[expected]


def test_nccl_watch__launches_are_progress_of_a_job_that_shows_no_other() -> None:
    """Its ranks spin in one place and send nothing by TCP."""
    stages = []
    for launches in (False, True):
        stage = Stage(world=2, connected=False)
        for proc in stage.procs.values():
            stage.become(proc, "spin")
        for _ in range(40):
            for pid in stage.procs if launches else ():
                stage.feed(CollectivesLaunched(stage.now_ns, Pid(pid), 4))
            stage.run(1)
        stages.append(stage)
    assert [stage.job.pace.trained for stage in stages] == [False, True]
