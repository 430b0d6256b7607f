"""One job on two hosts as their runs report it: what is said and ordered, and when."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.api.fault_report import FaultReport
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.verdict import VerdictKind
from kcover_ebpf.run.join import messages
from kcover_ebpf.run.join.joined_gang import JoinedGang
from kcover_ebpf.run.join.messages import (
    CoordinatorMessage,
    EndOrder,
    Hello,
    MemberMessage,
    PartEnd,
)
from kcover_ebpf.settings import Act, Policy, Settings
from tests.unit.support.report_builders import NOW_S, rank, report

HOSTS = ("a", "b")


class Gang(JoinedGang):
    """Two hosts with two ranks each; the clock is moved by hand."""

    def __init__(self, act: Act = Act.SHUTDOWN, joined: int = 2, max_restarts: int = 3) -> None:
        policy = Policy(max_restarts=max_restarts)
        super().__init__("train", 2, Settings(act=act, policy=policy))
        self.now_s, self.act = NOW_S, act
        for host in HOSTS[:joined]:
            assert self.join(self.hello(host), f"10.0.0.{host}", NOW_S) is None

    def hello(self, host: str, job: str = "train") -> Hello:
        return Hello(host, job, 2, self.act, run=f"of {host}")

    def see(self, stopped: int | None = None) -> None:
        """All hosts report: of a stopped rank, or that they train."""
        for index, host in enumerate(HOSTS):
            ranks = [
                rank(number, State.STOPPED if number == stopped else State.FUTEX, 9.0)
                for number in (index, index + 2)
            ]
            hangs = stopped is not None
            made = report(host, *ranks, suspicious=hangs).report if hangs else calm(host)
            self.report(host, made, self.now_s)

    def pass_by(self, seconds: float) -> list[CoordinatorMessage]:
        """What is said meanwhile; nothing new is reported."""
        said: list[CoordinatorMessage] = []
        for _ in range(round(seconds / 0.2)):
            self.now_s += 0.2
            said += self.tick(self.now_s)
        return said


def calm(host: str) -> FaultReport:
    return FaultReport(host, NOW_S, 1, trained=True)


def orders(said: list[CoordinatorMessage]) -> list[EndOrder]:
    return [message.end for message in said if message.end is not None]


def hung(gang: Gang) -> EndOrder:
    """Rank 1, on host b, is stopped until the job is ordered to end."""
    gang.see()
    gang.pass_by(1)
    for _ in range(40):
        gang.see(stopped=1)
        found = [end for end in orders(gang.pass_by(1)) if end.act is not Act.SNAPSHOT]
        if found:
            return found[0]
    raise AssertionError("no order came")


def test_joined_gang__a_stopped_rank_of_one_host_ends_the_job_on_all() -> None:
    gang = Gang()
    gang.see()
    assert [message.verdict.kind for message in gang.pass_by(1) if message.verdict] == [
        VerdictKind.WORKING
    ]
    order = hung(gang)
    culprit = order.verdict.culprit
    assert culprit is not None
    assert (order.act, order.verdict.kind) == (Act.SHUTDOWN, VerdictKind.HUNG)
    assert (culprit.rank, culprit.host, culprit.pod, culprit.node) == (1, "b", None, None)
    assert order.verdict.incident == "train-1"


def test_joined_gang__nothing_is_ended_where_a_host_has_not_joined() -> None:
    gang = Gang(joined=1)
    said: list[CoordinatorMessage] = []
    for _ in range(60):
        gang.report("a", report("a", rank(0, State.STOPPED, 90.0)).report, gang.now_s)
        said += gang.pass_by(1)
    assert orders(said) == []
    announced = [message.verdict for message in said if message.verdict is not None]
    assert announced
    assert all("1 of 2 hosts have not joined" in verdict.unobserved for verdict in announced)


def test_joined_gang__observing_orders_nothing() -> None:
    gang = Gang(Act.OBSERVE)
    with pytest.raises(AssertionError, match="no order came"):
        hung(gang)


def test_joined_gang__a_restart_begins_when_all_hosts_have_ended_their_part() -> None:
    gang = Gang(Act.RESTART)
    order = hung(gang)
    assert order.act is Act.RESTART
    gang.done("a", order.id)
    assert gang.pass_by(2) == []
    gang.done("b", "another order")
    assert gang.pass_by(2) == []
    gang.done("b", order.id)
    (message,) = gang.pass_by(0.2)
    assert message.start is not None
    assert not gang.is_over
    second = hung(gang)
    assert second.id != order.id


def test_joined_gang__a_host_that_does_not_end_its_part_keeps_the_job_from_being_started_again() -> (
    None
):
    gang = Gang(Act.RESTART)
    order = hung(gang)
    gang.done("a", order.id)
    said = gang.pass_by(40)
    assert said == [CoordinatorMessage(over=True)]
    assert gang.is_over


def test_joined_gang__a_host_that_left_keeps_the_job_from_being_started_again() -> None:
    gang = Gang(Act.RESTART)
    order = hung(gang)
    gang.done("a", order.id)
    gang.leave("b")
    assert gang.pass_by(29) == []
    assert gang.pass_by(2) == [CoordinatorMessage(over=True)]


def test_joined_gang__a_host_that_left_before_an_order_is_not_awaited() -> None:
    gang = Gang(Act.RESTART)
    gang.see()
    gang.pass_by(1)
    gang.leave("b")
    order = gang._order(Act.RESTART, "a rank is stopped", hung(Gang()).verdict, gang.now_s)
    gang.done("a", order.id)
    assert gang.pass_by(0.2) == [CoordinatorMessage(over=True)]


@pytest.mark.parametrize("is_noticed", [True, False])
def test_joined_gang__a_host_that_is_back_is_given_the_order_that_it_missed(
    is_noticed: bool,
) -> None:
    gang = Gang(Act.RESTART)
    assert list(gang.missed(gang.hello("b"))) == []
    order = hung(gang)
    gang.done("a", order.id)
    if is_noticed:
        gang.leave("b")
    assert gang.pass_by(15) == []
    assert gang.join(gang.hello("b"), "", gang.now_s) is None
    assert list(gang.missed(gang.hello("a"))) == []
    assert list(gang.missed(gang.hello("b"))) == [CoordinatorMessage(end=order)]
    gang.done("b", order.id)
    (message,) = gang.pass_by(0.2)
    assert message.start is not None
    # a has not taken it yet when it joins again
    assert list(gang.missed(gang.hello("a"))) == [message]
    assert list(gang.missed(replace(gang.hello("a"), start=1))) == []


def test_joined_gang__an_order_waits_for_a_host_that_carried_it_out_and_lost_its_connection() -> (
    None
):
    gang = Gang(Act.RESTART)
    order = hung(gang)
    gang.done("b", order.id)
    gang.leave("b")
    gang.done("a", order.id)
    assert gang.pass_by(5) == []
    assert gang.join(gang.hello("b"), "", gang.now_s) is None
    (message,) = gang.pass_by(0.2)
    assert message.start is not None


def test_joined_gang__another_run_on_a_host_has_carried_out_no_order() -> None:
    gang = Gang(Act.RESTART)
    order = hung(gang)
    gang.done("b", order.id)
    gang.leave("b")
    other = replace(gang.hello("b"), run="another")
    assert gang.join(other, "", gang.now_s) is None
    assert list(gang.missed(other)) == [CoordinatorMessage(end=order)]


def test_joined_gang__the_end_of_a_start_before_is_not_that_of_the_present_one() -> None:
    gang = Gang(Act.RESTART)
    order = hung(gang)
    for host in HOSTS:
        gang.done(host, order.id)
    assert gang.pass_by(0.2)[0].start is not None
    gang.ended("a", PartEnd(1, start=0))
    gang.ended("b", PartEnd(1, start=1))
    gang.see()
    assert not any(message.over for message in gang.pass_by(1))
    gang.ended("a", PartEnd(0, start=1))
    assert gang.pass_by(0.2) == [CoordinatorMessage(over=True)]


def test_joined_gang__without_a_restart_left_the_job_is_ended_and_says_why() -> None:
    gang = Gang(Act.RESTART, max_restarts=0)
    order = hung(gang)
    assert (order.act, order.refusal) == (Act.SHUTDOWN, "all 0 restarts are used up")


def test_joined_gang__what_is_seen_while_a_job_is_ended_is_no_fault() -> None:
    gang = Gang()
    order = hung(gang)
    gang.see(stopped=0)
    gang.done("a", order.id)
    assert gang.pass_by(5) == []


def test_joined_gang__is_over_when_the_job_has_ended_on_all_hosts() -> None:
    gang = Gang()
    gang.see()
    gang.pass_by(1)
    gang.ended("a", PartEnd(0))
    assert not any(message.over for message in gang.pass_by(1))
    gang.ended("b", PartEnd(0))
    assert gang.pass_by(0.2) == [CoordinatorMessage(over=True)]
    assert gang.join(gang.hello("a"), "", NOW_S) is not None


@pytest.mark.parametrize(
    ("hello", "said"),
    [
        (Hello("a", "train", 2, Act.SHUTDOWN), "host names must differ"),
        (Hello("c", "train", 2, Act.SHUTDOWN), "all 2 hosts have already joined"),
        (Hello("c", "other", 2, Act.SHUTDOWN), "the job of the coordinator is train"),
        (Hello("c", "train", 3, Act.SHUTDOWN), "must be the same"),
        (Hello("c", "train", 2, Act.OBSERVE), "must be the same"),
        (Hello("c", "train", 2, Act.SHUTDOWN, version=1), "the same version"),
    ],
)
def test_joined_gang__who_does_not_belong_to_it_is_refused(hello: Hello, said: str) -> None:
    refused = Gang().join(hello, "", NOW_S)
    assert refused is not None
    assert said in refused


def test_joined_gang__a_host_that_lost_its_connection_may_join_again() -> None:
    gang = Gang()
    gang.leave("a")
    assert gang.join(gang.hello("a"), "", NOW_S) is None


def test_joined_gang__a_run_that_is_back_before_its_loss_is_noticed_takes_its_own_place() -> None:
    gang = Gang()
    gang.see()
    gang.ended("a", PartEnd(0))
    assert gang.join(gang.hello("a"), "", NOW_S) is None
    gang.ended("b", PartEnd(0))
    # what it had said counts
    assert gang.pass_by(0.2) == [CoordinatorMessage(over=True)]


def test_joined_gang__a_report_speaks_for_its_own_host_only() -> None:
    gang = Gang()
    forged = report("b", rank(1, State.STOPPED, 90.0)).report
    gang.see()
    gang.report("a", forged, gang.now_s)
    seen = [host.received for host in gang._hosts.values() if host.received is not None]
    assert [received.report.node for received in seen] == ["a", "b"]
    assert {rank.pod_uid for rank in seen[0].report.ranks} == {"a"}


def test_messages__a_report_and_an_order_are_read_as_they_were_written() -> None:
    said = MemberMessage(report=report("a", rank(0, State.STOPPED)).report)
    assert messages.from_member(messages.packed(said)).report is not None
    order = hung(Gang())
    again = messages.to_member(messages.packed(CoordinatorMessage(end=order))).end
    assert again is not None
    assert (again.id, again.act, again.reason) == (order.id, order.act, order.reason)
    assert again.verdict.culprit == order.verdict.culprit
    assert again.verdict.since_s == pytest.approx(order.verdict.since_s, abs=0.01)
