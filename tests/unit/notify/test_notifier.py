"""What is said once, what is tried again, and that nothing waits for it."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from kcover_ebpf.api.fault_policy import NotifyRule
from kcover_ebpf.api.incident import Incident, Phase
from kcover_ebpf.errors import NotSent
from kcover_ebpf.model.verdict import FailureClass
from kcover_ebpf.notify import notifier as module
from kcover_ebpf.notify.message import Message
from kcover_ebpf.notify.notifier import Notifier
from kcover_ebpf.notify.sending import Sender
from kcover_ebpf.notify.target import MessageForm, NotifyTarget
from tests.unit.notify.notified_incidents import incident, status
from tests.unit.support.fake_api_server import Answer, Request, serving
from tests.waiting import until

SLACK, PAGER = (
    NotifyTarget("slack", MessageForm.SLACK),
    NotifyTarget("pager", MessageForm.PAGERDUTY),
)
RULE = NotifyRule("slack")
EACH = (Phase.OPEN, Phase.DECIDED, Phase.SHUTTING_DOWN, Phase.RECOVERING, Phase.RECOVERED)


class FakeTargets:
    """Keeps what is sent; fails as often as a test wants."""

    def __init__(self, *targets: NotifyTarget, fails: int = 0, is_final: bool = False) -> None:
        self.got: list[tuple[str, str]] = []
        self.notified: list[str] = []
        self.fails, self.is_final = fails, is_final
        self.notifier = Notifier(targets or (SLACK, PAGER), self.send, self.done)

    def send(self, target: NotifyTarget, message: Message) -> bool:
        if self.fails:
            self.fails -= 1
            raise NotSent("no", self.is_final)
        self.got.append((target.name, message.phase))
        return True

    def done(self, _: Incident, notified: str) -> None:
        self.notified.append(notified)

    def say(self, *phases: Phase, rules=(RULE,), notified: Incident | None = None, **more) -> None:
        for phase in phases:
            self.notifier.publish(notified or incident(), status(phase, **more), rules)

    def end(self) -> list[tuple[str, str]]:
        self.notifier.start()
        self.notifier.close(5.0)
        assert not any(thread.is_alive() for thread in self.notifier.threads)
        return self.got

    def counts(self) -> dict[tuple[str, str], float]:
        return {
            (sample.labels["target"], sample.labels["result"]): sample.value
            for sample in next(iter(self.notifier.collect())).samples
            if sample.value
        }


def test_notifier__an_incident_is_one_message_unless_a_rule_wants_more() -> None:
    fake = FakeTargets()
    fake.say(*EACH, Phase.OBSERVED, Phase.RECOVERED)
    assert fake.end() == [("slack", "Recovered")]
    assert fake.notified == ["slack:Recovered"]
    assert fake.counts() == {("slack", "sent"): 1}


def test_notifier__a_rule_with_phases_is_notified_each_once() -> None:
    fake = FakeTargets()
    rule = NotifyRule("slack", (Phase.SHUTTING_DOWN, Phase.RECOVERED))
    fake.say(*EACH, *EACH, rules=(rule, rule))
    assert fake.end() == [("slack", "ShuttingDown"), ("slack", "Recovered")]
    assert fake.notified == ["slack:Recovered"], "of the end alone another leader must know"


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (RULE, []),
        (NotifyRule("slack", (Phase.RECOVERED,)), []),
        (NotifyRule("slack", (Phase.FAILED,)), [("slack", "Failed")]),
    ],
)
def test_notifier__what_is_noted_on_the_incident_is_not_said_again(
    rule: NotifyRule, expected: list[tuple[str, str]]
) -> None:
    fake = FakeTargets()
    noted = incident(notified=("slack:Recovered",))
    fake.say(Phase.RECOVERED, Phase.FAILED, rules=(rule,), notified=noted)
    assert fake.end() == expected


def test_notifier__no_person_is_called_for_what_recovered_by_itself() -> None:
    fake = FakeTargets()
    rules = (NotifyRule("pager"), RULE)
    fake.say(Phase.RECOVERED, rules=rules, notified=incident("a"))
    fake.say(Phase.FAILED, rules=rules, notified=incident("b"))
    fake.say(Phase.OBSERVED, rules=rules, notified=incident("c"), closed_s=5.0)
    expected = [("pager", "Failed"), ("slack", "Failed"), ("slack", "Recovered")]
    assert sorted(fake.end()) == expected, "and what went by is not reported"


def test_notifier__a_rule_may_want_a_class_only() -> None:
    fake = FakeTargets()
    rule = NotifyRule("slack", classes=(FailureClass.HARDWARE,))
    fake.say(Phase.FAILED, rules=(rule,), notified=incident("a"), failure=FailureClass.PROGRAM)
    fake.say(Phase.FAILED, rules=(rule,), notified=incident("b"), failure=FailureClass.HARDWARE)
    assert fake.end() == [("slack", "Failed")]


def test_notifier__a_target_is_for_its_namespaces_and_a_policy_cannot_name_another() -> None:
    ours = replace(SLACK, namespaces=("other",))
    fake = FakeTargets(ours)
    fake.say(Phase.FAILED, Phase.FAILED, rules=(RULE, NotifyRule("nowhere")))
    assert fake.end() == []
    assert fake.notifier.unknown_count == 2, "once for each rule and incident"


def test_notifier__an_operator_is_notified_of_every_incident_without_a_policy() -> None:
    fake = FakeTargets(replace(SLACK, every_incident=True))
    fake.say(Phase.FAILED, rules=())
    assert fake.end() == [("slack", "Failed")]


def test_notifier__a_failure_is_tried_again_and_given_up_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.001)
    fake = FakeTargets(fails=3)
    fake.say(Phase.FAILED)
    fake.notifier.start()
    until(lambda: fake.got == [("slack", "Failed")])
    monkeypatch.setattr(module, "GIVE_UP_S", 0.05)
    lost = FakeTargets(fails=1000)
    lost.say(Phase.FAILED)
    lost.notifier.start()
    until(lambda: lost.counts() == {("slack", "failed"): 1})
    assert not lost.got


def test_notifier__what_is_refused_for_good_is_not_tried_again() -> None:
    fake = FakeTargets(fails=1, is_final=True)
    fake.say(Phase.FAILED, notified=incident("a"))
    fake.say(Phase.FAILED, notified=incident("b"))
    assert fake.end() == [("slack", "Failed")]
    assert fake.counts() == {("slack", "failed"): 1, ("slack", "sent"): 1}


def test_notifier__too_many_that_wait_are_dropped_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "WAITING", 3)
    fake = FakeTargets()
    for number in range(5):
        fake.say(Phase.FAILED, notified=incident(f"i{number}"))
    assert len(fake.end()) == 3
    assert fake.counts() == {("slack", "sent"): 3, ("slack", "dropped"): 2}


def test_notifier__a_target_that_hangs_delays_neither_who_decides_nor_other_targets() -> None:
    released = threading.Event()

    def hang(_: Request) -> Answer:
        released.wait(30.0)
        return Answer()

    with serving(hang) as dead, serving(lambda _: Answer()) as alive:
        targets = (
            NotifyTarget("dead", MessageForm.SLACK, dead.url),
            NotifyTarget("alive", MessageForm.TEAMS, alive.url),
        )
        notifier = Notifier(targets, Sender(None).send)
        notifier.start()
        rules = (NotifyRule("dead"), NotifyRule("alive"))
        for number in range(100):
            notifier.publish(incident(f"i{number}"), status(Phase.FAILED), rules)
        assert not released.is_set(), "what decides waits for no answer"
        until(lambda: len(alive.requests) == 100)
        assert len(dead.requests) <= 1
        released.set()
        notifier.close(20.0)
