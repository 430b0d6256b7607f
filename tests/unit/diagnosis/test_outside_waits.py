"""Waits for something outside the job: of a rank, of one of its threads, of a data loader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from kcover_ebpf.diagnosis.decisions import decide
from kcover_ebpf.diagnosis.waits.classify import CERTAIN
from kcover_ebpf.facts.host import WaitedFile
from kcover_ebpf.ids import NS, Inode, Pid
from kcover_ebpf.model.process_state import Effort, State
from kcover_ebpf.model.verdict import Cause, VerdictKind
from kcover_ebpf.settings import Act, Policy
from kcover_ebpf.tunables.diagnosis import LONE_FLOOR_S
from tests.unit.support.outside_waits import passes
from tests.unit.support.scripted_job import LOCK, Proc, Stage, all_wait, pipe, trained
from tests.unit.support.seen_verdicts import faults
from tests.unit.support.wired_stage import outside, unanswered

_SOCKET = WaitedFile(77, "socket", "socket:[777]", Inode(777), "", "")
_PATIENCE_S = min(LONE_FLOOR_S, Policy().storage_patience_s)


def loading(here: int | None = None, workers: int = 1) -> tuple[Stage, list[Proc]]:
    """Rank 2 waits for the first of its loaders, all other ranks for rank 2; further loaders are idle."""
    stage = Stage(world=4 if here is None else 8, here=here)
    found = [stage.add(Proc(500 + number, ppid=102, mode="tick")) for number in range(workers)]
    stage.run(30)
    answers = pipe(stage, found[0], 7, 900)
    for index, worker in enumerate(found):
        # each worker is given its work by its own pipe
        asked = pipe(stage, stage.rank(2), 20 + index, 910 + index)
        stage.become(worker, "poll", files=(replace(asked, fd=8),))
    stage.become(stage.rank(2), "poll", files=(replace(answers, fd=9),), stack=LOCK)
    all_wait(stage, 2)
    return stage, found


def keep_pipes(stage: Stage, workers: list[Proc]) -> None:
    """In detail mode every pipe is reported at each pass."""
    pipe(stage, workers[0], 7, 900)
    for index in range(len(workers)):
        pipe(stage, stage.rank(2), 20 + index, 910 + index)


@pytest.mark.parametrize("here", [None, 4], ids=["one host", "one of two hosts"])
@pytest.mark.parametrize("workers", [4, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("is_sampled", [True, False])
def test_outside_waits__a_loader_that_waits_for_the_network_is_believed_and_then_reported_only(
    here: int | None, workers: int, is_sampled: bool
) -> None:
    stage, found = loading(here, workers)
    stage.become(found[0], "poll", files=(_SOCKET,), stack=LOCK)
    asked_ns = stage.now_ns

    def each() -> None:
        keep_pipes(stage, found)
        if is_sampled:
            outside(stage, found[0], last_send_ns=asked_ns)

    passes(stage, _PATIENCE_S - 3, each)
    assert faults(stage) == []
    assert stage.tracker.current is not None
    assert stage.tracker.current.cause is Cause.LOADING
    passes(stage, 60, each)
    assert faults(stage) == []
    verdict = stage.tracker.current
    assert verdict.culprit is not None
    assert (verdict.kind, verdict.cause, verdict.culprit.rank, verdict.culprit.tid) == (
        VerdictKind.UNKNOWN,
        Cause.LOADER_STUCK,
        2,
        500,
    )
    assert decide(verdict, Act.SHUTDOWN).act is Act.OBSERVE


def test_outside_waits__a_loader_whose_thread_asks_outside_is_believed() -> None:
    # fsspec: the worker waits for its own thread, which waits for the object store
    stage, found = loading()
    stage.become(found[0], "futex", stack=LOCK)
    asked_ns = stage.now_ns

    def each() -> None:
        keep_pipes(stage, found)
        outside(stage, found[0], last_send_ns=asked_ns)

    passes(stage, _PATIENCE_S - 3, each)
    assert faults(stage) == []


@pytest.mark.parametrize(
    ("mode", "cause"), [("stopped", Cause.LOADER_STUCK), ("futex", Cause.LOADER_STUCK)]
)
@pytest.mark.parametrize("workers", [1, 4])
def test_outside_waits__a_loader_that_cannot_continue_is_named_soon(
    mode: str, cause: Cause, workers: int
) -> None:
    stage, found = loading(workers=workers)
    stage.become(found[0], mode, stack=LOCK)

    def each() -> None:
        keep_pipes(stage, found)
        # what it has open is its rank's: it inherited the connection
        for proc in (stage.rank(2), found[0]):
            outside(stage, proc, last_send_ns=stage.now_ns)

    passes(stage, 8, each)
    (verdict,) = faults(stage)
    assert verdict.culprit is not None
    assert (verdict.cause, verdict.culprit.rank, verdict.culprit.tid) == (cause, 2, 500)


def test_outside_waits__the_connections_of_loaders_are_read_while_something_may_be_wrong() -> None:
    stage, found = loading(workers=2)
    assert stage.job.connected == [Pid(number) for number in (100, 101, 102, 103)]
    passes(stage, 3)
    assert {500, 501} <= set(stage.job.connected)
    # a busy one as well: who waits for a pipe is judged by all that hold its other end
    stage.become(found[0], "run")
    passes(stage, 2)
    assert {500, 501} <= set(stage.job.connected)


def upload(stage: Stage, workers: list[Proc], mover: Proc, seconds: float) -> None:
    """So many seconds, in each of which `mover` sends megabytes out of the job."""
    moved = 0

    def each() -> None:
        nonlocal moved
        keep_pipes(stage, workers)
        moved += 5_000_000
        outside(stage, mover, acked_bytes=moved, last_send_ns=stage.now_ns)

    passes(stage, seconds, each)


@pytest.mark.parametrize("who", ["rank", "loader"])
def test_outside_waits__bytes_that_move_to_or_from_outside_are_work(who: str) -> None:
    stage, found = loading()
    mover = found[0] if who == "loader" else stage.rank(2)
    stage.become(mover, "futex", stack=LOCK)
    upload(stage, found, mover, 300)
    assert faults(stage) == []
    verdict = stage.tracker.current
    assert verdict is not None
    assert verdict.kind is VerdictKind.WORKING


def test_outside_waits__an_upload_needs_no_comparison_whatever_was_written_before() -> None:
    stage, found = loading()
    mover = stage.rank(2)
    stage.become(mover, "futex", stack=LOCK, io_bytes_s=20_000)
    passes(stage, 5, lambda: keep_pipes(stage, found))
    mover.io_bytes_s = 0
    upload(stage, found, mover, 10)
    rank = stage.job.snapshot().processes[Pid(mover.pid)]
    assert (rank.effort, rank.effort_rate) == (Effort.STORAGE, CERTAIN)


def telemetry(stage: Stage, count: int, ranks: Sequence[int] = range(4), **more: object) -> None:
    """Every rank pushes 60 bytes to a service, which says so at once."""
    for rank in ranks:
        known: dict[str, object] = {
            "acked_bytes": 60 * count,
            "received_bytes": 20 * count,
            "fd": 60 + rank,
        }
        known |= {"last_send_ns": stage.now_ns, "last_receive_ns": stage.now_ns}
        known |= {"inode": Inode(7000 + rank), "local": ("10.1.0.5", 52_000 + rank)}
        outside(stage, stage.rank(rank), **known | more)


def test_outside_waits__who_only_pushes_telemetry_is_not_helped() -> None:
    stage = Stage(world=4)
    count = 0

    def push() -> None:
        nonlocal count
        count += 1
        telemetry(stage, count)

    passes(stage, 30, push)
    stage.become(stage.rank(3), "futex", stack=LOCK)
    all_wait(stage, 3)
    passes(stage, 5, push)
    (verdict,) = faults(stage)
    assert verdict.culprit is not None
    assert (verdict.cause, verdict.culprit.rank) == (Cause.BLOCKED_LOCK, 3)


@pytest.mark.parametrize(("is_dead", "believed"), [(False, True), (True, False)])
def test_outside_waits__a_question_to_a_known_service_is_waited_for_while_it_is_open(
    is_dead: bool, believed: bool
) -> None:
    stage = Stage(world=4)
    count = 0

    def push() -> None:
        nonlocal count
        count += 1
        telemetry(stage, count)

    passes(stage, 30, push)
    stage.become(stage.rank(3), "futex", stack=LOCK)
    all_wait(stage, 3)
    asked_ns = stage.now_ns

    def wait() -> None:
        # acknowledged by the service's host, and not answered; or not even acknowledged
        lost = unanswered(stage.now_ns - asked_ns) if is_dead else {}
        # of it alone: what all ranks ask for explains no wait of one
        telemetry(stage, count, [3], last_send_ns=asked_ns, last_receive_ns=asked_ns - NS, **lost)
        telemetry(stage, count, range(3))

    passes(stage, 20, wait)
    assert [fault.cause for fault in faults(stage)] == ([] if believed else [Cause.BLOCKED_LOCK])
    state = stage.job.snapshot().processes[Pid(103)].state
    assert state is (State.HELPED if believed else State.FUTEX)


def test_outside_waits__a_rank_that_asks_outside_for_long_is_reported_only() -> None:
    stage = trained()
    waiter = stage.rank(1)
    stage.become(waiter, "poll", files=(_SOCKET,), stack=LOCK)
    all_wait(stage, 1)
    asked_ns = stage.now_ns
    passes(stage, 3 * _PATIENCE_S, lambda: outside(stage, waiter, last_send_ns=asked_ns))
    assert faults(stage) == []
    verdict = stage.tracker.current
    assert verdict is not None
    assert verdict.culprit is not None
    assert (verdict.kind, verdict.culprit.rank) == (VerdictKind.UNKNOWN, 1)
    assert "waiting for a service outside the job" in verdict.evidence[0].text


@pytest.mark.parametrize("is_server", [True, False])
def test_outside_waits__who_answers_a_question_of_others_asks_none(is_server: bool) -> None:
    stage = trained()
    waiter = stage.rank(1)
    stage.become(waiter, "futex", stack=LOCK)
    all_wait(stage, 1)

    def answer() -> None:
        # a RAS client, or a scraper of metrics, asks every second; or the rank itself has asked
        asked_ns = stage.now_ns - 2 * NS
        outside(stage, waiter, last_send_ns=asked_ns, last_receive_ns=asked_ns - NS)
        if is_server:
            more = {"fd": 78, "inode": Inode(778), "state": "LISTEN", "remote": ("0.0.0.0", 0)}
            outside(stage, waiter, **more)

    passes(stage, 20, answer)
    state = stage.job.snapshot().processes[Pid(101)].state
    assert state is (State.FUTEX if is_server else State.HELPED)
    assert bool(faults(stage)) is is_server
