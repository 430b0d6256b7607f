"""One process over time: which bytes between ranks are more than heartbeats."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.facts.kernel import ProcessTotals, Tick
from kcover_ebpf.ids import NS, Pid, Tid
from kcover_ebpf.model.process_state import Effort
from tests.unit.support.thread_samples import TABLE, sample

NANOSLEEP = 230


@pytest.mark.parametrize(
    ("typical", "moved", "is_payload"),
    [
        (0, 0, False),
        (0, 511, False),
        (0, 512, True),
        (100_000, 9_999, False),
        (100_000, 10_001, True),
        (1_000, 511, False),
    ],
)
def test_process_history__heartbeats_are_distinguished_from_payload(
    typical: int, moved: int, is_payload: bool
) -> None:
    view = ProcessHistory(Pid(1), 0)
    view.on_peer_bytes(typical, NS)
    assert view.on_peer_bytes(moved, 2 * NS) is is_payload
    assert view.peer_bytes_ns == (2 * NS if is_payload else NS if typical else 0)


def test_process_history__heartbeats_never_become_typical() -> None:
    view = ProcessHistory(Pid(1), 0)
    view.on_peer_bytes(100_000, 0)
    assert not any(view.on_peer_bytes(5_000, step * NS) for step in range(1, 300))


@pytest.mark.parametrize(
    ("moved_s", "visited_s", "known"), [(20, 20, True), (19, 20, False), (20, 18, False)]
)
def test_process_history__a_child_is_learned_in_passes_that_see_it_and_its_rank_move(
    moved_s: int, visited_s: int, *, known: bool
) -> None:
    rank, child = ProcessHistory(Pid(1), 0), ProcessHistory(Pid(2), 0)
    for at_s in range(20):
        late_s = at_s + (moved_s - 20), at_s + (visited_s - 20)
        rank.peer_bytes_ns = late_s[0] * NS
        child.on_thread(replace(sample(at_s, NANOSLEEP), pid=Pid(2), tid=Tid(2)), TABLE)
        child.on_totals(replace(totals(late_s[1], 0), pid=Pid(2)))
        rank.note_child_beside(child, Tick(at_s * NS, NS, 0, late=False), TABLE)
    assert child.rhythm.is_known is known


def totals(at_s: float, cpu_s: float) -> ProcessTotals:
    return ProcessTotals(int(at_s * NS), Pid(1), Pid(0), int(cpu_s * NS), 0, 0, 0, 0, 0, 1)


@pytest.mark.parametrize(
    ("since_s", "recent_s", "found"),
    [
        (0, 0, True),
        (10, 13, True),  # the interval is the last one: it counts until the next totals
        (10, 30, True),
        (11, 0, False),  # it began before the wait: what was done may have been done before
    ],
)
def test_process_history__an_effort_counts_from_the_wait_on_until_the_next_totals(
    since_s: int, recent_s: int, *, found: bool
) -> None:
    view = ProcessHistory(Pid(1), 0)
    for process_totals in (totals(10, 0), totals(14, 2)):
        view.on_totals(process_totals)
    expected = Effort.COMPUTE if found else None
    assert view.efforts.during(since_s * NS, recent_s * NS) is expected
    view.on_totals(totals(18, 2))
    assert view.efforts.during(0, 15 * NS) is None
