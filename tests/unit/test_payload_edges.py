"""Which connections say something about the training: those between its ranks that carry its data, and no others."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest

from kcover_ebpf.diagnosis import tcp_links
from kcover_ebpf.diagnosis.decisions import decide
from kcover_ebpf.diagnosis.traffic import Traffic
from kcover_ebpf.diagnosis.verdict import Cause, EvidenceKind, Verdict, VerdictKind
from kcover_ebpf.facts.kernel import SocketSample
from kcover_ebpf.ids import Inode, Pid
from kcover_ebpf.settings import Act
from kcover_ebpf.tunables.diagnosis import PAYLOAD_RATE

from .scripted_job import LOCK, NS, START_NS, Proc, Stage

_NOTHING = SocketSample(
    boottime_ns=0,
    pid=Pid(0),
    fd=0,
    inode=Inode(0),
    state="ESTABLISHED",
    local=("10.1.0.5", 51000),
    remote=("198.51.100.7", 443),
    unread_bytes=0,
    unsent_bytes=0,
    unacked_bytes=0,
    acked_bytes=0,
    received_bytes=0,
    backoff=0,
    send_window_bytes=65536,
    last_send_ns=START_NS,
    last_receive_ns=START_NS,
)
RTO_NS = 200_000_000


@dataclass
class Wired(Stage):
    """A job whose data goes round a ring, whose store and keep-alives tick every second, at phases of their own."""

    heartbeats: bool = True
    silent_data: bool = False
    """Its data goes where no socket is (RDMA, NVLink)."""
    seed: int = 1
    cut: tuple[int, int] | None = None
    cut_ns: int = 0
    """The data connection from one rank to the next one loses everything since then."""
    unread: dict[tuple[int, int], int] = field(default_factory=dict)
    """Bytes that a process has not read, by its pid and descriptor."""
    _phases: dict[tuple[int, str], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        super().__post_init__()

    def _socket(self, proc: Proc) -> None:
        rank = proc.rank or 0
        after = (rank + 1) % self.world
        if not self.silent_data:
            self._pair(proc.pid, 20, 40_000 + rank, 41_000 + after, proc.sent, proc.last_send_ns)
            before = (rank - 1) % self.world
            self._pair(proc.pid, 21, 41_000 + rank, 40_000 + before, proc.sent, proc.last_send_ns)
        if self.heartbeats:
            self._beat(proc.pid, 30, 50_000 + rank, 51_000 + after, (rank, "ras"), 64)
            before = (rank - 1) % self.world
            self._beat(proc.pid, 31, 51_000 + rank, 50_000 + before, (before, "ras"), 64)
            if rank:
                self._beat(proc.pid, 32, 30_000 + rank, 29_500, (rank, "store"), 29)
                first = self.rank(0).pid
                self._beat(first, 100 + rank, 29_500, 30_000 + rank, (rank, "store"), 29)

    def _beat(
        self, pid: int, fd: int, local: int, remote: int, name: tuple[int, str], size: int
    ) -> None:
        phase_s = self._phases.setdefault(name, self.random.random())
        age_ns = int((self.now_ns / NS - phase_s) % 1.0 * NS)
        count = int(self.now_ns / NS - phase_s)
        self._pair(pid, fd, local, remote, count * size, self.now_ns - age_ns)

    def _pair(self, pid: int, fd: int, local: int, remote: int, moved: int, sent_ns: int) -> None:
        lost = self.cut is not None and pid == 100 + self.cut[0] and remote == 41_000 + self.cut[1]
        self.feed(
            replace(
                _NOTHING,
                boottime_ns=self.now_ns,
                pid=Pid(pid),
                fd=fd,
                inode=Inode(pid * 1000 + fd),
                local=("10.0.0.1", local),
                remote=("10.0.0.1", remote),
                acked_bytes=moved,
                received_bytes=moved,
                unread_bytes=self.unread.get((pid, fd), 0),
                last_send_ns=sent_ns,
                last_receive_ns=sent_ns,
                **(unanswered(self.now_ns - self.cut_ns) if lost else {}),  # type: ignore[arg-type]
            )
        )


def unanswered(age_ns: int) -> dict[str, int]:
    """What the kernel says of a segment that was first sent so long ago, and never acknowledged."""
    backoff = 0
    while RTO_NS * ((1 << (backoff + 1)) - 1) <= age_ns:
        backoff += 1
    return {"backoff": backoff, "unacked_bytes": 1448}


def outside(stage: Stage, proc: Proc, **more: object) -> None:
    """A connection of a rank to a service on the internet."""
    known = {"boottime_ns": stage.now_ns, "pid": Pid(proc.pid), "fd": 77, "inode": Inode(777)}
    stage.feed(replace(_NOTHING, **(known | more)))  # type: ignore[arg-type]


def faults(stage: Stage) -> list[Verdict]:
    return [verdict for verdict in stage.verdicts if verdict.kind.is_fault]


def all_become(stage: Stage, mode: str) -> None:
    for proc in stage.procs.values():
        stage.become(proc, mode, last_send_ns=stage.now_ns)


def payload_of(stage: Stage, pid: int) -> set[int]:
    """Descriptors of the connections that carry payload, by their local ends."""
    carrying = {each.local for each in stage.job.snapshot().ranks[Pid(pid)].sockets if each.payload}
    sockets = stage.job.members.views[Pid(pid)].sockets
    return {fd for fd, sample in sockets.items() if sample.local in carrying}


@pytest.mark.parametrize("others", ["run", "futex"])
def test_a_dead_connection_to_a_service_is_no_lost_link(others: str) -> None:
    stage = Stage(world=8)
    stage.run(30)
    all_become(stage, "run")
    stage.run(60)
    broken_ns = stage.now_ns
    for rank in range(1, 8):
        stage.become(stage.rank(rank), others)
    stage.become(stage.rank(0), "write", io_bytes_s=50_000_000)
    for _ in range(120):
        outside(stage, stage.rank(5), **unanswered(stage.now_ns - broken_ns))
        stage.one_pass(NS // 4 if stage.job.urgent else NS)
    assert faults(stage) == []
    assert stage.tracker.current is not None
    assert stage.tracker.current.kind is VerdictKind.WORKING


def test_a_dead_connection_to_a_service_is_no_lost_link_on_one_of_several_hosts() -> None:
    stage = Stage(world=8, here=4)
    stage.run(30)
    for index in range(120):
        # it carries as much as the ranks do, until it dies
        moved = {"acked_bytes": 100_000 * index, "received_bytes": 5000}
        outside(stage, stage.rank(2), **moved)
        stage.one_pass(NS)
    broken_ns = stage.now_ns
    all_become(stage, "futex")
    stage.become(stage.rank(0), "write", io_bytes_s=50_000_000)
    for _ in range(60):
        outside(stage, stage.rank(2), **moved | unanswered(stage.now_ns - broken_ns))
        stage.one_pass(NS // 4 if stage.job.urgent else NS)
    assert faults(stage) == []


@pytest.mark.parametrize(("trained", "is_lost"), [(True, True), (False, False)])
def test_a_link_to_a_rank_that_is_not_seen_is_lost_if_it_carried_payload(
    trained: bool, is_lost: bool
) -> None:
    stage = Stage(world=8, here=4)
    far = {"local": ("10.1.0.5", 51_000), "remote": ("10.1.0.6", 41_000), "fd": 50}
    moved = 0
    for _ in range(30):
        moved += 50_000 if trained else 0
        outside(stage, stage.rank(3), acked_bytes=moved, **far)
        stage.one_pass(NS)
    broken_ns = stage.now_ns
    all_become(stage, "futex")
    for _ in range(40):
        lost = unanswered(stage.now_ns - broken_ns)
        outside(stage, stage.rank(3), acked_bytes=moved, **far | lost)
        stage.one_pass(NS // 4 if stage.job.urgent else NS)
    assert (VerdictKind.LOST_LINK in {each.kind for each in faults(stage)}) is is_lost


def test_a_link_is_lost_since_it_broke_and_not_since_a_rank_moved() -> None:
    # three ranks have been computing for a minute when the connection between two of them dies
    stage = Wired(world=4)
    stage.run(30)
    all_become(stage, "run")
    stage.run(60)
    stage.cut, stage.cut_ns = (1, 2), stage.now_ns
    reported = stage.run(6)
    assert reported is not None
    assert reported.kind is VerdictKind.LOST_LINK
    assert reported.since_s == pytest.approx(stage.cut_ns / NS, abs=1.1)
    assert decide(reported, Act.SHUTDOWN, None, 8.0).act is Act.SNAPSHOT
    stage.run(8)
    latest = stage.tracker.latest
    assert latest is not None
    assert latest.since_s == pytest.approx(stage.cut_ns / NS, abs=1.1)
    assert decide(latest, Act.SHUTDOWN, None, 8.0).act is Act.SHUTDOWN


def test_a_lost_heartbeat_is_no_lost_link() -> None:
    stage = Wired(world=4)
    stage.run(30)
    all_become(stage, "futex")
    stage.run(1)
    broken_ns = stage.now_ns
    for _ in range(20):
        stage.one_pass(NS // 4)
        # the store's connection of rank 3 gets no answer any more
        view = stage.job.members.views[Pid(103)]
        lost = unanswered(stage.now_ns - broken_ns)
        view.sockets[32] = replace(view.sockets[32], **lost)  # type: ignore[arg-type]
        picture = stage.job.snapshot()
        assert tcp_links.lost_edges(picture.ranks.values(), picture.ends) == []


def test_payload_is_distinguished_from_heartbeats() -> None:
    stage = Wired(world=4)
    stage.run(30)
    assert payload_of(stage, 100) == payload_of(stage, 102) == {20, 21}


def test_what_moved_payload_once_in_many_steps_is_no_part_of_them() -> None:
    stage = Wired(world=4)
    stage.run(20)
    view = stage.job.members.views[Pid(103)]
    for _ in range(2):
        # a new group is agreed upon, over the store
        sample = view.sockets[32]
        view.on_socket(replace(sample, received_bytes=sample.received_bytes + 5000))
        stage.run(15)
    assert payload_of(stage, 103) == {20, 21}


@pytest.mark.parametrize(("rate", "carries"), [(PAYLOAD_RATE - 1, False), (PAYLOAD_RATE, True)])
@pytest.mark.parametrize("period_ns", [NS, 3 * NS])
def test_payload_is_counted_by_the_second(rate: int, carries: bool, period_ns: int) -> None:
    traffic, before, now_ns = Traffic(), None, 0
    for count in range(5):
        now_ns += period_ns
        sample = replace(_NOTHING, boottime_ns=now_ns, acked_bytes=count * rate * period_ns // NS)
        traffic.observe(before, sample)
        traffic.end_pass(now_ns, period_ns, healthy=True)
        before = sample
    assert traffic.payload_passes(sample) == (4 if carries else 0)
    assert traffic.payload_passes(replace(sample, inode=Inode(9))) == 0


def test_before_any_training_was_seen_the_life_of_a_connection_decides() -> None:
    stage = Wired(world=4)
    for proc in stage.procs.values():
        proc.sent = 10**9
    all_become(stage, "futex")
    stage.run(3)
    assert not stage.job.pace.trained
    assert payload_of(stage, 101) == {20, 21}


@pytest.mark.parametrize("mode", ["futex", "yield", "spin"])
@pytest.mark.parametrize("silent_data", [True, False], ids=["RDMA", "TCP"])
def test_heartbeats_say_nothing_about_the_order_of_sending(mode: str, silent_data: bool) -> None:
    for seed in range(2):
        stage = Wired(world=6, silent_data=silent_data, seed=seed)
        stage.run(20)
        all_become(stage, mode)
        stage.run(15)
        assert [each.culprit for each in faults(stage) if each.culprit] == []
        kinds = {each.kind for verdict in faults(stage) for each in verdict.evidence}
        assert EvidenceKind.EDGE not in kinds


def test_who_never_entered_the_collective_is_named_in_spite_of_heartbeats() -> None:
    stage = Wired(world=8)
    stage.run(40)
    for rank in range(8):
        stage.become(stage.rank(rank), "futex")
        if rank != 3:
            stage.rank(rank).last_send_ns = stage.now_ns + NS // 5
    stage.run(20)
    (verdict,) = faults(stage)
    assert verdict.culprit is not None
    assert (verdict.cause, verdict.culprit.rank) == (Cause.BLOCKED_UNKNOWN, 3)
    assert any("last send was 0.20 s before" in each.text for each in verdict.evidence)


def test_what_a_store_has_not_read_is_no_sign_of_a_stuck_rank() -> None:
    stage = Wired(world=4)
    stage.run(30)
    all_become(stage, "futex")
    stage.become(stage.rank(0), "futex", stack=LOCK)
    stage.run(2)
    view = stage.job.members.views[Pid(100)]
    for fd in (20, 21, 101):
        view.sockets[fd] = replace(view.sockets[fd], unread_bytes=29)
    picture = stage.job.snapshot()
    assert tcp_links.unread(picture.ranks[Pid(100)], picture.ends, picture.ranks) == (58, 2)
