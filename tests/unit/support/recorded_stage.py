"""Scripted jobs as tapes. `python -m tests.unit.support.recorded_stage` writes those of tests/tapes again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kcover_ebpf.facts.kernel import Fact
from kcover_ebpf.ids import NS
from kcover_ebpf.model.verdict import Verdict
from kcover_ebpf.settings import Act, Policy
from kcover_ebpf.tapes.entries import SCHEMA, End, Header, Start
from kcover_ebpf.tapes.writer import TapeWriter

from .scripted_job import LOCK, Stage

TAPES = Path(__file__).resolve().parents[2] / "tapes"
HEADER = Header(SCHEMA, "0.1.0", "x86_64", Policy(), Act.OBSERVE, False)


@dataclass
class RecordedStage(Stage):
    """A scripted job that is recorded while it is judged."""

    tape: TapeWriter | None = None

    def __post_init__(self) -> None:
        self.writer.start(Start(self.now_ns / NS, 0.0))
        super().__post_init__()
        wants, update = self.job.wants, self.tracker.update

        def recorded_wants() -> Any:
            self.writer.on_reading()
            return wants()

        def recorded_update(job: Any, unix_offset_s: float) -> Verdict | None:
            self.writer.on_judge(unix_offset_s)
            return update(job, unix_offset_s)

        self.job.wants = recorded_wants  # type: ignore[method-assign]
        self.tracker.update = recorded_update  # type: ignore[method-assign]

    @property
    def writer(self) -> TapeWriter:
        assert self.tape is not None
        return self.tape

    def feed(self, fact: Fact) -> None:
        self.writer.on_fact(fact)
        super().feed(fact)


def healthy(stage: Stage) -> None:
    stage.run(40)


def stopped(stage: Stage) -> None:
    stage.run(30)
    stage.stop_signal(stage.rank(2))
    stage.become(stage.rank(2), "stopped")
    for rank in (0, 1, 3):
        stage.become(stage.rank(rank), "futex")
    stage.run(12)
    for rank in range(4):
        stage.become(stage.rank(rank), "train")
    stage.run(10)


def locked(stage: Stage) -> None:
    stage.run(30)
    for rank in range(4):
        stage.become(stage.rank(rank), "futex")
    stage.become(stage.rank(1), "futex", stack=LOCK)
    stage.run(20)


def crashed(stage: Stage) -> None:
    stage.run(20)
    stage.exit(stage.rank(3), code=1)
    for rank in range(3):
        stage.become(stage.rank(rank), "futex")
    stage.run(5)


SCRIPTS: dict[str, Callable[[Stage], None]] = {
    item.__name__: item for item in (healthy, stopped, locked, crashed)
}


def record(script: Callable[[Stage], None], path: Path, header: Header = HEADER) -> RecordedStage:
    """Play the script, write its tape, and give back what was judged meanwhile."""

    def fail(reason: str) -> None:
        raise AssertionError(reason)

    writer = TapeWriter(path, header, fail)
    stage = RecordedStage(tape=writer)
    script(stage)
    writer.end(End(stage.now_ns / NS, "time", 0))
    writer.close()
    return stage


def reported(verdict: Verdict) -> dict[str, Any]:
    """What of a verdict a tape must give again."""
    return {
        "verdict": verdict.kind.value,
        "cause": verdict.cause.value,
        "rank": None if verdict.culprit is None else verdict.culprit.rank,
        "since": round(verdict.since_s, 3),
        "time": round(verdict.time_s, 3),
    }


def main() -> None:
    expected = {}
    for name, script in SCRIPTS.items():
        stage = record(script, TAPES / f"{name}.tape.gz")
        expected[name] = [reported(verdict) for verdict in stage.verdicts]
    (TAPES / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
