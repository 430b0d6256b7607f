"""From the lines of a run of `tapebench` to its report."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Line = Mapping[str, Any]
_GOAL_HOURS = 3000


def markdown(lines: Sequence[Line]) -> str:
    """The report."""
    healthy = [each for each in lines if not each["fault"]]
    faulty = [each for each in lines if each["fault"]]
    return "\n".join((*_summary(healthy), *_healthy(healthy), *_faults(faulty), ""))


def _summary(healthy: Sequence[Line]) -> Iterable[str]:
    hours = sum(each.get("hours", 0.0) for each in healthy)
    ended = [each for each in healthy if each.get("shutdown")]
    yield "# Synthetic jobs in virtual time"
    yield ""
    yield "All of this is synthetic: no GPU and no process was used."
    yield "Scripted threads, connections and ports of 2, 4 or 8 ranks were fed to the judge that ships, with the"
    yield "default policy and `--act shutdown`."
    yield "It shows what the code does with such facts, not how often real jobs make them."
    yield "Made by `tools/tapebench/run`."
    yield ""
    yield f"**{hours:.1f} healthy job-hours, {len(ended)} false shutdowns.**"
    yield (
        f"The goal is 0 in {_GOAL_HOURS:,} hours; this run "
        + ("reaches it." if hours >= _GOAL_HOURS and not ended else "is too short for it: missed.")
    )
    if hours and not ended:
        yield f"Without any in so many hours, fewer than {3000 / hours:.0f} in 1,000 hours are likely (95%)."
    for each in ended:
        yield f"- ended: {each['shape']}, seed {each['seed']}: {each['shutdown']}: {'; '.join(each['evidence'])}"


def _healthy(lines: Sequence[Line]) -> Iterable[str]:
    yield from ("", "## Healthy", "")
    yield "Closely watched and stalled are shares of all passes, of which there are more while a job is."
    yield ""
    yield "| shape | hours | ended | closely watched | stalled | reported |"
    yield "|---|---|---|---|---|---|"
    for shape in dict.fromkeys(sorted(each["shape"] for each in lines)):
        here = [each for each in lines if each["shape"] == shape]
        passes = sum(each["passes"] for each in here)
        reported: Counter[str] = Counter()
        for each in here:
            reported.update(
                {key: count for key, count in each["reported"].items() if _reports(key)}
            )
        watched, stalled = (
            sum(each.get(name, 0) for each in here) / passes for name in ("suspicious", "stalled")
        )
        yield (
            f"| {shape} | {sum(each['hours'] for each in here):.2f} "
            f"| {sum(bool(each.get('shutdown')) for each in here)} | {watched:.1%} | {stalled:.1%} "
            f"| {', '.join(f'{key} {count}' for key, count in reported.most_common()) or '-'} |"
        )


def _reports(reported: str) -> bool:
    return not reported.startswith("WORKING")


def _faults(lines: Sequence[Line]) -> Iterable[str]:
    yield from ("", "## Faults", "")
    yield "Each began at a random moment of a step and was watched for three minutes, or until the job was ended."
    yield "A tape counts as wrong if any other rank was named at any time; `ended, wrong` counts jobs ended with"
    yield "another rank named."
    yield ""
    yield "| fault | tapes | detected | p50 s | p99 s | right rank | wrong rank | no rank | ended | ended, wrong |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for fault in dict.fromkeys(each["fault"] for each in lines):
        yield _fault(fault, [each for each in lines if each["fault"] == fault])


def _fault(name: str, lines: Sequence[Line]) -> str:
    times = sorted(each["detected_s"] for each in lines if "detected_s" in each)
    right = wrong = no_rank = soon = 0
    for each in lines:
        named, rank = each.get("named", []), each.get("rank")
        wrong += any(other != rank for other in named)
        right += bool(named) and all(other == rank for other in named)
        no_rank += not named
        ended_for = each.get("shutdown_rank")
        soon += ended_for is not None and ended_for != rank
    ended = sum(bool(each.get("shutdown")) for each in lines)
    p50 = f"{statistics.median(times):.1f}" if times else "-"
    p99 = f"{times[min(len(times) - 1, int(0.99 * len(times)))]:.1f}" if times else "-"
    return (
        f"| {name} | {len(lines)} | {len(times)} | {p50} | {p99} | {right} | {wrong} | {no_rank} "
        f"| {ended} | {soon} |"
    )
