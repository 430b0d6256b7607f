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
    healthy = [line for line in lines if not line["fault"]]
    faulty = [line for line in lines if line["fault"]]
    return "\n".join((*_summary(healthy), *_healthy(healthy), *_faults(faulty), ""))


def _summary(healthy: Sequence[Line]) -> Iterable[str]:
    hours = sum(entry.get("hours", 0.0) for entry in healthy)
    ended = [entry for entry in healthy if entry.get("shutdown")]
    yield "# Synthetic jobs in virtual time"
    yield ""
    yield "All of this is synthetic: no GPU and no process was used."
    yield "Scripted threads, connections and ports of 2, 4 or 8 ranks were fed to the judge that ships, with the"
    yield "default policy and `--act shutdown`."
    yield "It shows what the code does with such facts, not how often real jobs make them."
    yield "Made by `bench/tapebench/run`."
    yield ""
    yield f"**{hours:.1f} healthy job-hours, {len(ended)} false shutdowns.**"
    yield (
        f"The goal is 0 in {_GOAL_HOURS:,} hours; this run "
        + ("reaches it." if hours >= _GOAL_HOURS and not ended else "is too short for it: missed.")
    )
    if hours and not ended:
        yield f"Without any in that many hours, fewer than {3000 / hours:.1f} in 1,000 hours are likely (95%)."
    for entry in ended:
        yield f"- ended: {entry['shape']}, seed {entry['seed']}: {entry['shutdown']}: {'; '.join(entry['evidence'])}"


def _healthy(lines: Sequence[Line]) -> Iterable[str]:
    yield from ("", "## Healthy", "")
    yield "Closely watched and stalled are shares of all passes, of which there are more while a job is."
    yield ""
    yield "| shape | hours | ended | closely watched | stalled | reported |"
    yield "|---|---|---|---|---|---|"
    for shape in dict.fromkeys(sorted(line["shape"] for line in lines)):
        here = [line for line in lines if line["shape"] == shape]
        passes = sum(entry["passes"] for entry in here)
        reported: Counter[str] = Counter()
        for entry in here:
            reported.update(
                {key: count for key, count in entry["reported"].items() if _reports(key)}
            )
        watched, stalled = (
            sum(entry.get(name, 0) for entry in here) / passes for name in ("suspicious", "stalled")
        )
        yield (
            f"| {shape} | {sum(entry['hours'] for entry in here):.2f} "
            f"| {sum(bool(entry.get('shutdown')) for entry in here)} | {watched:.1%} | {stalled:.1%} "
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
    for fault in dict.fromkeys(line["fault"] for line in lines):
        yield _fault(fault, [line for line in lines if line["fault"] == fault])


def _fault(name: str, lines: Sequence[Line]) -> str:
    times = sorted(entry["detected_s"] for entry in lines if "detected_s" in entry)
    right = wrong = no_rank = soon = 0
    for line in lines:
        named, rank = line.get("named", []), line.get("rank")
        wrong += any(other != rank for other in named)
        right += bool(named) and all(other == rank for other in named)
        no_rank += not named
        ended_for = line.get("shutdown_rank")
        soon += ended_for is not None and ended_for != rank
    ended = sum(bool(entry.get("shutdown")) for entry in lines)
    p50 = f"{statistics.median(times):.1f}" if times else "-"
    p99 = f"{times[min(len(times) - 1, int(0.99 * len(times)))]:.1f}" if times else "-"
    return (
        f"| {name} | {len(lines)} | {len(times)} | {p50} | {p99} | {right} | {wrong} | {no_rank} "
        f"| {ended} | {soon} |"
    )
