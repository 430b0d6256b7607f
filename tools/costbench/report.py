"""Raw numbers of the cost bench into its report. Pure: the same numbers give the same text."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from tools.costbench.statistics import Estimate, median, paired_difference, paired_ratio

Raw = Mapping[str, Any]

GOALS = {
    "slow-down of a step": "< 0.1%",
    "agent CPU, 2,500 threads": "< 0.15% of a core",
    "agent memory (RSS)": "< 60 MB",
    "start": "< 0.5 s",
}

_HEAD = """\
# Cost bench

Made by `tools/costbench/run`; do not edit. Raw numbers: [costbench.json](costbench.json).

One training of two ranks (torch + gloo, 50 ms steps, half of it computation) with 2,500 parked
threads, {rounds} rounds of {window_s:g} s in each mode, the order random in every round. *idle*: a
sensor is loaded and watches another job that does next to nothing. *attached*: a sensor watches the
training. *fault*: besides, a second sensor watches a second job with a stopped rank. Intervals are
95% (bootstrap over rounds).

{machine}
"""


def by_mode(raw: Raw, mode: str, field: str) -> list[Any]:
    """A field of one mode in every round."""
    return [one[field] for each in raw["rounds"] for one in each if one["mode"] == mode]


def percent(ratio: Estimate) -> str:
    """A ratio to 1 as a change in percent, with its interval."""
    value, low, high = ((part - 1) * 100 for part in (ratio.value, ratio.low, ratio.high))
    return f"{value:+.2f}% ({low:+.2f} to {high:+.2f})"


def _step_rows(raw: Raw) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = []
    for mode in ("idle", "attached", "fault"):
        cells = [mode]
        for field in ("step_s", "rank_cpu_s_per_step"):
            ratio = paired_ratio(by_mode(raw, mode, field), by_mode(raw, "absent", field))
            cells.append(percent(ratio))
        rows.append(cells)
    return rows


def _syscall_rows(raw: Raw) -> list[Sequence[str]]:
    best = {
        mode: [min(timings) for timings in by_mode(raw, mode, "syscall_ns")]
        for mode in ("absent", "idle", "attached", "fault")
    }
    rows: list[Sequence[str]] = [("absent", f"{median(best['absent']):.1f} ns", "")]
    for mode in ("idle", "attached", "fault"):
        more = paired_difference(best[mode], best["absent"])
        change = f"{more.value:+.1f} ns ({more.low:+.1f} to {more.high:+.1f})"
        rows.append((mode, f"{median(best[mode]):.1f} ns", change))
    return rows


def _agent_rows(raw: Raw) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = []
    for mode in ("idle", "attached", "fault"):
        windows = by_mode(raw, mode, "agent_cpu_share")
        for index in range(len(windows[0])):
            name = mode if len(windows[0]) == 1 else f"{mode}, sensor {index + 1}"
            share = median([window[index] for window in windows]) * 100
            rss, peak = (
                median([window[index] for window in by_mode(raw, mode, field)]) * 1024 / 1e6
                for field in ("agent_rss_kib", "agent_peak_kib")
            )
            start = median([window[index] for window in by_mode(raw, mode, "agent_start_s")])
            rows.append(
                (name, f"{share:.2f}%", f"{rss:.1f} MB", f"{peak:.1f} MB", f"{start:.2f} s")
            )
    return rows


def _thread_rows(raw: Raw) -> list[Sequence[str]]:
    ordered = sorted(raw["threads"], key=lambda one: one["thread_count"])
    return [
        (
            f"{one['thread_count']:,}",
            f"{one['agent_cpu_share'][0] * 100:.2f}%",
            f"{one['agent_rss_kib'][0] * 1024 / 1e6:.1f} MB",
        )
        for one in ordered
    ]


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _machine(raw: Raw) -> str:
    found = raw["machine"]
    loads = [one["load_average"] for each in raw["rounds"] for one in each]
    day = time.strftime("%Y-%m-%d", time.gmtime(found["unix"]))
    return (
        f"Measured {day} on {found['cpu_count']} cores ({found['cpu']}), Linux {found['kernel']}, "
        f"{found['machine']}, Python {found['python']}; load average {min(loads):.1f} to "
        f"{max(loads):.1f}."
    )


def text(raw: Raw) -> str:
    """The report in Markdown."""
    head = _HEAD.format(rounds=len(raw["rounds"]), window_s=raw["window_s"], machine=_machine(raw))
    agent = ("mode", "CPU of one core", "RSS", "peak RSS", "start")
    sections = (
        ("Goals", _table(("what", "goal"), list(GOALS.items()))),
        (
            "The job: change against no sensor",
            _table(("mode", "time of a step", "CPU time of a step"), _step_rows(raw)),
        ),
        ("The sensor", _table(agent, _agent_rows(raw))),
        (
            "The sensor by number of watched threads, beside the training",
            _table(("parked threads", "CPU of one core", "RSS"), _thread_rows(raw)),
        ),
        (
            "An unrelated process: one getppid(2), CPU time",
            _table(("mode", "call", "change"), _syscall_rows(raw)),
        ),
    )
    return head + "".join(f"\n## {title}\n\n{body}\n" for title, body in sections)
