"""The life of a run with a sensor that does as the test says; the real one is in tests/kernel."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kcover_ebpf.diagnosis.decisions import Decision
from kcover_ebpf.diagnosis.job import Job
from kcover_ebpf.errors import ActionError, CannotObserve, KcoverError, UsageError
from kcover_ebpf.facts.syscalls import SyscallTable
from kcover_ebpf.host.process_tree import ProcessTree
from kcover_ebpf.model.verdict import Cause, Verdict, VerdictKind
from kcover_ebpf.run import session as module
from kcover_ebpf.run.options import RunOptions
from kcover_ebpf.run.outcome import Outcome, Reason
from kcover_ebpf.run.session import Session
from kcover_ebpf.run.sinks import Announcer, Sink
from kcover_ebpf.settings import Act, Policy, Settings
from tests.unit.support.children import start_ticks_of
from tests.unit.support.fake_supervisor import FakeSupervisor

HUNG = Verdict(VerdictKind.HUNG, Cause.STOPPED, 103.5, 100.0, job="j", incident="j-1")


class FakeSink(Sink):
    def __init__(self) -> None:
        self.blind: list[str] = []
        self.actions: list[tuple[Act, str]] = []
        self.starts: list[dict[str, Any]] = []

    def on_blind(self, reason: str) -> None:
        self.blind.append(reason)

    def on_action(self, decision: Decision, text: str) -> None:
        self.actions.append((decision.act, text))

    def on_start(self, fields: dict[str, Any]) -> None:
        self.starts.append(fields)


Script = Callable[["FakeSensor", Callable[[], bool]], None]


class FakeSensor:
    scripts: list[Script]

    def __init__(  # noqa: PLR0917 - the parameters of Sensor
        self,
        kernel: object,
        target: object,
        settings: object,
        sinks: object,
        carry_out: Any,
        devices: object = None,
        recorder: object = None,
        *,
        reads_stacks: bool = False,
        read_log: object = None,
    ) -> None:
        assert reads_stacks
        assert read_log is not None
        self.job = Job(Policy(), SyscallTable("x86_64"))
        self.tracker: object = object()
        self.made_progress = False
        self.carry_out = carry_out

    def run(self, until: Callable[[], bool]) -> None:
        self.scripts.pop(0)(self, until)


def watch(_sensor: FakeSensor, until: Callable[[], bool]) -> None:
    while not until():
        pass


def decide(act: Act) -> Script:
    def script(sensor: FakeSensor, until: Callable[[], bool]) -> None:
        sensor.carry_out(Decision(act, "why", HUNG))
        watch(sensor, until)

    return script


def fail(_sensor: FakeSensor, _until: Callable[[], bool]) -> None:
    raise ZeroDivisionError("oops")


@pytest.fixture
def supervisor() -> Iterator[FakeSupervisor]:
    made = FakeSupervisor()
    yield made
    made.close()


@pytest.fixture
def signals() -> Iterator[None]:
    """Gives back the signals that a session catches."""
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    yield
    for number, action in before.items():
        if signal.getsignal(number) is not action:
            signal.signal(number, action)


@pytest.fixture
def live(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, supervisor: FakeSupervisor
) -> Callable[..., tuple[Session, FakeSink]]:
    monkeypatch.setattr(module, "Sensor", FakeSensor)
    monkeypatch.setattr(Session, "_lives", lambda *_: True)

    def make(*scripts: Script, owns: bool = True, **policy: Any) -> tuple[Session, FakeSink]:
        monkeypatch.setattr(FakeSensor, "scripts", list(scripts), raising=False)
        settings = Settings(policy=Policy(backoff_s=0.01, **policy))
        target = SimpleNamespace(name="j", pids=lambda: {1}, gone=lambda: False)
        argv = ("train",) if owns else ()
        plan = RunOptions(settings, "j", argv=argv, snapshot_dir=tmp_path / "kept")
        notes = FakeSink()
        announcer = Announcer([notes], wants_waits=False)
        made = Session(plan, None, target, supervisor, announcer)  # type: ignore[arg-type]
        return made, notes

    return make


def test_session__the_job_ends_by_itself(live: Any, supervisor: FakeSupervisor) -> None:
    session, _ = live(watch)
    assert session.run() == Outcome(Reason.EXITED, 0, "the job ended with exit code 0", 0)
    assert supervisor.orders == []


def test_session__a_failure_of_ours_does_not_cost_the_job(
    live: Any, supervisor: FakeSupervisor
) -> None:
    session, notes = live(fail)
    assert session.run().exit_code == 0
    assert len(notes.blind) == 1
    assert "the sensor failed, the job continues: ZeroDivisionError: oops" in notes.blind[0]
    assert supervisor.orders == []


def test_session__a_failure_while_only_watching_is_an_error(live: Any) -> None:
    session, _ = live(fail, owns=False)
    with pytest.raises(CannotObserve, match="the sensor failed"):
        session.run()


def test_session__shutdown(live: Any, supervisor: FakeSupervisor) -> None:
    session, notes = live(decide(Act.SHUTDOWN))
    ended = session.run()
    assert notes.blind == []
    assert (ended.reason, ended.exit_code) == (Reason.SHUTDOWN, 75)
    assert [act for act, _ in notes.actions] == [Act.SNAPSHOT, Act.SHUTDOWN]
    assert supervisor.orders == ["kill"]


def test_session__the_supervisor_gets_the_members_of_a_process_tree_with_its_end(
    live: Any, supervisor: FakeSupervisor
) -> None:
    session, _ = live(decide(Act.SHUTDOWN), owns=False)
    session._target = ProcessTree()
    session._target.follow({os.getpid(): start_ticks_of(os.getpid())})
    assert session.run().exit_code == 75
    assert supervisor.orders == [f"follow {[os.getpid()]}", "kill"]


def test_session__a_job_that_ended_before_its_shutdown_keeps_its_code(
    live: Any, supervisor: FakeSupervisor
) -> None:
    supervisor.job_code = 3
    session, _ = live(decide(Act.SHUTDOWN))
    assert session.run().exit_code == 3
    assert supervisor.orders == []


def test_session__a_process_that_does_not_die_is_named(
    live: Any, supervisor: FakeSupervisor
) -> None:
    supervisor.stuck = (4711,)
    session, notes = live(decide(Act.RESTART))
    ended = session.run()
    assert ended.exit_code == 75
    assert "pid 4711 did not die of SIGKILL" in ended.text
    assert notes.actions[-1][1] == ended.text
    assert "start" not in supervisor.orders


def test_session__a_lost_supervisor(live: Any, supervisor: FakeSupervisor) -> None:
    supervisor.lost = True
    session, _ = live(watch)
    assert session.run().reason is Reason.LOST


def test_session__restart_keeps_the_count_of_incidents(
    live: Any, supervisor: FakeSupervisor
) -> None:
    session, notes = live(decide(Act.RESTART), watch)
    tracker = session._sensor.tracker
    assert session.run().reason is Reason.EXITED
    assert session._sensor.tracker is tracker
    assert supervisor.orders == ["kill", "start"]
    assert [start["restart"] for start in notes.starts] == [1]
    assert session.restart_count == 1


@pytest.mark.parametrize(
    ("error", "reason", "code"),
    [
        (UsageError("cannot start the command: No such file"), Reason.RESTARTS, 75),
        (ActionError("the supervisor does not answer"), Reason.LOST, 1),
    ],
)
def test_session__a_restart_that_fails_ends_the_run_and_says_why(
    error: KcoverError, reason: Reason, code: int, live: Any, supervisor: FakeSupervisor
) -> None:
    supervisor.start_error = error
    session, notes = live(decide(Act.RESTART))
    assert session.run() == Outcome(reason, code, f"not restarted: {error}")
    assert supervisor.orders == ["kill", "start"]
    assert notes.starts == []


def test_session__the_restarted_job_has_the_memory_of_the_first_start(live: Any) -> None:
    session, _ = live(decide(Act.RESTART), watch)
    first = session.job
    first.silences.observe(3600.0)
    first.silences.learn("blocked_lock", 70.0)
    first.attention.known.learn(("libtorch.so+100", "libc.so.6+2"))
    first.pace.memory.start_s, first.pace.memory.step_s = 31.5, 4.25
    session.run()
    assert session.job is not first
    assert session.job.silences.summary.longest_s == 70.0
    assert session.job.attention.known.count == 1
    memory = session.job.pace.memory
    assert (memory.start_s, memory.step_s) == (31.5, 4.25)


def test_session__restarts_stop_without_progress(live: Any, supervisor: FakeSupervisor) -> None:
    session, notes = live(decide(Act.RESTART), decide(Act.RESTART), max_restarts=9)
    ended = session.run()
    assert (ended.reason, ended.exit_code) == (Reason.RESTARTS, 75)
    assert supervisor.orders == ["kill", "start", "kill"]
    assert notes.actions[-1][0] is Act.SHUTDOWN


def test_session__a_snapshot_that_cannot_be_written_stops_nothing(
    live: Any, supervisor: FakeSupervisor, tmp_path: Path
) -> None:
    (tmp_path / "kept").write_text("a file in the way")
    session, notes = live(decide(Act.SHUTDOWN))
    assert session.run().exit_code == 75
    assert "cannot write the bundle" in notes.actions[0][1]


@pytest.mark.usefixtures("signals")
def test_session__after_a_signal_nothing_is_decided_any_more(
    live: Any, supervisor: FakeSupervisor
) -> None:
    def interrupted(sensor: FakeSensor, until: Callable[[], bool]) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        sensor.carry_out(Decision(Act.SHUTDOWN, "why", HUNG))
        watch(sensor, until)

    session, notes = live(interrupted)
    session.catch_signals()
    ended = session.run()
    assert (ended.reason, ended.exit_code) == (Reason.SIGNAL, 143)
    assert supervisor.orders == ["end 5"]
    assert notes.actions == []


@pytest.mark.usefixtures("signals")
def test_session__a_job_is_not_started_after_a_signal_at_the_end_of_the_pause(
    live: Any, supervisor: FakeSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleep = time.sleep

    def interrupted(duration_s: float) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        sleep(duration_s)

    session, _ = live(decide(Act.RESTART), watch)
    monkeypatch.setattr("time.sleep", interrupted)
    session.catch_signals()
    assert session.run().exit_code == 143
    assert supervisor.orders == ["kill", "end 5"]


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
@pytest.mark.parametrize("owns", [True, False])
def test_session__a_schedulers_warning_reaches_our_job_and_ends_no_watch(
    number: signal.Signals, owns: bool, live: Any, supervisor: FakeSupervisor
) -> None:
    def warned(sensor: FakeSensor, until: Callable[[], bool]) -> None:
        os.kill(os.getpid(), number)
        assert not until()
        sensor.carry_out(Decision(Act.SHUTDOWN, "why", HUNG))

    session, _ = live(warned, owns=owns)
    session.catch_signals()
    assert session.run().reason is Reason.SHUTDOWN
    assert supervisor.orders == [f"forward {number.name}", "kill"][0 if owns else 1 :]
