"""Which hangs end a job: those with a second kind of evidence that no healthy job shows, and which kind that is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from kcover_ebpf.diagnosis.decisions import decide
from kcover_ebpf.diagnosis.evidence.evidence import endless
from kcover_ebpf.facts.host import WaitedFile
from kcover_ebpf.facts.kernel import ThreadSample
from kcover_ebpf.ids import NS, Inode, Pid
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.rank_snapshot import RankSnapshot
from kcover_ebpf.model.roles import Role
from kcover_ebpf.model.verdict import Certainty, EvidenceKind, Verdict
from kcover_ebpf.settings import Act
from tests.unit.support.scripted_job import COLLECTIVE, LOCK, Proc, Stage, all_wait, trained

PIPE = WaitedFile(9, "pipe", "pipe:[77]", Inode(77), "", "")
PRIVATE = 128
FUTEX = 202
CLOCK = {EvidenceKind.TIME, EvidenceKind.SINK, EvidenceKind.PEERS, EvidenceKind.GPU}


@pytest.fixture
def stage() -> Stage:
    return trained()


def hangs(stage: Stage, seconds: float = 20) -> tuple[Verdict, set[EvidenceKind]]:
    """The verdict after so long; and its kinds beside those of the clock."""
    stage.run(seconds)
    verdict = stage.tracker.latest
    assert verdict is not None
    assert verdict.culprit is not None
    assert verdict.acts_at_s is not None
    is_certain = verdict.certainty in (Certainty.ANNOUNCED, Certainty.PROVEN)
    assert (decide(verdict, Act.SHUTDOWN).act is Act.SHUTDOWN) == is_certain
    return verdict, {evidence.kind for evidence in verdict.evidence} - CLOCK


def loader_of_1(stage: Stage, mode: str, **changes: object) -> Proc:
    """Rank 1 waits for its loader, and all others for rank 1; none sent first."""
    loader = stage.add(Proc(501, ppid=101))
    stage.run(5)
    stage.become(loader, mode, **changes)
    stage.become(stage.rank(1), "poll", files=(PIPE,), last_send_ns=stage.now_ns)
    all_wait(stage, 1)
    return loader


@pytest.mark.parametrize("timed", [True, False])
def test_endless__a_sleep_is_and_a_wait_for_a_signal_of_any_process_is_not(timed: bool) -> None:
    rank = RankSnapshot(Pid(101), Role.RANK, State.SLEEP_LONG, rank=1, timed=timed)
    assert bool(endless(rank, rank)) is timed


def test_certainty__whoever_opens_a_fifo_may_be_any_process(stage: Stage) -> None:
    loader_of_1(stage, "fifo", wait_channel="wait_for_partner")
    stage.run(20)
    verdict = stage.tracker.latest
    assert verdict is None or verdict.certainty not in (Certainty.ANNOUNCED, Certainty.PROVEN)


@pytest.mark.parametrize(
    ("mode", "changes", "kind"),
    [
        ("stopped", {}, EvidenceKind.STATE),
        ("sleep_long", {"timed": True, "deadline_ns": 10**18}, EvidenceKind.STATE),
        ("spin", {}, EvidenceKind.STACK),
    ],
)
def test_certainty__a_loader_that_cannot_continue(
    stage: Stage, mode: str, changes: dict[str, object], kind: EvidenceKind
) -> None:
    loader_of_1(stage, mode, **changes)
    verdict, kinds = hangs(stage)
    assert verdict.culprit is not None
    assert (verdict.culprit.rank, kinds) == (1, {kind})


@pytest.mark.parametrize(
    ("operation", "timeout", "ends"),
    [(PRIVATE, 0, True), (PRIVATE, 0x7F00, False), (0, 0, False)],
    ids=["for ever", "with a time-out", "at memory of others, too"],
)
def test_certainty__a_loader_that_was_forked_beside_a_taken_lock(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, operation: int, timeout: int, *, ends: bool
) -> None:
    """One thread at a futex of its own process, for ever: who could wake it is in the other process."""
    plain = stage._thread

    def thread(proc: Proc) -> ThreadSample:
        sample = plain(proc)
        if proc.pid != 501 or sample.syscall != FUTEX:
            return sample
        return replace(sample, args=(3, operation, 0xFFFFFFFF, timeout, 0, 0))

    monkeypatch.setattr(stage, "_thread", thread)
    stage.forsaken = {501} if ends else set()
    loader_of_1(stage, "futex", stack=LOCK)
    if ends:
        assert hangs(stage)[1] == {EvidenceKind.STATE}
        return
    stage.run(20)
    latest = stage.tracker.latest
    assert latest is not None
    assert decide(latest, Act.SHUTDOWN).act is Act.SNAPSHOT


def stop(stage: Stage) -> None:
    stage.become(stage.rank(2), "frozen")


def want_a_lock(stage: Stage) -> None:
    stage.become(stage.rank(2), "flock", lock_holders=(100,), last_send_ns=stage.now_ns)


def sleep(stage: Stage) -> None:
    end_ns = stage.now_ns + 10**6 * NS
    stage.become(
        stage.rank(2), "sleep_long", timed=True, deadline_ns=end_ns, last_send_ns=stage.now_ns
    )


def loop(stage: Stage) -> None:
    stage.become(stage.rank(2), "spin", last_send_ns=stage.now_ns)


def take_a_lock(stage: Stage) -> None:
    stage.become(stage.rank(2), "futex", stack=LOCK, last_send_ns=stage.now_ns)


def send_first(stage: Stage) -> None:
    stage.job.attention.known.learn(LOCK)
    stage.become(stage.rank(2), "futex", stack=COLLECTIVE, last_send_ns=stage.now_ns - NS)


HANGS: dict[str, tuple[Callable[[Stage], None], EvidenceKind, int]] = {
    "frozen alone": (stop, EvidenceKind.STATE, 2),
    # whoever holds the lock keeps it in a collective
    "a circle of a file lock and a collective": (want_a_lock, EvidenceKind.STATE, 0),
    "asleep without end": (sleep, EvidenceKind.STATE, 2),
    "a loop in place": (loop, EvidenceKind.STACK, 2),
    "a lock where no thread ever waited": (take_a_lock, EvidenceKind.STACK, 2),
    "never entered what the others are in": (send_first, EvidenceKind.EDGE, 2),
}


@pytest.mark.parametrize("name", HANGS)
def test_certainty__a_rank_that_hangs_while_the_others_wait(stage: Stage, name: str) -> None:
    inject, kind, culprit = HANGS[name]
    inject(stage)
    all_wait(stage, 2)
    verdict, kinds = hangs(stage, 30)
    assert verdict.culprit is not None
    assert (verdict.culprit.rank, kinds) == (culprit, {kind})


def test_certainty__in_the_first_step_a_place_of_its_own_is_enough() -> None:
    stage = Stage(world=4, connected=False)
    for rank in range(4):
        stage.become(stage.rank(rank), "futex", stack=LOCK if rank == 2 else COLLECTIVE)
    verdict, kinds = hangs(stage, 30)
    assert verdict.culprit is not None
    assert (verdict.culprit.rank, kinds) == (2, {EvidenceKind.STACK})


def test_certainty__a_busy_waiter_does_not_sleep_at_a_lock() -> None:
    """As ranks of MPI, which were never seen asleep, so that no healthy wait is known."""
    stage = Stage(world=4, connected=False)
    for rank in range(4):
        stage.become(stage.rank(rank), "yield")
    stage.run(3)
    stage.become(stage.rank(2), "futex", stack=LOCK)
    assert stage.job.attention.known.count == 0
    verdict, kinds = hangs(stage)
    assert verdict.culprit is not None
    assert (verdict.culprit.rank, kinds) == (2, {EvidenceKind.STACK})
