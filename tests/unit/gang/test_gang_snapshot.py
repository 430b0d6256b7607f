"""What several nodes report is judged by all that one host knows of its ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.api.fault_report import REPORT, FaultReport
from kcover_ebpf.gang.gang_judge import merge
from kcover_ebpf.gang.gang_snapshot import ReceivedReport, gather
from kcover_ebpf.ids import Pid
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.rank_snapshot import RankSnapshot
from kcover_ebpf.model.verdict import Cause, VerdictKind
from kcover_ebpf.settings import Policy
from tests.unit.support.report_builders import COLLECTIVE, LOCK, NOW_S, case, rank, report, wire


def on_two_nodes(*ranks: RankSnapshot, late_s: float = 0.5, **more) -> list[ReceivedReport]:
    """Even ranks on the first node, odd ones on the second; through the codec, as the controller reads them."""
    made = (
        report(
            node,
            *(rank_snapshot for rank_snapshot in ranks if (rank_snapshot.rank or 0) % 2 == odd),
            **more,
        )
        for odd, node in enumerate("ab")
    )
    return [
        ReceivedReport(REPORT.decode(FaultReport, REPORT.encode(received.report)), NOW_S - late_s)
        for received in made
    ]


def on_device(number: int, busy: bool | None) -> RankSnapshot:
    return rank(number, State.ON_DEVICE, 40.0, network_busy=busy)


@pytest.mark.parametrize(
    ("knows_cadence", "cause", "culprit"),
    [(True, Cause.NOT_IN_COLLECTIVE, 3), (False, Cause.DEVICE_WAIT, None)],
)
def test_merge__names_the_rank_whose_network_thread_is_idle_once_the_cadence_is_learned(
    knows_cadence: bool, cause: Cause, culprit: int | None
) -> None:
    ranks = [on_device(number, number != 3) for number in range(4)]
    ranks = [replace(rank_snapshot, age_s=70.0) for rank_snapshot in ranks]
    merged = merge(case(*on_two_nodes(*ranks, knows_cadence=knows_cadence)))
    assert (merged.verdict.kind, merged.verdict.cause) == (VerdictKind.UNKNOWN, cause)
    assert (merged.culprit.rank if merged.culprit else None) == culprit


def test_merge__of_agents_that_do_not_report_network_threads_none_is_idle() -> None:
    ranks = [replace(on_device(number, None), age_s=70.0) for number in range(4)]
    merged = merge(case(*on_two_nodes(*ranks, knows_cadence=True)))
    assert (merged.verdict.cause, merged.culprit) == (Cause.DEVICE_WAIT, None)


@pytest.mark.parametrize(("broken_age_s", "since_s"), [(30.0, 30.5), (None, 6.2)])
def test_merge__a_link_is_lost_since_it_broke_and_else_since_its_back_off_began(
    broken_age_s: float | None, since_s: float
) -> None:
    lost = {"backoff": 5, "unacked": 9000, "payload": True, "broken_age_s": broken_age_s}
    ranks = [
        rank(0, sockets=(wire(0, 1, **lost),)),
        rank(1, sockets=(wire(1, 0, **lost), wire(1, 2, **lost))),
        rank(2, sockets=(wire(2, 1, **lost),)),
        rank(3),
    ]
    verdict = merge(case(*on_two_nodes(*ranks))).verdict
    assert verdict.kind is VerdictKind.LOST_LINK
    assert NOW_S - verdict.since_s == pytest.approx(since_s, abs=0.01)


def ended(number: int, how: str) -> RankSnapshot:
    return rank(number, State.GONE, 400.0, pid=Pid(900), exit=how, stack=(), known_wait=False)


def test_merge__a_rank_that_its_own_launcher_ended_and_did_not_start_again_is_named() -> None:
    waiting = [rank(number, age_s=399.0) for number in range(3)]
    gone = [rank(3, State.GONE, 400.0, exit="signal 15", stack=(), known_wait=False)]
    merged = merge(case(*on_two_nodes(*waiting, *gone)))
    assert (merged.verdict.cause, merged.culprit and merged.culprit.rank) == (Cause.KILLED, 3)
    back = [ended(3, "signal 15"), rank(3, age_s=399.0)]
    assert merge(case(*on_two_nodes(*waiting, *back))).verdict.cause is not Cause.KILLED


def test_gather__a_wait_that_was_seen_to_end_on_one_node_is_known_on_all() -> None:
    there = replace(rank(1), known_wait=False)
    other = rank(3, stack=LOCK, known_wait=False)
    seen = on_two_nodes(rank(0), there, rank(2), other)
    ranks = gather(seen, NOW_S, Policy()).job.ranks.values()
    assert {rank_snapshot.rank: rank_snapshot.known_wait for rank_snapshot in ranks} == {
        0: True,
        1: True,
        2: True,
        3: False,
    }
    assert {rank_snapshot.stack for rank_snapshot in ranks} == {COLLECTIVE, LOCK}


def test_gather__ages_count_from_now_and_processes_of_two_nodes_are_never_one() -> None:
    waits = replace(rank(1, State.LOCK, 6.0), waits_for=(Pid(101),))
    seen = on_two_nodes(rank(0, age_s=6.0, pid=100), waits, late_s=2.0)
    zero, one = gather(seen, NOW_S, Policy()).job.ranks.values()
    assert (zero.age_s, zero.sent_age_s, zero.received_age_s) == (8.0, 8.0, 8.0)
    assert zero.pid != one.pid
    assert one.waits_for[0] & 0xFFFFFF != 101
    assert one.waits_for[0] >> 22 == one.pid >> 22


def test_gather__what_was_no_payload_to_a_rank_orders_no_sending() -> None:
    store = replace(
        wire(0, 1, payload=True, sent_age_s=1.0), remote=wire(2, 3).local._replace(port=443)
    )
    mine = rank(0, sockets=(store, wire(0, 1, payload=True, sent_age_s=9.0)))
    seen = on_two_nodes(mine, rank(1, sockets=(wire(1, 0, payload=True, sent_age_s=5.0),)))
    first = next(iter(gather(seen, NOW_S, Policy()).job.ranks.values()))
    assert first.sent_age_s == 9.5
    assert [socket.payload for socket in first.sockets] == [False, True]
