"""Compare what the detector said with what really happened. Pure.

A fault verdict is any verdict but WORKING and UNKNOWN; where a scenario accepts UNKNOWN, it is one if it names a
rank, or opens an incident where there is no rank to name. The deciding verdict of a run is the last
fault verdict before the job was shut down, or the last one in the watched time if it was not.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from bench.faultbench.plan import RunSpec
from bench.faultbench.scenario import OWN, Culprit
from bench.faultbench.truth import Truth

Line = dict[str, Any]
SHUT_DOWN_CODE = 75
HARMLESS = ("WORKING", "UNKNOWN")


@dataclass(frozen=True, slots=True)
class Judgement:
    """The marks of one run; `None` means: does not apply.

    `latency_s` runs from the onset to the first fault verdict of an accepted class, and is never
    below 0; `healthy_s` is the watched time in which every verdict would have been a false one.
    """

    detected: bool | None
    latency_s: float | None
    rank_right: bool | None
    cause_right: bool | None
    verdict: str | None
    cause: str | None
    named_rank: int | None
    shut_down: bool
    shut_down_latency_s: float | None
    false_verdicts: int
    false_shut_down: bool
    healthy_s: float


def fault_verdicts(
    lines: Sequence[Line], accepted: Collection[str] = (), *, names_rank: bool = True
) -> list[Line]:
    """The verdicts that say that something is wrong.

    `accepted`: those that the scenario takes as right; `names_rank`: it has a rank to name.
    """
    verdicts = [line for line in lines if line.get("event") == "verdict"]
    return [
        line
        for line in verdicts
        if line.get("verdict") not in HARMLESS
        or (line.get("verdict") in accepted and _is_suspicion(line, names_rank=names_rank))
    ]


def _is_suspicion(line: Line, *, names_rank: bool) -> bool:
    return named_rank(line) is not None or bool(line.get("incident") and not names_rank)


def named_rank(line: Line) -> int | None:
    """The rank that a verdict names, None if it names none."""
    culprit = line.get("culprit")
    return culprit.get("rank") if isinstance(culprit, dict) else None


def rank_is_right(run: RunSpec, line: Line, culprit_pid: int | None = None) -> bool:
    """Whether the verdict names whom the scenario wants named; a rank without a number by its process."""
    named, kind = named_rank(line), run.scenario.culprit
    if named is None and run.framework in OWN and culprit_pid is not None:
        return (line.get("culprit") or {}).get("pid") == culprit_pid
    if kind is Culprit.NO_RANK:
        return named is None
    if kind is Culprit.EITHER_END:
        return named in (run.culprit, (run.culprit + 1) % run.world)
    if kind is Culprit.OPTIONAL and named is None:
        return True
    return named == run.culprit


def judge(
    run: RunSpec, truth: Truth, lines: Sequence[Line], exit_code: int | None, until: float
) -> Judgement:
    """Mark a run that ended (or was ended) at the time `until`; `exit_code` is the detector's."""
    names_rank = run.scenario.culprit not in (Culprit.NO_RANK, Culprit.OPTIONAL)
    verdicts = fault_verdicts(lines, run.scenario.verdicts, names_rank=names_rank)
    shut_at = shut_down_time(lines, exit_code, until)
    begin = (truth.fault_at or until) if run.scenario.is_fault else until
    failed = failed_at(truth)
    healthy_until = begin if failed is None else min(begin, failed)
    early = [line for line in verdicts if line["time"] < begin]
    late = [line for line in verdicts if begin <= line["time"] <= (shut_at or until)]
    onset = truth.onset_at or begin
    right = next((line for line in late if line["verdict"] in run.scenario.verdicts), None)
    deciding = next(iter((late or early)[-1:]), None)
    judged = late[-1] if late else None
    uncalled = failed is None and not (run.scenario.is_fault and run.scenario.may_shut_down)
    return Judgement(
        detected=right is not None if run.scenario.is_fault else None,
        latency_s=max(0.0, right["time"] - onset) if right else None,
        rank_right=rank_is_right(run, judged, truth.culprit_pid) if judged else None,
        cause_right=judged.get("cause") in run.scenario.causes if judged else None,
        verdict=deciding["verdict"] if deciding else None,
        cause=deciding.get("cause") if deciding else None,
        named_rank=named_rank(deciding) if deciding else None,
        shut_down=shut_at is not None,
        shut_down_latency_s=max(0.0, shut_at - onset) if shut_at else None,
        false_verdicts=sum(line["time"] < healthy_until for line in early),
        false_shut_down=shut_at is not None and (uncalled or shut_at < healthy_until),
        healthy_s=round(max(0.0, begin - (truth.ready_at or until)), 2),
    )


def failed_at(truth: Truth) -> float | None:
    """When a rank ended with a code above 0 in a job that never trained, so was not healthy; None if none did."""
    if truth.ready_at is not None:
        return None
    return min((at for _, code, at in truth.exits if code > 0), default=None)


def shut_down_time(lines: Sequence[Line], exit_code: int | None, until: float) -> float | None:
    """When the job was shut down on a verdict (exit code 75), None if it was not."""
    if exit_code != SHUT_DOWN_CODE:
        return None
    actions = [line for line in lines if line.get("event") == "action"]
    return min((float(x["time"]) for x in actions if x.get("act") == "shutdown"), default=until)
