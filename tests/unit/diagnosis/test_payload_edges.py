"""Which connections say something about the training: those between its ranks that carry its data, and no others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.diagnosis.decisions import decide
from kcover_ebpf.diagnosis.evidence import tcp_links
from kcover_ebpf.diagnosis.history.traffic import Traffic
from kcover_ebpf.diagnosis.job_snapshot import snapshot_of
from kcover_ebpf.ids import NS, Inode, Pid
from kcover_ebpf.model.verdict import Cause, EvidenceKind, VerdictKind
from kcover_ebpf.settings import Act, Policy
from kcover_ebpf.tunables.diagnosis import PAYLOAD_RATE
from tests.unit.support.scripted_job import LOCK, Stage
from tests.unit.support.seen_verdicts import faults
from tests.unit.support.wired_stage import NOTHING, Wired, all_become, outside, unanswered


def payload_of(stage: Stage, pid: int) -> set[int]:
    """Descriptors of the connections that carry payload, by their local ends."""
    carrying = {
        socket.local for socket in stage.job.snapshot().ranks[Pid(pid)].sockets if socket.payload
    }
    sockets = stage.job.members.views[Pid(pid)].sockets
    return {fd for fd, sample in sockets.items() if sample.local in carrying}


@pytest.mark.parametrize("others", ["run", "futex"])
def test_payload_edges__a_dead_connection_to_a_service_is_no_lost_link(others: str) -> None:
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


def test_payload_edges__a_dead_connection_to_a_service_is_no_lost_link_on_one_of_several_hosts() -> (
    None
):
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
def test_payload_edges__a_link_to_a_rank_that_is_not_seen_is_lost_if_it_carried_payload(
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
    assert (VerdictKind.LOST_LINK in {fault.kind for fault in faults(stage)}) is is_lost


def test_payload_edges__a_link_is_lost_since_it_broke_and_not_since_a_rank_moved() -> None:
    # three ranks have been computing for a minute when the connection between two of them dies
    stage = Wired(world=4, policy=Policy(link_patience_s=8))
    stage.run(30)
    all_become(stage, "run")
    stage.run(60)
    stage.cut, stage.cut_ns = (1, 2), stage.now_ns
    reported = stage.run(6)
    assert reported is not None
    assert reported.kind is VerdictKind.LOST_LINK
    assert reported.since_s == pytest.approx(stage.cut_ns / NS, abs=1.1)
    assert decide(reported, Act.SHUTDOWN).act is Act.SNAPSHOT
    stage.run(8)
    latest = stage.tracker.latest
    assert latest is not None
    assert latest.since_s == pytest.approx(stage.cut_ns / NS, abs=1.1)
    assert decide(latest, Act.SHUTDOWN).act is Act.SHUTDOWN


def test_lost_edges__a_lost_heartbeat_is_no_lost_link() -> None:
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
        snapshot = stage.job.snapshot()
        assert tcp_links.lost_edges(snapshot.ranks.values(), snapshot.ends) == []


def test_payload_edges__payload_is_distinguished_from_heartbeats() -> None:
    stage = Wired(world=4)
    stage.run(30)
    assert payload_of(stage, 100) == payload_of(stage, 102) == {20, 21}


def test_payload_edges__what_moved_payload_once_in_many_steps_is_no_part_of_them() -> None:
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
def test_traffic__payload_is_counted_by_the_second(
    rate: int, carries: bool, period_ns: int
) -> None:
    traffic, before, now_ns = Traffic(), None, 0
    for count in range(5):
        now_ns += period_ns
        sample = replace(NOTHING, boottime_ns=now_ns, acked_bytes=count * rate * period_ns // NS)
        traffic.observe(before, sample)
        traffic.end_pass(now_ns, period_ns, healthy=True)
        before = sample
    assert traffic.payload_passes(sample) == (4 if carries else 0)
    assert traffic.payload_passes(replace(sample, inode=Inode(9))) == 0


def test_payload_edges__before_any_training_was_seen_the_life_of_a_connection_decides() -> None:
    stage = Wired(world=4)
    for proc in stage.procs.values():
        proc.sent = 10**9
    all_become(stage, "futex")
    stage.run(3)
    assert not stage.job.pace.trained
    assert payload_of(stage, 101) == {20, 21}


@pytest.mark.parametrize("mode", ["futex", "yield", "spin"])
@pytest.mark.parametrize("silent_data", [True, False], ids=["RDMA", "TCP"])
def test_payload_edges__heartbeats_say_nothing_about_the_order_of_sending(
    mode: str, silent_data: bool
) -> None:
    for seed in range(2):
        stage = Wired(world=6, silent_data=silent_data, seed=seed)
        stage.run(20)
        all_become(stage, mode)
        stage.run(15)
        assert [fault.culprit for fault in faults(stage) if fault.culprit] == []
        kinds = {evidence.kind for verdict in faults(stage) for evidence in verdict.evidence}
        assert EvidenceKind.EDGE not in kinds


def test_payload_edges__who_never_entered_the_collective_is_named_in_spite_of_heartbeats() -> None:
    stage = Wired(world=8)
    stage.run(40)
    for rank in range(8):
        stage.become(stage.rank(rank), "futex")
        if rank != 3:
            stage.rank(rank).last_send_ns = stage.now_ns + NS // 5
    stage.run(30)
    (verdict,) = faults(stage)
    assert verdict.culprit is not None
    assert (verdict.cause, verdict.culprit.rank) == (Cause.BLOCKED_UNKNOWN, 3)
    assert any("last send was 0.20 s before" in evidence.text for evidence in verdict.evidence)


def test_unread__what_a_store_has_not_read_is_no_sign_of_a_stuck_rank() -> None:
    stage = Wired(world=4)
    stage.run(30)
    all_become(stage, "futex")
    stage.become(stage.rank(0), "futex", stack=LOCK)
    stage.run(2)
    view = stage.job.members.views[Pid(100)]
    for fd in (20, 21, 101):
        view.sockets[fd] = replace(view.sockets[fd], unread_bytes=29)
    snapshot = snapshot_of(stage.job)
    assert tcp_links.unread(snapshot.ranks[Pid(100)], snapshot.ends, snapshot.ranks) == (58, 2)
