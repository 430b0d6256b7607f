"""A run that obeys the coordinator: its sensor, its supervisor and its connection do as the test says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kcover_ebpf.diagnosis.job import Job
from kcover_ebpf.diagnosis.tracker import Tracker
from kcover_ebpf.facts.syscalls import SyscallTable
from kcover_ebpf.model.verdict import Cause, Verdict, VerdictKind, WaitRow
from kcover_ebpf.run.join import joined_session as module
from kcover_ebpf.run.join.joined_session import JoinedSession
from kcover_ebpf.run.join.messages import CoordinatorMessage, EndOrder, StartOrder
from kcover_ebpf.run.options import RunOptions
from kcover_ebpf.run.outcome import Outcome, Reason
from kcover_ebpf.run.sinks import Announcer, Sink
from kcover_ebpf.settings import Act, Policy, Settings
from kcover_ebpf.tunables.host import JOIN_ENDED_S
from tests.unit.support.fake_clock import FakeClock
from tests.unit.support.fake_supervisor import FakeSupervisor

HUNG = Verdict(VerdictKind.HUNG, Cause.STOPPED, 103.5, 100.0, job="j", incident="j-1")
ORDER = CoordinatorMessage(end=EndOrder("j-1-restart", Act.RESTART, "why", HUNG))
START = CoordinatorMessage(start=StartOrder(0.0))
OVER = CoordinatorMessage(over=True)

Pass = Callable[[], None]
_NEVER = 1 << 30
"""Polls after which the job would end: the test sets its code before."""


class FakeMember:
    """The connection to the coordinator, with what was sent over it."""

    def __init__(self) -> None:
        self.why_lost: str | None = None
        self.refused: str | None = None
        self.inbox: list[CoordinatorMessage] = []
        self.sent: list[object] = []

    def received(self) -> list[CoordinatorMessage]:
        found, self.inbox = self.inbox, []
        return found

    def report(self, report: object) -> None:
        self.sent.append("report")

    def ended(self, code: int) -> None:
        self.sent.append(("ended", code))

    def done(self, order: str) -> None:
        self.sent.append(("done", order))

    def begin(self, start: int) -> None:
        self.sent.append(("begin", start))


class FakePartSensor:
    """In each pass it does the next step of the test, which may raise an error."""

    steps: Iterator[Pass]

    def __init__(self, after_pass: Pass, *parts: Any, **more: Any) -> None:
        self.after_pass = after_pass
        self.job = Job(Policy(), SyscallTable("x86_64"))
        self.tracker = Tracker("j", "here")
        self.has_failed = False

    def run(self, until: Callable[[], bool]) -> None:
        try:
            while not until():
                self.step()
                self.after_pass()
        except Exception:
            self.has_failed = True
            raise

    @classmethod
    def step(cls) -> None:
        next(cls.steps, lambda: pytest.fail("the run does not end"))()


class Bench:
    """One joined run with fakes around it."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path) -> None:
        self._patch = patch
        self.member, self.supervisor = FakeMember(), FakeSupervisor(polls=_NEVER)
        settings = Settings(act=Act.RESTART, policy=Policy())
        self.snapshots = folder / "kept"
        options = RunOptions(settings, "j", argv=("train",), snapshot_dir=self.snapshots)
        announcer = Announcer([Sink()], wants_waits=False)
        target = SimpleNamespace(name="j")
        parts: Any = (self.member, options, None, target, self.supervisor, announcer)
        self.session = JoinedSession(*parts)

    def hear(self, *said: CoordinatorMessage) -> Pass:
        """A pass in which these messages arrive."""
        return lambda: self.member.inbox.extend(said)

    def end_itself(self) -> None:
        """A pass in which the job ends by itself."""
        self.supervisor.job_code = 0

    def ended(self, *steps: Pass) -> Outcome:
        """How the run ends; fails if it needs more steps than these."""
        self._patch.setattr(FakePartSensor, "steps", iter(steps), raising=False)
        return self.session.run()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Bench]:
    monkeypatch.setattr(module, "_PartSensor", FakePartSensor)
    monkeypatch.setattr(JoinedSession, "_lives", lambda *_: True)
    monkeypatch.setattr(JoinedSession, "_wait_for_news", lambda *_: FakePartSensor.step())
    made = Bench(monkeypatch, tmp_path)
    yield made
    made.supervisor.close()


def test_joined_session__the_job_ends_by_itself_on_all_hosts(bench: Bench) -> None:
    assert bench.ended(bench.end_itself, bench.hear(OVER)).exit_code == 0
    assert ("ended", 0) in bench.member.sent


def test_joined_session__a_job_that_is_over_elsewhere_and_runs_here_was_ended_on_a_verdict(
    bench: Bench,
) -> None:
    outcome = bench.ended(bench.hear(OVER))
    assert (outcome.reason, outcome.exit_code) == (Reason.RESTARTS, 75)


class Waits(Sink):
    """Writes down the summaries of the waits."""

    wants_waits = True

    def __init__(self) -> None:
        self.summaries: list[str] = []

    def on_waits(self, rows: Sequence[WaitRow], summary: str) -> None:
        self.summaries.append(summary)


def test_facts_only__waits_are_forwarded_with_the_verdict_on_the_whole_job() -> None:
    waits, announcer = Waits(), Announcer([], wants_waits=False)
    forwarded = module._FactsOnly((announcer, waits), announcer)
    assert forwarded.wants_waits
    forwarded.on_waits((), "HUNG stopped")
    announcer.on_verdict(Verdict(VerdictKind.WORKING, Cause.TRAINING, 1.0, 0.0))
    forwarded.on_waits((), "HUNG stopped")
    assert waits.summaries == ["", "WORKING training"]
    assert not module._FactsOnly((announcer,), announcer).wants_waits


def fail() -> None:
    raise OSError(24, "Too many open files")


def test_joined_session__a_run_whose_sensor_has_failed_waits_for_the_other_hosts(
    bench: Bench,
) -> None:
    def end_itself() -> None:
        bench.member.sent.clear()
        bench.end_itself()

    assert bench.ended(fail, end_itself, bench.hear(OVER)).exit_code == 0
    # what it has seen before it failed is not reported as the present state
    assert bench.member.sent == [("ended", 0)]


def test_joined_session__a_run_whose_sensor_has_failed_obeys_orders(bench: Bench) -> None:
    steps = fail, bench.hear(ORDER), bench.hear(START), bench.end_itself, bench.hear(OVER)
    assert bench.ended(*steps).exit_code == 0
    assert bench.supervisor.orders.count("start") == 1
    assert not bench.snapshots.exists()


def test_joined_session__an_order_to_start_that_comes_twice_starts_the_job_once(
    bench: Bench,
) -> None:
    steps = (
        bench.hear(ORDER),
        bench.hear(START, START),
        bench.hear(START),
        bench.end_itself,
        bench.hear(OVER),
    )
    assert bench.ended(*steps).exit_code == 0
    assert (bench.session.restart_count, bench.supervisor.orders.count("start")) == (1, 1)
    said = [message for message in bench.member.sent if message != "report"]
    assert said == [("done", "j-1-restart"), ("begin", 1), ("ended", 0)]


def test_joined_session__a_part_that_does_not_die_is_not_reported_as_ended(bench: Bench) -> None:
    """The other hosts would start the job again without it."""
    bench.supervisor.stuck = (4711,)
    outcome = bench.ended(bench.hear(ORDER))
    assert (outcome.exit_code, "4711" in outcome.text) == (75, True)
    assert ("done", "j-1-restart") not in bench.member.sent


@pytest.mark.parametrize(
    ("lost_s", "refused", "start_count"),
    [
        (JOIN_ENDED_S - 1, None, 1),
        (JOIN_ENDED_S + 1, None, 0),
        (1, "the job is over", 0),
    ],
)
def test_joined_session__a_run_that_waits_to_start_again_waits_for_a_lost_connection(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    lost_s: float,
    refused: str | None,
    start_count: int,
) -> None:
    clock = FakeClock()
    monkeypatch.setattr("time.monotonic", clock)

    def lose() -> None:
        bench.member.why_lost = "the connection was closed"

    def pass_by() -> None:
        clock.now_s += lost_s
        bench.member.refused = refused

    def be_back() -> None:
        bench.member.why_lost = None
        bench.member.inbox.append(START)

    steps = bench.hear(ORDER), lose, pass_by, be_back, bench.end_itself, bench.hear(OVER)
    outcome = bench.ended(*steps)
    assert bench.supervisor.orders.count("start") == start_count
    assert outcome.reason is (Reason.EXITED if start_count else Reason.RESTARTS)
