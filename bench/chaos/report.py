"""What a run showed: a JSON file, and a page with the same in tables."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from bench.chaos.invariants import Outcome, violations
from bench.chaos.plan import FAULTS, Act


def write(
    out: Path,
    seed: int,
    minutes: float,
    done: Sequence[tuple[Act, str]],
    outcome: Outcome,
    misses: int,
) -> int:
    """Write OUT.json and OUT.md; 0 where every invariant held, else 1."""
    broken = violations(outcome)
    acts = [
        {"at_s": act.at_s, "kind": act.kind.value, "seconds": act.seconds, "what": what}
        for act, what in done
    ]
    body = {
        "seed": seed,
        "minutes": minutes,
        "violations": broken,
        "acts": acts,
        "unanswered_rounds": misses,
        **asdict(outcome),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_suffix(".json").write_text(json.dumps(body, indent=1) + "\n")
    page = page_of(seed, minutes, done, outcome, broken)
    out.with_suffix(".md").write_text(page)
    print(page)
    return 1 if broken else 0


def page_of(
    seed: int,
    minutes: float,
    done: Sequence[tuple[Act, str]],
    outcome: Outcome,
    broken: Sequence[str],
) -> str:
    """The page."""
    counts = Counter((act.kind.value, what == "done") for act, what in done)
    rows = [
        f"| {kind} | {counts[kind, True]} | {counts[kind, False]} |"
        for kind in sorted({act.kind.value for act, _ in done})
    ]
    faults = [act for act, what in done if act.kind in FAULTS and what == "done"]
    lines = [
        "# Chaos",
        "",
        f"Written by `bench/chaos/run --seed {seed} --minutes {minutes:g}`: {len(faults)} faults in",
        "two jobs of two ranks, while a third was left alone, on the test bed's two nodes.",
        "",
        "| what was done | times | left out |",
        "|---|---|---|",
        *rows,
        "",
        "A fault is left out while its job has not learned its rhythm again since the one before.",
        "",
        "## Invariants",
        "",
        *(f"- broken: {text}" for text in broken),
        *([] if broken else ["All held: " + _HELD]),
        "",
        *_jobs(outcome),
        "",
        *_memory(outcome),
    ]
    return "\n".join(lines) + "\n"


_HELD = (
    "no job was left suspended, no process stopped, no node without new pods; no rank was started more often than"
    " its faults explain; the job that was left alone was not touched and no fault was reported of it; every fault"
    " was reported; memory and descriptors stayed in bounds."
)


def _jobs(outcome: Outcome) -> list[str]:
    rows = []
    for job in outcome.jobs:
        mine = sum(fault.job == job.name for fault in outcome.faults)
        starts = ", ".join(f"{count}" for _, count in sorted(job.starts.items()))
        name = job.name.rpartition("-")[0].removeprefix("chaos-")
        rows.append(f"| {name} | {mine} | {starts} | {job.deletions} |")
    head = "| job | faults | starts of each rank | incidents deleted during a restart |"
    return [head, "|---|---|---|---|", *rows]


def _memory(outcome: Outcome) -> list[str]:
    rows = []
    for component in ("agent", "controller", "helper"):
        mine = [peak for peak in outcome.peaks if peak.component == component]
        most = max((peak.bytes for peak in mine), default=0) / 1e6
        files = max((peak.descriptors for peak in mine), default=0)
        rows.append(f"| {component} | {len(mine)} | {most:.0f} MB | {files} |")
    head = "| program | processes | most memory of one (VmHWM) | most descriptors of one |"
    return [head, "|---|---|---|---|", *rows]
