"""When NCCL is asked, whom it means by a number, and what several places say together."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kcover_ebpf.collectives.ras import RasError, RasReport, client, watch
from kcover_ebpf.collectives.ras.answer import parse
from kcover_ebpf.collectives.ras.client import RasPatience, RasPlace
from kcover_ebpf.collectives.ras.netns import pid_inside
from kcover_ebpf.collectives.ras.watch import RasWatch, turn_s
from kcover_ebpf.diagnosis.clock.progress import Stall
from kcover_ebpf.diagnosis.tracker import Tracker
from kcover_ebpf.facts.host import CollectivesSeen
from kcover_ebpf.facts.syscalls import SyscallTable
from kcover_ebpf.ids import Pid
from kcover_ebpf.settings import Settings
from kcover_ebpf.watching.job_watch import JobWatch
from testbed.driver.fake_ras_server import joined, json_report

HOST = "10.0.0.1"
LATE = json_report([7, 7, 6])
"""Of the processes 100, 101 and 102, as their own pid namespaces number them."""


class FakeNccl:
    """Answers in place of the servers; counts how often it was asked."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.reports: dict[Pid, str] = {}
        self.places: list[RasPlace] = []
        self.asked = 0
        self.enough = threading.Event()
        patch.setattr(watch, "find_places", lambda _: self.places)
        patch.setattr(watch, "_hosts", lambda _: frozenset({HOST}))
        patch.setattr(client, "ask", self._ask)
        patch.setattr(client, "listen", lambda *_: iter(()))
        patch.setattr(watch, "RAS_FIRST_PAUSES_S", (0.0,) * 5)

    def _ask(self, place: RasPlace, patience: RasPatience) -> RasReport:
        self.asked += 1
        if self.asked >= 4 * len(self.places):
            self.enough.set()
        if place.pid not in self.reports:
            raise RasError("timed out")
        return parse(self.reports[place.pid])

    def place(self, pid: int, report: str, pids: dict[int, int]) -> None:
        """A network namespace whose ranks have these numbers: in it -> here."""
        self.reports[Pid(pid)] = report
        inside = {number: Pid(here) for number, here in pids.items()}
        self.places.append(RasPlace(("127.0.0.1", 28028), Pid(pid), inside))

    def seen(self, asking_watch: RasWatch) -> CollectivesSeen:
        """The last report after some answers."""
        assert asking_watch.tick(True, {}) == []
        assert self.enough.wait(60)
        reported = asking_watch.tick(True, {})
        asking_watch.close()
        return reported[-1]


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNccl]:
    yield FakeNccl(monkeypatch)
    # a question still under way would be asked of the next test's servers
    for thread in [
        other_thread for other_thread in threading.enumerate() if other_thread.name == "ras"
    ]:
        thread.join(60)


def test_ras_watch__nccl_is_asked_while_a_job_is_suspicious_and_at_no_other_time(
    nccl: FakeNccl,
) -> None:
    nccl.place(1, LATE, {102: 5102})
    asking = RasWatch()
    assert asking.tick(False, {}) == []
    assert nccl.asked == 0
    asking.tick(True, {})
    assert nccl.enough.wait(60)
    assert asking.tick(False, {}) == []
    for thread in [
        other_thread for other_thread in threading.enumerate() if other_thread.name == "ras"
    ]:
        thread.join(60)
    count = nccl.asked
    assert asking.tick(False, {}) == []
    assert nccl.asked == count


def test_ras_watch__a_node_waits_for_its_turn_and_may_have_none(
    nccl: FakeNccl, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr("kcover_ebpf.host.procfs.boottime_ns", lambda: int(now_s * 1e9))
    nccl.place(1, LATE, {102: 5102})
    asking = RasWatch()
    asking.tick(True, {}, 4, None)
    asking.tick(True, {}, 4, 15.0)
    now_s += 14.0
    asking.tick(True, {}, 4, 15.0)
    assert (nccl.asked, asking._inquiry) == (0, None)
    now_s += 2.0
    asking.tick(True, {}, 4, 15.0)
    assert nccl.enough.wait(60)
    asking.close()
    count = nccl.asked
    now_s += 20.0
    asking.tick(True, {}, 4, 15.0)
    assert asking._inquiry is None, "another stall begins, and its pause"
    assert count >= 4


@pytest.mark.parametrize(("size", "said"), [(3, ""), (8, "NCCL answered for 3 of 8 ranks")])
def test_ras_watch__ranks_that_an_answer_is_not_about_are_not_observed(
    nccl: FakeNccl, size: int, said: str
) -> None:
    nccl.place(1, LATE, {102: 5102})
    asking = RasWatch()
    asking.tick(True, {}, size)
    assert nccl.enough.wait(60)
    reported = asking.tick(True, {}, size)
    asking.close()
    assert reported[-1].unseen == said


def test_ras_watch__a_number_is_that_of_the_ranks_own_pid_namespace(nccl: FakeNccl) -> None:
    nccl.place(1, LATE, {100: 5100, 101: 5101, 102: 5102})
    (rank,) = nccl.seen(RasWatch()).behind
    assert (rank.rank, rank.pid, rank.launched, rank.most_launched) == (2, Pid(5102), 7, 8)
    assert rank.pid_inside == 102


def test_ras_watch__a_number_that_two_pods_have_names_no_process(nccl: FakeNccl) -> None:
    nccl.place(1, LATE, {102: 5102})
    nccl.place(2, LATE, {102: 6102})
    (rank,) = nccl.seen(RasWatch()).behind
    assert (rank.rank, rank.pid) == (2, None)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_ras_watch__each_place_knows_a_part_of_the_communicators(
    nccl: FakeNccl, order: tuple[int, int]
) -> None:
    """Who is late in one waits in the other, which one place alone knows; what it does not reach, the other does."""
    dp, part = json_report([7, 6], comm="dp"), json_report([7, 0], missing=(1,), comm="dp")
    tp = json_report([4, 3], comm="tp", pid_of=lambda rank: 101 + rank)
    places = ((dp, {101: 5101}), (joined(part, tp), {102: 5102}))
    for index in order:
        nccl.place(index + 1, *places[index])
    reported = nccl.seen(RasWatch())
    assert [rank.pid for rank in reported.behind] == [Pid(5102)]
    assert reported.missing == ()


@pytest.mark.parametrize("silent", [1, 2])
def test_ras_watch__a_pod_that_does_not_answer_hides_no_other_answer(
    nccl: FakeNccl, silent: int
) -> None:
    """All processes of the pod that holds the job up may be stopped."""
    for pid in (1, 2):
        nccl.place(pid, LATE, {100 + pid: 5100 + pid})
    del nccl.reports[Pid(silent)]
    reported = nccl.seen(RasWatch())
    assert [(rank.rank, rank.launched) for rank in reported.behind] == [(2, 7)]
    assert reported.trouble == ""


@pytest.mark.parametrize(("size", "failure"), [(None, "timed out"), (8, "timed out"), (2, "")])
def test_ras_watch__ranks_are_not_equal_to_those_of_a_pod_that_does_not_answer(
    nccl: FakeNccl, size: int | None, failure: str
) -> None:
    """Unless an answer of another pod covers all ranks."""
    for pid in (1, 2):
        nccl.place(pid, json_report([7, 7]), {99 + pid: 5099 + pid})
    del nccl.reports[Pid(2)]
    asking = RasWatch()
    asking.tick(True, {}, size)
    assert nccl.enough.wait(60)
    reported = asking.tick(True, {}, size)
    asking.close()
    assert reported[-1].trouble == failure


def test_inquiry__a_pod_that_stops_to_answer_has_not_moved(
    nccl: FakeNccl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server was the one that knew all ranks."""
    nccl.place(1, json_report([7, 0], missing=(1,)), {})
    nccl.place(2, LATE, {})
    monkeypatch.setattr(threading.Thread, "start", lambda _: None)
    watched = watch._Inquiry(client.RasHere(), nccl.places, (), RasPatience())
    answers = watched._round([], 1)
    del nccl.reports[Pid(2)]
    answers = watched._round(answers, 2)
    assert len(answers) == 1
    assert watched.take() == []


def test_pid_inside__the_number_inside_is_the_last_of_the_kernels_list(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("kcover_ebpf.host.procfs.PROC", tmp_path)
    folder = tmp_path / "4711"
    folder.mkdir()
    (folder / "status").write_text("Name:\tpython3\nNSpid:\t4711\t17\n")
    assert pid_inside(Pid(4711)) == 17
    assert pid_inside(Pid(4712)) == 4712


def test_ras_watch__who_called_what_is_said_of_a_mismatch(nccl: FakeNccl) -> None:
    text = json_report([7, 7, 7]).replace('"AllReduce": 7', '"AllGather": 7', 1)
    nccl.place(1, text, {100: 5100, 101: 5101, 102: 5102})
    reported = nccl.seen(RasWatch())
    assert [(rank.rank, rank.pid) for rank in reported.odd] == [(0, Pid(5100))]
    assert [(side.operations, side.ranks) for side in reported.sides] == [
        ("AllGather 0, AllReduce 7", (1, 2)),
        ("AllGather 7, AllReduce 0", (0,)),
    ]
    assert not reported.equal


def test_ras_watch__lists_have_an_end(nccl: FakeNccl) -> None:
    nccl.place(1, json_report([7] * 30 + [6] * 40), {})
    reported = nccl.seen(RasWatch())
    assert (len(reported.behind), reported.behind[0].comm) == (16, "abc")


def test_inquiry__two_answers_after_a_movement_are_enough(
    nccl: FakeNccl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was blocked before it says nothing about who makes no progress after it."""
    steps = iter([[5, 5], [6, 6], [7, 6]])
    last = [7, 6]
    nccl.place(1, LATE, {})
    monkeypatch.setattr(threading.Thread, "start", lambda _: None)
    watched = watch._Inquiry(client.RasHere(), nccl.places, (), RasPatience())
    monkeypatch.setattr(client, "ask", lambda *_: parse(json_report(next(steps, last))))
    answers: list[tuple[int, RasReport]] = []
    reported: list[CollectivesSeen] = []
    monkeypatch.setattr(watched, "_publish", reported.append)
    for number in range(5):
        answers = watched._round(answers, number)
    assert [fact.moving for fact in reported] == [True, True, False, False]
    assert [fact.since_ns for fact in reported[-2:]] == [2, 2]


def test_job_watch__what_was_said_of_one_fault_is_forgotten_with_it() -> None:
    job_watch = JobWatch(
        cast("Any", None), Tracker("job", "host"), SyscallTable("x86_64"), Settings()
    )
    said = CollectivesSeen(1, 1, 3)
    job_watch.job.observe(said)
    job_watch._ras = cast("Any", SimpleNamespace(tick=lambda asks, *_: [said] if asks else []))
    job_watch.ask_collectives()
    assert job_watch.job.attention.collectives is None
    job_watch.job.attention.suspect(True, Stall.CERTAIN, 1)
    job_watch.ask_collectives()
    assert job_watch.job.attention.collectives == said


TURNS: dict[str, tuple[list[int | None], int | None, float | None]] = {
    "the node of rank 0": ([0, 1, 2, 3], 16, 0.0),
    "the second node": ([4, 5, 6, 7], 16, 15.0),
    "the third node": ([8, 9, 10, 11], 16, 30.0),
    "the fourth node": ([12, 13, 14, 15], 4096, 45.0),
    "the fifth node leaves it to them": ([16, 17, 18, 19], 4096, None),
    "a rank of its own each": ([3], 16, 45.0),
    "dealt out in turn": ([1, 17, 33, 49], 64, 15.0),
    "all ranks are here": ([0, 1], 2, 0.0),
    "the size of the job is not known": ([40, 41], None, 0.0),
    "ranks without numbers": ([None, None], 16, 0.0),
    "a rank without a number beside others": ([None, 5], 8, None),
}


@pytest.mark.parametrize(("numbers", "world_size", "expected"), TURNS.values(), ids=TURNS)
def test_turn_s__whose_turn_it_is(
    numbers: list[int | None], world_size: int | None, expected: float | None
) -> None:
    assert turn_s(numbers, world_size) == expected


@pytest.mark.parametrize("per_node", [1, 3, 8])
def test_turn_s__of_a_large_job_a_few_nodes_ask_one_after_the_other(per_node: int) -> None:
    world = 1500 * per_node
    turns = [turn_s(range(at, at + per_node), world) for at in range(0, world, per_node)]
    assert sorted(turn for turn in turns if turn is not None) == [0.0, 15.0, 30.0, 45.0]
