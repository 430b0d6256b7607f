"""Renders the facts as a page of Markdown; the raw data next to it are complete."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from tools.gpucheck.plan import ROOT

Facts = dict[str, Any]
_IMPOSSIBLE = "not possible here"


def write(folder: Path, machine: Facts, parts: Facts) -> None:
    """Write gpu.md, and gpu.json with all data."""
    text = json.dumps({"machine": machine, "parts": parts}, indent=1) + "\n"
    # stack frames contain the path of this checkout
    (folder / "gpu.json").write_text(text.replace(f"{ROOT}/", ""))
    (folder / "gpu.md").write_text(render(machine, parts))


def render(machine: Facts, parts: Facts) -> str:
    """A page like those in docs/bench; a part without facts says why."""
    lines = [
        "# What a real GPU does",
        "",
        "<!-- Written by tools/gpu-check; data: gpu.json -->",
        "",
    ]
    lines += _table(("machine", ""), [(name, str(value)) for name, value in machine.items()])
    for name, (title, body) in _PARTS.items():
        part = parts.get(name, {"state": _IMPOSSIBLE, "why": "not run", "facts": {}})
        lines += ["", f"## {title}", ""]
        if part["state"] != "done":
            lines += [f"{part['state']}: {part.get('why', '')}", ""]
        lines += body(part["facts"])
    return "\n".join(lines).rstrip() + "\n"


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    def line(cells: Iterable[object]) -> str:
        return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"

    return [line(heads), "|" + "---|" * len(heads), *map(line, rows)]


def _counts(found: Facts) -> str:
    return ", ".join(f"{name} {count}" for name, count in found.items()) or "-"


def _impossible(facts: Facts) -> str:
    return f"{_IMPOSSIBLE}: {facts[_IMPOSSIBLE]}" if _IMPOSSIBLE in facts else ""


def _waits(facts: Facts) -> list[str]:
    heads = (
        "call, mode, context",
        "state",
        "CPU user / system",
        "switches a second, own / forced",
        "instructions lie in",
        "register sets in 16: compared / all",
        "system call: wchan",
    )
    rows: list[Sequence[object]] = []
    for name, case in facts.items():
        if why := _impossible(case):
            rows.append((name, why, "", "", "", "", ""))
            continue
        taken = case["registers"]
        sets = (
            f"{taken.get('sets_compared_in_16', '?')} / {taken.get('sets_of_all_words_in_16', '?')}"
        )
        rows.append(
            (
                name,
                _counts(case["states"]),
                f"{case['cpu_user']:.2f} / {case['cpu_system']:.2f}",
                f"{case['voluntary_per_s']} / {case['involuntary_per_s']}",
                _impossible(taken) or _counts(taken["modules"]),
                sets,
                f"{_counts(case['system calls'])}: {_counts(case['wchan'])}",
            )
        )
    full = [
        f"{name}: launch {case['launch_that_waited']} waited {case['longest_launch_s']:.2f} s."
        for name, case in facts.items()
        if "launch_that_waited" in case
    ]
    return [*_table(heads, rows), "", *full]


def _nvml(facts: Facts) -> list[str]:
    rows = []
    for name, cost in facts.items():
        if "ms" in cost:
            rows.append((name, f"{cost['ms'] * 1000:.0f}", ""))
        elif why := _impossible(cost):
            rows.append((name, why, ""))
        else:
            rows.append((name, cost["median_us"], cost["max_us"]))
    return _table(("call", "median, us", "longest of 100, us"), rows)


def _holders(facts: Facts) -> list[str]:
    rows = []
    for name, stages in facts.items():
        if name == "device files":
            continue
        for stage, found in stages.items():
            cells = [_impossible(found), ""]
            if "open" in found:
                cells = [_counts(found["open"]), _counts(found["mapped"])]
            rows.append((name, stage, *cells))
    present = ", ".join(facts.get("device files", [])) or "none"
    return [f"Device files: {present}.", "", *_table(("", "stage", "open", "mapped"), rows)]


def _nccl(facts: Facts) -> list[str]:
    rows: list[Sequence[object]] = []
    for kind, found in facts.items():
        if why := _impossible(found):
            rows.append((kind, "communicator", why, ""))
            continue
        for form, answer in found["RAS"].items():
            result = _impossible(answer) or answer["understood"]
            rows.append((kind, f"RAS, {form}", result, answer.get("took_ms", "")))
        if recorder := found.get("Flight Recorder"):
            said = _impossible(recorder) or recorder.get("understood")
            said = said or f"version {recorder['version']}, {recorder['entries']} entries"
            rows.append((kind, "Flight Recorder", said, round(recorder.get("took_s", 0) * 1000)))
    return _table(("made by", "asked", "answer", "ms"), rows)


def _probes(facts: Facts) -> list[str]:
    rows: list[Sequence[object]] = []
    costs = []
    for kind, found in facts.items():
        if why := _impossible(found):
            rows.append((kind, why, "", ""))
            continue
        known = "yes" if found["identified"] else "no"
        for what in ("collective", "captured", "message"):
            if what in found:
                launched = f"{found[what]['launched']} {what}"
                rows.append((kind, launched, _counts(found[what]["counted"]), known))
        cost = found["cost"]
        medians = statistics.median(cost["without_ns"]), statistics.median(cost["with_ns"])
        costs.append(
            f"{kind}: a launch takes {medians[0] / 1000:.1f} us of CPU without probes and "
            f"{medians[1] / 1000:.1f} us with them; {cost['more_ns'] / 1000:.1f} us more, "
            f"the median of {len(cost['with_ns'])} pairs of blocks."
        )
    heads = ("made by", "launched", "counted", "communicator identified")
    return [*_table(heads, rows), "", *costs]


def _sensor(facts: Facts) -> list[str]:
    rows: list[Sequence[object]] = []
    logs = []
    for fault, found in facts.items():
        if fault == "interpreter":
            continue
        if why := _impossible(found):
            rows.append((fault, why, "", "", "", ""))
            continue
        first = found.get("first", {})
        after_s = first.get("after_s", "")
        named = first.get("rank", "")
        verdict = f"{first['verdict']} {first['cause']}" if first else "no fault reported"
        if fault != "none" and not found["began"]:
            verdict = f"the fault never began: {', '.join(found['job said']) or 'too little time'}"
        wrong = len(found["false verdicts"])
        rungs = Counter(fact.get("rung", "") for fact in found["device facts"])
        seen = ", ".join(f"{count} {rung}" for rung, count in rungs.items() if rung)
        rows.append((fault, verdict, named, after_s, wrong, seen))
        log = found["kernel log"]
        logs += [f"{fault}: {line}" for line in (log if isinstance(log, list) else [log])]
    heads = (
        "fault of rank 1",
        "first verdict",
        "rank",
        "after, s",
        "verdicts before it",
        "Xids, seen by",
    )
    return [*_table(heads, rows), "", "The kernel's log:", "", "```", *logs, "```"]


def _overhead(facts: Facts) -> list[str]:
    rows = [
        (name, facts[name]["median_us"], ", ".join(map(str, facts[name]["blocks"])))
        for name in ("without", "with")
        if name in facts
    ]
    lines = _table(("sensor", "median step, us", "blocks, in turns"), rows)
    if found := facts.get("difference"):
        span = f"{found['least_percent']:+} to {found['most_percent']:+}"
        lines += [
            "",
            f"Difference: {found['median_percent']:+}% ({span} over the pairs of blocks).",
        ]
    return lines


_PARTS: dict[str, tuple[str, Callable[[Facts], list[str]]]] = {
    "waits": ("How a host thread waits for its device", _waits),
    "nvml": ("What a call of NVML costs", _nvml),
    "holders": ("Who holds which device file", _holders),
    "nccl": ("RAS and Flight Recorder", _nccl),
    "probes": ("What the probes on NCCL count", _probes),
    "sensor": ("What the sensor reports", _sensor),
    "overhead": ("What the sensor costs", _overhead),
}
