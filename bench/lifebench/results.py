"""From what the sensors and the training wrote, and the exit codes, to the row of one run. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.lifebench.phase import Phase

Line = dict[str, Any]
ENDED_CODE = 75
HARMLESS = ("WORKING", "UNKNOWN")


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verdict other than WORKING, or a change of one.

    `after_s` is seconds after the phase began, below 0 before it, None if no phase began. `certainty` is None where
    the sensor states none. `culprit` is what the sensor wrote. `is_fault` is whether it says that something is broken.
    """

    verdict: str
    certainty: str | None
    cause: str | None
    culprit: Line | None
    after_s: float | None
    is_fault: bool
    host: int
    text: str
    graph: tuple[str, ...] = ()
    acts_s: float | None = None
    acts_why: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One run of one phase.

    `ended` is whether a sensor ended it; `completed` whether the job ended by itself, with code 0. A run that did
    neither, never began its phase, or whose outside program failed, has a `problem` and counts nowhere; `skipped`
    says why it was not started. `exit_codes` has one for each host. `trained_s` is how long it trained before the
    phase, `phase_s` how long the phase was, both in seconds and None if unknown; `lasted_s` is from the first to the
    last line of its record. `steps` are those of the rank that did most.
    """

    phase: str
    kind: str
    run: int
    ended: bool = False
    completed: bool = False
    exit_codes: tuple[int | None, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    trained_s: float | None = None
    phase_s: float | None = None
    lasted_s: float = 0.0
    steps: int = 0
    problem: str = ""
    skipped: str = ""

    @property
    def reported(self) -> bool:
        """Whether it was called a fault."""
        return any(verdict.is_fault for verdict in self.verdicts)

    @property
    def suspected(self) -> bool:
        """Whether something was said of it, and no fault reported."""
        return bool(self.verdicts) and not self.reported

    @property
    def counts(self) -> bool:
        """Whether it says something about the sensor."""
        return not self.problem and not self.skipped


def row_of(
    phase: Phase,
    run: int,
    events: Sequence[Line],
    hosts: Sequence[tuple[int | None, Sequence[Line]]],
    beside_code: int | None = None,
) -> Row:
    """The row of a run; of each host the exit code, None if it had to be killed, and the sensor's lines.

    `beside_code` is the exit code of the program outside the job; None if there was none or it was still running.
    """
    codes = tuple(code for code, _ in hosts)
    begin_s = min(times_s(events, "phase_begin"), default=None)
    end_s = max(times_s(events, "phase_end"), default=None)
    first_s = min(times_s(events, "step"), default=None)
    moments = [float(event["unix"]) for event in events]
    ended, completed = ENDED_CODE in codes, all(code == 0 for code in codes)
    counts: dict[Any, int] = {}
    for event in events:
        if event.get("event") == "step":
            counts[event.get("rank")] = counts.get(event.get("rank"), 0) + 1
    return Row(
        phase=phase.name,
        kind=phase.kind,
        run=run,
        ended=ended,
        completed=completed,
        exit_codes=codes,
        verdicts=tuple(verdicts_of(hosts, begin_s)),
        trained_s=_apart(first_s, begin_s),
        phase_s=_apart(begin_s, end_s),
        lasted_s=round(max(moments, default=0.0) - min(moments, default=0.0), 1),
        steps=max(counts.values(), default=0),
        problem=_problem(codes, begin_s, beside_code),
    )


def _problem(codes: Sequence[int | None], begin_s: float | None, beside_code: int | None) -> str:
    if beside_code:
        return f"the program outside the job failed with code {beside_code}"
    if ENDED_CODE in codes:
        return ""
    if None in codes:
        return "took too long and was killed"
    if failed := [code for code in codes if code]:
        return f"ended by itself with code {failed[0]}"
    return "" if begin_s is not None else "never began its phase"


def _apart(begin_s: float | None, end_s: float | None) -> float | None:
    return None if begin_s is None or end_s is None else round(end_s - begin_s, 1)


def times_s(events: Iterable[Line], name: str) -> list[float]:
    """When these events were (CLOCK_REALTIME)."""
    return [float(event["unix"]) for event in events if event.get("event") == name]


def verdicts_of(
    hosts: Iterable[tuple[int | None, Sequence[Line]]], begin_s: float | None
) -> Iterable[Verdict]:
    """Every verdict but WORKING, in the order of its host's lines."""
    for number, (_, lines) in enumerate(hosts):
        for line in lines:
            if line.get("event") == "verdict" and line.get("verdict") != "WORKING":
                yield _verdict(line, begin_s, number)


def _verdict(line: Line, begin_s: float | None, host: int) -> Verdict:
    kind = str(line.get("verdict"))
    evidence = line.get("evidence") or []
    return Verdict(
        verdict=kind,
        certainty=line.get("certainty"),
        cause=line.get("cause"),
        culprit=line.get("culprit"),
        after_s=_apart(begin_s, float(line["time"])),
        is_fault=kind not in HARMLESS,
        host=host,
        text="; ".join(str(entry.get("text")) for entry in evidence),
        graph=tuple(line.get("graph") or ()),
        acts_s=_apart(begin_s, line.get("acts_at")),
        acts_why=str(line.get("acts_why") or ""),
    )


def record(row: Row) -> Line:
    """The row as one JSON line has it."""
    return {**asdict(row), "reported": row.reported, "suspected": row.suspected}


def shown(row: Row) -> str:
    """The row for the eye: one line."""
    name = f"{row.phase:30}"
    if row.skipped:
        return f"{name} skipped: {row.skipped}"
    if row.problem:
        return f"{name} INVALID: {row.problem}"
    mark = "ENDED" if row.ended else "FAULT" if row.reported else "ok"
    words = [f"{name} {mark:5} trained {_seconds(row.trained_s)}, phase {_seconds(row.phase_s)}"]
    words += [_said(verdict) for verdict in row.verdicts[:3]]
    if len(row.verdicts) > 3:
        words.append(f"{len(row.verdicts) - 3} more")
    return "; ".join(words)


def _said(verdict: Verdict) -> str:
    culprit = verdict.culprit or {}
    who = next(
        (
            f"{key} {culprit[key]}"
            for key in ("rank", "pid", "host")
            if culprit.get(key) is not None
        ),
        "",
    )
    words = [verdict.verdict, verdict.certainty, verdict.cause, who]
    return f"{_seconds(verdict.after_s)} {' '.join(filter(None, words))}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} s"


def summary(rows: Sequence[Row]) -> Line:
    """How many runs count, and for how many hours; how many were ended, called a fault, or only suspected."""
    valid = [row for row in rows if row.counts]
    return {
        "runs": len(valid),
        "ended": sum(row.ended for row in valid),
        "reported": sum(row.reported for row in valid),
        "suspected": sum(row.suspected for row in valid),
        "hours": round(sum(row.lasted_s for row in valid) / 3600, 2),
        "invalid": sum(bool(row.problem) for row in rows),
        "skipped": sum(bool(row.skipped) for row in rows),
    }


def summary_shown(line: Line) -> str:
    """The summary for the eye."""
    return (
        f"ended {line['ended']} of {line['runs']}, reported as a fault {line['reported']}, only suspected "
        f"{line['suspected']}, in {line['hours']} job-hours; {line['invalid']} invalid, {line['skipped']} skipped"
    )
