"""The loop: facts go in, verdicts and decisions come out, and each listener is called once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import accumulate, count
from types import SimpleNamespace
from typing import cast

import pytest

from kcover_ebpf.diagnosis.clock.pass_slots import moment_s
from kcover_ebpf.diagnosis.clock.progress import Stall
from kcover_ebpf.diagnosis.decisions import Decision
from kcover_ebpf.diagnosis.oneshot_waits import PassHistory
from kcover_ebpf.facts.host import ProcessSeen
from kcover_ebpf.facts.kernel import (
    Detail,
    Fact,
    ProcessExit,
    ProcessTotals,
    SampleRequest,
    SignalSent,
    TaskState,
    ThreadSample,
    Tick,
)
from kcover_ebpf.ids import NS, Pid, Tid
from kcover_ebpf.kernel.sampler import KernelSampler
from kcover_ebpf.model.verdict import Verdict, VerdictKind, WaitRow
from kcover_ebpf.settings import Act, Settings
from kcover_ebpf.trace import passes
from kcover_ebpf.tunables.host import SUSPICIOUS_SPREAD
from kcover_ebpf.tunables.sampling import BASELINE_EAGER_NS
from kcover_ebpf.tunables.stragglers import SLOT_SPREAD_S
from kcover_ebpf.watching.judging import InputRecorder
from kcover_ebpf.watching.loop import Sensor
from tests.unit.support.fake_thread_reader import FakeThreadReader
from tests.unit.support.scripted_job import Stage

RANKS = (100, 101)


class FakeJobSampler:
    """Answers like the sampler, from lists that a test fills."""

    def __init__(self) -> None:
        self.watched: list[int] = []
        self.requests: dict[int, SampleRequest] = {}
        self.passes: list[list[Fact]] = []
        self.events: list[list[Fact]] = []
        self.waited_s: list[float] = []

    def watch(self, pid: Pid, owner_id: int = 0) -> None:
        self.watched.append(pid)

    strangers = 0, 0

    def request(self, pid: Pid, wanted_request: SampleRequest) -> None:
        self.requests[pid] = wanted_request

    def sample(self, ranks: Collection[Pid]) -> list[Fact]:
        return self.passes.pop(0) if self.passes else []

    def expect_pass(self, period_s: float) -> None:
        pass

    def wait(self, timeout_s: float) -> list[Fact]:
        self.waited_s.append(timeout_s)
        return self.events.pop(0) if self.events else []


class FakeMembers:
    name = "job"

    def __init__(self) -> None:
        self.now = set(RANKS)

    def pids(self) -> set[int]:
        return self.now

    def gone(self) -> bool:
        return not self.now


class FakeListener:
    """Writes down all calls."""

    wants_waits = True

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self.verdicts: list[Verdict] = []
        self.tables: list[str] = []
        self.blind: list[str] = []

    def on_fact(self, fact: Fact) -> None:
        self.facts.append(fact)

    def on_verdict(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)

    def on_waits(self, rows: Sequence[WaitRow], summary: str) -> None:
        self.tables.append(summary)

    def on_blind(self, reason: str) -> None:
        self.blind.append(reason)

    def on_action(self, decision: Decision, text: str) -> None:
        raise AssertionError("the sensor carries nothing out itself")


class Bench:
    """A sensor on a scripted kernel, with a clock that a test turns."""

    def __init__(
        self, patch: pytest.MonkeyPatch, act: Act, recorder: InputRecorder | None = None
    ) -> None:
        self.now_ns = 1_000 * NS
        self.kernel, self.members, self.ears = FakeJobSampler(), FakeMembers(), FakeListener()
        self.decisions: list[Decision] = []
        patch.setattr("kcover_ebpf.host.procfs.boottime_ns", lambda: self.now_ns)
        patch.setattr("kcover_ebpf.host.procfs.start_ns", lambda _: self.now_ns)
        patch.setattr("kcover_ebpf.host.procfs.unix_offset_s", lambda: 5000.0)
        patch.setattr("kcover_ebpf.host.procfs.read_process", self._read)
        patch.setattr("kcover_ebpf.watching.loop.ThreadReader", FakeThreadReader)
        self.sensor = Sensor(
            cast("KernelSampler", self.kernel),
            self.members,
            Settings(act=act),
            [self.ears],
            self.decisions.append,
            recorder=recorder,
        )

    def _read(self, pid: Pid, wanted: Collection[str]) -> ProcessSeen | None:
        if pid not in RANKS:
            return None
        environ = {"RANK": str(pid - 100), "WORLD_SIZE": "2"}
        return ProcessSeen(self.now_ns, pid, Pid(1), "python3", ("python3", "x"), environ)

    def step(self, *facts: Fact) -> None:
        self.now_ns += NS
        self.kernel.passes.append([*facts, Tick(self.now_ns, NS, 0, False)])
        self.sensor.step()

    def listen(self) -> None:
        """The pause between two passes, as `run` makes it."""
        self.sensor._listen()

    def exit(self, pid: int, code: int) -> ProcessExit:
        return ProcessExit(self.now_ns, Pid(pid), code, 0, False, "python3")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    # each pass was made at the moment of its slot
    moments = (moment_s(slot) for slot in count(0, 3))
    clock = SimpleNamespace(time=lambda: next(moments))
    monkeypatch.setattr("kcover_ebpf.watching.loop.time", clock)
    return Bench(monkeypatch, Act.SHUTDOWN)


def sampled(bench: Bench, pid: int) -> ThreadSample:
    stage = Stage(world=2)
    stage.now_ns = bench.now_ns
    return stage._thread(stage.procs[pid])


class FakeInputRecorder:
    """Writes down what a judgement is made of."""

    def __init__(self) -> None:
        self.taken: list[object] = []

    def on_fact(self, fact: Fact) -> None:
        self.taken.append(type(fact))

    def on_reading(self) -> None:
        self.taken.append("reading")

    def on_ask(self) -> None:
        self.taken.append("ask")

    def on_judge(self, unix_offset_s: float) -> None:
        self.taken.append(unix_offset_s)

    def on_hold(self) -> None:
        self.taken.append("hold")


def test_sensor__all_that_a_judgement_is_made_of_is_recorded_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    notes = FakeInputRecorder()
    bench = Bench(monkeypatch, Act.OBSERVE, notes)
    bench.step(sampled(bench, 100))
    first = [ProcessSeen, ProcessSeen, ThreadSample, Tick, "reading", "ask", 5000.0]
    assert notes.taken == first
    bench.sensor._take([bench.exit(101, 3)])
    bench.members.now.discard(101)
    bench.step()
    assert notes.taken[len(first) :] == [ProcessExit, Tick, "reading", "ask", 5000.0]


def test_sensor__members_are_watched_once_and_introduced(bench: Bench) -> None:
    for _ in range(3):
        bench.step()
    assert sorted(bench.kernel.watched) == [100, 101]
    assert set(bench.sensor.job.members.ranks) == {100, 101}
    bench.members.now.add(200)
    bench.step()
    assert bench.kernel.watched[2:] == [200]


def test_sensor__a_failed_exit_becomes_one_verdict_and_one_decision(bench: Bench) -> None:
    bench.step(*(sampled(bench, pid) for pid in RANKS))
    leaving = bench.exit(101, 3)
    bench.kernel.events = [[leaving]]
    bench.sensor._take(bench.kernel.wait(0))
    bench.members.now.discard(101)
    for _ in range(3):
        bench.step(sampled(bench, 100))
    assert bench.ears.facts == [leaving]
    crashes = [verdict for verdict in bench.ears.verdicts if verdict.kind is VerdictKind.CRASHED]
    assert [crash.culprit and crash.culprit.rank for crash in crashes] == [1]
    assert [decision.act for decision in bench.decisions] == [Act.SHUTDOWN]
    assert bench.decisions[0].verdict is crashes[0]
    assert crashes[0].time_s == pytest.approx(bench.now_ns / NS + 5000, abs=5)


def test_sensor__an_observer_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, Act.OBSERVE)
    bench.step()
    bench.sensor._take([bench.exit(101, 3)])
    bench.step()
    assert [verdict.kind for verdict in bench.ears.verdicts][-1] is VerdictKind.CRASHED
    assert bench.decisions == []


def test_sensor__the_events_that_end_the_loop_are_judged(bench: Bench) -> None:
    bench.step()
    bench.sensor._take([bench.exit(101, 3)])
    bench.now_ns += NS
    bench.kernel.events = [[], [bench.exit(100, 0)]]
    answers = iter([False, False, True])
    bench.kernel.passes = [[Tick(bench.now_ns - NS + 1, NS, 0, False)]]
    bench.sensor.run(lambda: next(answers))
    assert bench.ears.verdicts[-1].kind is VerdictKind.CRASHED
    assert bench.kernel.waited_s[-1] == 0


def test_sensor__an_announced_fact_ends_the_pause_and_other_facts_do_not(bench: Bench) -> None:
    bench.step()
    quiet = Tick(bench.now_ns, NS, 0, False)
    bench.kernel.events = [[quiet], [bench.exit(101, 1)], [quiet]]
    bench.listen()
    assert len(bench.kernel.waited_s) == 2
    assert bench.kernel.waited_s == pytest.approx([1.0, 1.0], abs=SLOT_SPREAD_S)


def test_sensor__the_pause_is_short_while_something_may_be_wrong(bench: Bench) -> None:
    bench.step(*(sampled(bench, pid) for pid in RANKS))
    bench.step(SignalSent(bench.now_ns, Pid(100), Tid(100), 19, Pid(9), "kill"))
    bench.listen()
    assert bench.kernel.waited_s == pytest.approx([0.25], rel=SUSPICIOUS_SPREAD)
    assert bench.sensor.job.detailed == set(RANKS)


def test_sensor__a_job_that_never_trained_and_is_silent_is_watched_at_the_ordinary_pace(
    bench: Bench,
) -> None:
    bench.step(*(sampled(bench, pid) for pid in RANKS))
    for _ in range(7):
        bench.step()
    bench.listen()
    bench.step()
    assert bench.kernel.waited_s == pytest.approx([1.0], abs=SLOT_SPREAD_S)
    assert {pid: request.detail for pid, request in bench.kernel.requests.items()} == dict.fromkeys(
        RANKS, Detail.ON
    )


def test_sensor__passes_do_not_keep_step_with_the_job(bench: Bench) -> None:
    bench.step()
    for _ in range(20):
        bench.listen()
    assert bench.kernel.waited_s == pytest.approx([1.0] * 20, abs=SLOT_SPREAD_S)
    at_s = accumulate(bench.kernel.waited_s)
    assert len({round(second % 0.25, 6) for second in at_s}) > 10


@pytest.mark.parametrize(
    ("lost", "late", "reported"),
    [(3, False, ["3 records were lost"]), (0, True, ["no pass for 1.0 s"]), (0, False, [])],
)
def test_sensor__what_was_lost_is_reported(
    bench: Bench, lost: int, late: bool, reported: list[str]
) -> None:
    bench.kernel.passes = [[Tick(bench.now_ns, NS, lost, late)]]
    bench.sensor.step()
    assert bench.ears.blind == reported


def test_sensor__the_table_is_reported_once_a_pass_to_those_who_want_it(bench: Bench) -> None:
    for _ in range(3):
        bench.step(*(sampled(bench, pid) for pid in RANKS))
    assert bench.ears.tables == ["WORKING starting"] * 3


def test_sensor__the_log_of_a_suspended_job_is_not_read(bench: Bench) -> None:
    """What it does not print meanwhile breaks no rule."""
    reads: list[int] = []
    bench.sensor._read_log = lambda: reads.append(bench.now_ns)
    for stopped, read_count in ((), 1), (RANKS[:1], 2), (RANKS, 2), ((), 3):
        asleep = [sampled(bench, pid) for pid in RANKS if pid not in stopped]
        held = [replace(sampled(bench, pid), state=TaskState.STOPPED) for pid in stopped]
        bench.step(*asleep, *held)
        assert len(reads) == read_count


def test_sensor__a_number_that_is_used_again_is_watched_again(bench: Bench) -> None:
    bench.step()
    bench.sensor._take([bench.exit(101, 0)])
    bench.step()
    assert bench.kernel.watched.count(101) == 2


def test_sensor__an_exit_that_only_a_pass_finds_is_one_as_well(bench: Bench) -> None:
    bench.step()
    bench.step(bench.exit(101, 0))
    assert bench.sensor._reader.forgotten == [101]  # type: ignore[attr-defined]
    bench.step()
    assert bench.kernel.watched.count(101) == 2


def test_passes__a_trace_samples_closely_without_waiting_for_a_stall(bench: Bench) -> None:
    stage = Stage(world=2)
    bench.kernel.passes = [
        [*(stage._thread(stage.procs[pid]) for pid in RANKS), Tick(bench.now_ns, NS, 0, False)]
    ]
    history = PassHistory()
    patience = passes.Settling(history)
    for number in passes.passes(bench.sensor, history):
        if patience.is_over(bench.sensor, number):
            break
    verdict = passes.conclude(bench.sensor, history)
    assert verdict.job == "job"
    assert bench.kernel.requests[100] == SampleRequest(Detail.ALL, every=1)
    assert len(bench.kernel.waited_s) == 11
    assert verdict.culprit is None


def test_sensor__a_blindness_that_lasts_is_reported_now_and_then(bench: Bench) -> None:
    bench.step(*(sampled(bench, pid) for pid in RANKS))
    for _ in range(50):
        totals = (
            ProcessTotals(bench.now_ns + NS, Pid(pid), Pid(1), *(0,) * 7, unseen_count=3)
            for pid in RANKS
        )
        bench.step(*totals)
    assert bench.ears.blind == ["no room to sample 3 threads of process 100"] * 3
    assert bench.ears.verdicts[-1].kind is VerdictKind.UNKNOWN


def test_sensor__a_job_that_trains_rests_between_two_judgements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(FakeListener, "wants_waits", False)
    bench = Bench(monkeypatch, Act.SHUTDOWN)
    bench.step(*(sampled(bench, pid) for pid in RANKS))
    watch = bench.sensor._watch
    assert [watch.attend() for _ in range(3)] == [True] * 3, "it never trained"
    bench.sensor.job.pace.trained = True
    assert [watch.attend() for _ in range(3)] == [True] * 3, "its healthy waits are being learned"
    monkeypatch.setattr(bench.sensor.job.attention, "_began_ns", -BASELINE_EAGER_NS)
    assert [watch.attend() for _ in range(6)] == [False, False, True] * 2
    with monkeypatch.context() as one_may_lag:
        one_may_lag.setattr(type(bench.sensor.job.pace), "compares", lambda *_: True)
        assert [watch.attend() for _ in range(3)] == [True] * 3, "its ranks are compared"
    watch.take(bench.exit(101, 1))
    assert watch.attend(), "an exit was announced"
    assert not watch.attend()
    bench.sensor.job.attention.suspect(True, Stall.NONE, bench.now_ns)
    assert [watch.attend() for _ in range(3)] == [True] * 3, "it may have stalled"


def test_sensor__a_table_is_of_every_pass(bench: Bench) -> None:
    bench.step(*(sampled(bench, pid) for pid in RANKS))
    bench.sensor.job.pace.trained = True
    assert [bench.sensor._watch.attend() for _ in range(4)] == [True] * 4
