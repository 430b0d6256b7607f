"""Reports that are late by up to two seconds, and what may still be said about who sent first."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.api.fault_report import object_of
from kcover_ebpf.api.job_kinds import GangId
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.gang.gang_input import GangInput, NodeState
from kcover_ebpf.gang.gang_judge import merge
from kcover_ebpf.gang.report_delays import Delays
from kcover_ebpf.kube.reflector import Change, Event
from kcover_ebpf.model.process_state import State
from kcover_ebpf.settings import Policy
from tests.unit.support.report_builders import NOW_S, SELECTOR, pod, rank, report

NODES = ("n0", "n1", "n2", "n3")
late = st.lists(st.floats(0.0, 2.0), min_size=4, max_size=4)
clocks = st.lists(st.floats(-30.0, 30.0), min_size=4, max_size=4)


class Job:
    """One rank on each of four nodes, whose reports reach a controller."""

    def __init__(self, ahead_s: list[float]) -> None:
        """`ahead_s`: by how much the clock of each node is ahead of the controller's."""
        self.now_s, self.ahead_s = NOW_S - 100, ahead_s
        self.store = ObjectCache(lambda _: None, wall=lambda: self.now_s)

    def report(self, number: int, made_s: float, sent_s: float) -> None:
        """A report that was made then, and comes now; `sent_s`: when its rank sent last."""
        age_s = made_s - sent_s
        reported = rank(number, State.PEERS, age_s, sent_age_s=age_s, received_age_s=age_s)
        said = report(NODES[number], reported, time_s=made_s + self.ahead_s[number]).report
        body = object_of(said, "ns", f"r-{number}")
        body["metadata"]["uid"] = f"r-{number}"
        self.store.on_report(Event(Change.SET, body))

    def case(self) -> GangInput:
        seen = self.store.seen(GangId.of("ns", SELECTOR))
        pods = tuple(replace(pod(number), node=node) for number, node in enumerate(NODES))
        states = {node: NodeState(node) for node in NODES}
        return GangInput("ns/j", seen, pods, states, Policy(), self.now_s)


def named(
    ahead_s: list[float], late_s: list[float], sent_s: list[float], *, known: bool = True
) -> int | None:
    """Who is named 8 s after they sent; `known`: the nodes have reported before, some reports without delay."""
    job = Job(ahead_s)
    for other_number in range(4 if known else 0):
        for number in range(4):
            job.now_s += 2
            made_s = job.now_s - (late_s[number] if other_number == 1 else 0.0)
            job.report(number, made_s, made_s - 1.0)
    job.now_s = NOW_S
    for number in range(4):
        job.report(number, NOW_S - late_s[number], NOW_S + sent_s[number])
    culprit = merge(job.case()).culprit
    return culprit.rank if culprit is not None else None


@given(clocks, late)
def test_report_delays__no_rank_is_named_where_all_entered_together(ahead_s, late_s):
    assert named(ahead_s, late_s, [-8.0, -8.01, -8.02, -8.01]) is None


@given(clocks, late)
def test_report_delays__no_rank_is_named_where_nothing_is_known_of_the_clocks(ahead_s, late_s):
    assert named(ahead_s, late_s, [-8.0, -8.01, -8.02, -8.01], known=False) is None


@given(clocks, late, st.integers(0, 3))
def test_report_delays__a_true_lead_of_a_second_is_not_lost_by_late_reports(ahead_s, late_s, first):
    sent_s = [-9.0 if number == first else -8.0 for number in range(4)]
    assert named(ahead_s, late_s, sent_s) == first


def test_delays__a_delay_is_what_exceeds_the_least_difference_of_the_clocks():
    delays = Delays()
    assert delays.delay_s("a", 100.0, 130.5) is None
    assert delays.delay_s("a", 101.0, 131.0) == pytest.approx(0.0)
    assert delays.delay_s("a", 102.0, 133.2) == pytest.approx(1.2)
    assert delays.delay_s("b", 102.0, 133.2) is None


def test_delays__a_clock_that_drifts_or_was_set_is_followed():
    delays = Delays()
    for second in range(0, 3600, 30):
        delays.delay_s("a", second, second)
    for second in range(3600, 4300, 30):  # it was set back by three seconds
        delays.delay_s("a", second - 3.0, second)
    assert delays.delay_s("a", 4330.0 - 3.0, 4330.0) == pytest.approx(0.0)


def test_delays__a_report_that_is_sent_again_as_it_was_does_not_age_without_end():
    delays = Delays()
    delays.delay_s("a", 100.0, 100.0)
    assert delays.delay_s("a", 100.0, 160.0) == 5.0


def test_delays__a_clock_that_is_set_back_makes_no_later_report_old():
    """For ten minutes each pause of a rank would have seemed five seconds longer than it was."""
    delays = Delays()
    for second in range(10):
        delays.delay_s("a", second, second)
    assert delays.delay_s("a", 10.0 - 10.0, 10.0) is None
    assert delays.delay_s("a", 11.0 - 10.0, 11.0) == pytest.approx(0.0)
    assert delays.delay_s("a", 12.0 - 10.0, 12.7) == pytest.approx(0.7)


def test_delays__a_report_that_was_really_late_hides_no_later_delay():
    delays = Delays()
    for second in range(10):
        delays.delay_s("a", second, second)
    assert delays.delay_s("a", 10.0, 22.0) is None
    assert delays.delay_s("a", 23.0, 23.0) == pytest.approx(0.0)
    assert delays.delay_s("a", 24.0, 25.2) == pytest.approx(1.2)
