"""The truth is read from the event file: onset, culprit, reaction of the training."""

import json
from typing import Any

from bench.faultbench.scenario import Effect
from bench.faultbench.truth import effect, parse, read_truth


def event(unix: float, name: str, rank: int | None = 0, **more: Any) -> dict[str, Any]:
    return {
        "unix": unix,
        "mono": unix,
        "rank": rank,
        "pid": 100 + (rank or 0),
        "event": name,
        **more,
    }


def training(
    steps: int, step_s: float = 1.0, ranks: int = 2, begin: float = 0.0
) -> list[dict[str, Any]]:
    ready = [event(begin, "ready", rank) for rank in range(ranks)]
    return ready + [
        event(begin + (step + 1) * step_s, "step", rank, step=step)
        for step in range(steps)
        for rank in range(ranks)
    ]


def text(events: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(e) + "\n" for e in events)


def test_parse__sorts_by_time_and_drops_a_torn_line():
    events = [event(2, "step", step=1), event(1, "ready")]
    assert [e["event"] for e in parse(text(events) + '{"unix": 3, "ev')] == ["ready", "step"]


def test_read_truth__a_stopped_job():
    events = [*training(10), event(10.4, "fault", 1, culprit=1)]
    truth = read_truth(parse(text(events)), culprit=1, until=40)
    assert truth.fault_at == truth.onset_at == 10.4
    assert truth.culprit_pid == 101
    assert (truth.steps_before, truth.steps_after) == (10, 0)
    assert effect(truth, 1.0, until=40) is Effect.STALLED


def test_read_truth__the_onset_waits_for_the_loaders_stock():
    events = [*training(12), event(9.5, "fault", 1, culprit=1)]
    truth = read_truth(parse(text(events)), culprit=1, until=40)
    assert truth.fault_at == 9.5
    assert truth.onset_at == 12
    assert effect(truth, 1.0, until=40) is Effect.STALLED


def test_read_truth__the_injector_names_its_target():
    events = [*training(3), event(3.5, "fault", None, culprit=1, target=4711)]
    assert read_truth(parse(text(events)), 1, 10).culprit_pid == 4711


def test_read_truth__a_dead_rank():
    events = [*training(5), event(5.5, "fault", 1), event(5.6, "rank_exit", None, of=1, code=137)]
    truth = read_truth(parse(text(events)), 1, 20)
    assert truth.exits == ((1, 137, 5.6),)
    assert effect(truth, 1.0, 20) is Effect.DIED


def test_read_truth__a_fault_that_lets_the_training_continue_begins_when_it_begins():
    events = [*training(20), event(10.4, "fault", 1, culprit=1)]
    assert read_truth(parse(text(events)), 1, 40, continues=True).onset_at == 10.4


def test_effect__slower_steps():
    slow = [event(10 + 2 * n, "step", rank, step=9 + n) for n in range(1, 8) for rank in (0, 1)]
    events = [*training(10), event(10.1, "fault", 1), *slow]
    assert effect(read_truth(parse(text(events)), 1, 25), 1.0, 25) is Effect.SLOWED


def test_read_truth__training_that_continues():
    events = [*training(30), event(10.1, "phase_begin", 0), event(20.1, "phase_end", 0)]
    truth = read_truth(parse(text(events)), 0, 30.5)
    assert truth.end_at == 20.1
    assert effect(truth, 1.0, 30.5) is Effect.UNAFFECTED


def test_read_truth__a_phase_that_stops_the_training_for_a_while():
    late = [event(31 + n, "step", rank, step=10 + n) for n in range(6) for rank in (0, 1)]
    events = [*training(10), event(10.1, "phase_begin", 0), event(30.1, "phase_end", 0), *late]
    truth = read_truth(parse(text(events)), 0, 36.5, continues=True)
    assert effect(truth, 1.0, 36.5) is Effect.SLOWED


def test_read_truth__nothing_happened():
    truth = read_truth(parse(text(training(4))), 0, 5)
    assert truth.fault_at is None
    assert truth.onset_at is None
    assert effect(truth, 1.0, 5) is Effect.UNAFFECTED
