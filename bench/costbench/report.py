"""Raw numbers of the cost bench into its report. Pure: the same numbers give the same text."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from bench.costbench.statistics import (
    Estimate,
    apart,
    bootstrap,
    difference,
    excess_s,
    ratio,
    trimmed_mean,
)
from bench.machine import kernel_series
from tools.pages import DATA, ROOT

Raw = Mapping[str, Any]
Rows = Sequence[Sequence[str]]

PAGE, RAW_NAME = ROOT / "docs/bench/costbench.md", "costbench.json"
BASELINE = "absent"
GOAL_THREADS = 2_500
LARGE_THREADS = 8_000
STEP_GOAL, CPU_GOAL, LARGE_CPU_GOAL = 0.001, 0.0015, 0.005
TRUE_GOAL_S, READY_GOAL_S, RSS_GOAL_MB, CALL_GOAL_NS = 0.4, 0.35, 30.0, 2.0

_HEAD = """\
# Cost bench

Made by `tools/costbench/run`{quick}; do not edit. `bench/costbench/report` makes it again from the
raw numbers. What is measured and how:
[bench/costbench/README.md](../../bench/costbench/README.md).

{machine}
{caveat}"""


def verdict(estimate: Estimate, goal: float) -> str:
    """Whether a value is below its goal; its interval decides how surely."""
    if estimate.high <= goal:
        return "met"
    if estimate.low > goal:
        return "**missed**"
    said = "met" if estimate.value <= goal else "**missed**"
    return f"{said}, but not proven: the interval holds the goal"


def blocks_of(raw: Raw, field: str) -> list[tuple[str, float]]:
    """Mode and value of each block of the training, in the order measured."""
    return [(block["mode"], block[field]) for block in raw["blocks"]]


def percent(change: Estimate, digits: int = 2) -> str:
    """A share as percent, with its interval."""
    value, low, high = (part * 100 for part in (change.value, change.low, change.high))
    return f"{value:+.{digits}f}% ({low:+.{digits}f} to {high:+.{digits}f})"


def slow_down(raw: Raw, field: str, mode: str) -> Estimate:
    """Change of a mode against no sensor, as a share."""
    return ratio(blocks_of(raw, field), mode, BASELINE).scaled(1, -1)


def _excesses(raw: Raw, real: bool) -> list[float]:
    """Seconds by which steps took longer at the passes (or blanks) than next to them."""
    ends = raw["passes"]["step_ends"]
    found = (excess_s(ends, at_s) for at_s, is_pass in raw["passes"]["events"] if is_pass == real)
    return [value for value in found if value is not None]


def slow_down_by_passes(
    raw: Raw, statistic: Callable[[Sequence[float]], float] = fmean
) -> Estimate:
    """Change of the step time by a pass a period, as a share: passes less blanks."""
    found = apart(_excesses(raw, real=True), _excesses(raw, real=False), statistic)
    return found.scaled(1 / raw["passes"]["period_s"])


def _pass_rows(raw: Raw) -> Rows:
    rows = []
    for name, statistic in (("mean", fmean), ("mean without the outer twentieths", trimmed_mean)):
        cells = []
        for real in (True, False):
            found = bootstrap(_excesses(raw, real), statistic)
            low, value, high = (part * 1e3 for part in (found.low, found.value, found.high))
            cells.append(f"{value:+.3f} ms ({low:+.3f} to {high:+.3f})")
        rows.append((name, *cells, percent(slow_down_by_passes(raw, statistic), 3)))
    return rows


def _noise(raw: Raw) -> float:
    """Half the range of the blocks without a sensor, as a share of their median."""
    values = sorted(value for mode, value in blocks_of(raw, "mean_step_s") if mode == BASELINE)
    return (values[-1] - values[0]) / 2 / median(values)


def _crowd(raw: Raw, threads: int) -> Raw:
    return next(dict(one) for one in raw["crowds"] if one["thread_count"] == threads)


def _point(value: float) -> Estimate:
    return Estimate(value, value, value)


def _goal_rows(raw: Raw) -> Rows:
    change = slow_down_by_passes(raw)
    said = verdict(change, STEP_GOAL)
    rows = [("step time, attached, by passes", "< +0.1%", percent(change, 3), said)]
    for mode in ("attached", "fault"):
        change = slow_down(raw, "mean_step_s", mode)
        name = f"step time, {mode}, by blocks"
        rows.append((name, "< +0.1%", percent(change), verdict(change, STEP_GOAL)))
    crowd, large = _crowd(raw, GOAL_THREADS), _crowd(raw, LARGE_THREADS)
    for threads, job, usage, goal in (
        (GOAL_THREADS, "the training", raw["steady"]["agent"], CPU_GOAL),
        (GOAL_THREADS, "a parked crowd, from its 3rd second", crowd["agent"], CPU_GOAL),
        (GOAL_THREADS, "a parked crowd, from its 70th second", crowd["settled"], CPU_GOAL),
        (LARGE_THREADS, "a parked crowd, from its 3rd second", large["agent"], LARGE_CPU_GOAL),
        (LARGE_THREADS, "a parked crowd, from its 70th second", large["settled"], LARGE_CPU_GOAL),
    ):
        cpu, rss_mb = usage["cpu_share"], usage["rss_kib"] * 1024 / 1e6
        name = f"{threads:,} threads, {job}"
        share = (f"CPU, {name}", f"< {goal * 100:g}% of a core", f"{cpu * 100:.3f}%")
        memory = (f"RSS, {name}", f"< {RSS_GOAL_MB:g} MB", f"{rss_mb:.1f} MB")
        rows.append((*share, verdict(_point(cpu), goal)))
        rows.append((*memory, verdict(_point(rss_mb), RSS_GOAL_MB)))
    for name, field, goal in (
        ("start: `run -- true`", "true_s", TRUE_GOAL_S),
        ("start: until attached", "ready_s", READY_GOAL_S),
    ):
        found = bootstrap(raw["starts"][field])
        text = f"{found.value:.2f} s ({found.low:.2f} to {found.high:.2f})"
        rows.append((name, f"< {goal:g} s", text, verdict(found, goal)))
    call = difference(
        [(one["mode"], one["call_ns"]) for one in raw["syscalls"]], "attached", BASELINE
    )
    text = f"{call.value:+.2f} ns ({call.low:+.2f} to {call.high:+.2f})"
    # nothing is attached to the path of a system call: an interval around 0 shows how closely was looked
    wanted = f"0, interval below {CALL_GOAL_NS:g} ns"
    rows.append(("unrelated system call", wanted, text, verdict(call, CALL_GOAL_NS)))
    return rows


def _step_rows(raw: Raw) -> Rows:
    fields = ("mean_step_s", "median_step_s", "rank_cpu_s_per_step")
    return [
        (
            mode,
            str(sum(block["mode"] == mode for block in raw["blocks"])),
            *(percent(slow_down(raw, field, mode)) for field in fields),
        )
        for mode in ("idle", "attached", "fault")
    ]


def _agent_cells(agents: Sequence[Mapping[str, float]]) -> list[str]:
    def middle(field: str) -> float:
        return median(agent[field] for agent in agents)

    memory = (middle(field) * 1024 / 1e6 for field in ("rss_kib", "pss_kib", "peak_kib"))
    return [
        f"{middle('cpu_share') * 100:.3f}%",
        f"{middle('wakeups_per_s'):.1f}",
        *(f"{one:.1f} MB" for one in memory),
    ]


def _agent_rows(raw: Raw) -> Rows:
    rows = []
    for mode in ("idle", "attached", "fault"):
        blocks = [block for block in raw["blocks"] if block["mode"] == mode]
        reported = sorted({text for block in blocks for text in block["verdicts"]})
        cells = _agent_cells([block["agent"] for block in blocks])
        rows.append((mode, *cells, ", ".join(reported)))
    steady = raw["steady"]
    name = f"attached, {steady['window_s']:g} s"
    rows.append((name, *_agent_cells([steady["agent"]]), ", ".join(steady["verdicts"])))
    return rows


def _crowd_rows(raw: Raw) -> Rows:
    rows = []
    for one in raw["crowds"]:
        found = bootstrap(one["pass_ms"])
        rows.append(
            (
                f"{one['thread_count']:,} in {one['process_count']}",
                *_agent_cells([one["agent"]])[:2],
                *_agent_cells([one["settled"]])[:3],
                f"{found.value:.2f} ms ({found.low:.2f} to {found.high:.2f})",
                ", ".join(one["verdicts"]),
            )
        )
    return rows


def _start_rows(raw: Raw) -> Rows:
    names = {
        "true_s": "`kcover-ebpf run -- true`, from start to end",
        "ready_s": "`run --cgroup`, to its first line: everything is attached",
        "verdict_s": f"`run --cgroup`, to its first verdict ({', '.join(raw['starts']['reported'])})",
    }
    rows = []
    for field, name in names.items():
        values = raw["starts"][field]
        rows.append((name, f"{median(values):.2f} s", f"{min(values):.2f} to {max(values):.2f} s"))
    return rows


def _syscall_rows(raw: Raw) -> Rows:
    return [
        (mode, str(len(values)), f"{median(values):.2f} ns", f"{min(values):.2f} ns")
        for mode in (BASELINE, "attached")
        if (values := [one["call_ns"] for one in raw["syscalls"] if one["mode"] == mode])
    ]


def _table(titles: Sequence[str], rows: Rows) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _machine(raw: Raw) -> str:
    found = raw["machine"]
    loads = [block["load_average"] for block in raw["blocks"]]
    day = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(found["unix"]))
    return (
        f"Measured {day} on {found['cpu_count']} cores ({found['cpu']}), "
        f"Linux {kernel_series(found['kernel'])}, {found['machine']}, Python {found['python']}; "
        f"load average {min(loads):.1f} to {max(loads):.1f}.\n"
    )


def _caveat(raw: Raw) -> str:
    loads = median(block["load_average"] for block in raw["blocks"])
    if loads <= raw["machine"]["cpu_count"]:
        return ""
    return (
        f"The machine was **not quiet**: more wanted to run ({loads:.1f}) than it has cores, and "
        f"steps without any sensor differ between blocks by ±{_noise(raw) * 100:.0f}%. A cost of "
        "0.1% cannot be distinguished from blocks then; read the intervals, not the middle values.\n"
    )


def text(raw: Raw) -> str:
    """The report in Markdown."""
    quick = " with `--quick`, a smoke test" if raw["quick"] else ""
    head = _HEAD.format(quick=quick, machine=_machine(raw), caveat=_caveat(raw))
    usage = ("CPU of one core", "wakeups/s", "RSS", "PSS", "peak RSS")
    change = ("mean step time", "median step time", "CPU time of the ranks per step")
    tables = (
        ("Goals", ("what", "goal", "measured (95% interval)", ""), _goal_rows(raw)),
        (
            "The training: steps during a pass against the steps next to it",
            ("statistic", "at a pass", "at a blank", "slow-down: a pass less a blank, each second"),
            _pass_rows(raw),
        ),
        (
            "The training: change against no sensor, by blocks",
            ("mode", "blocks", *change),
            _step_rows(raw),
        ),
        ("The sensor over the training", ("mode", *usage, "verdicts"), _agent_rows(raw)),
        (
            "The sensor by number of watched threads",
            (
                "threads, processes",
                *(f"{text}, from the 3rd second" for text in usage[:2]),
                *(f"{text}, from the 70th" for text in usage[:3]),
                "CPU of one pass",
                "verdicts",
            ),
            _crowd_rows(raw),
        ),
        ("Start", ("what", "median", "range"), _start_rows(raw)),
        (
            "An unwatched process: CPU time of one getppid(2)",
            ("sensor", "blocks", "median", "least"),
            _syscall_rows(raw),
        ),
    )
    return head + "".join(
        f"\n## {title}\n\n{_table(titles, rows)}\n" for title, titles, rows in tables
    )


def main() -> None:
    """Write the report again from the raw numbers."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else DATA / RAW_NAME
    try:
        raw = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        sys.exit(f"cannot read {path} ({error}); run tools/costbench/run first")
    PAGE.write_text(text(raw))


if __name__ == "__main__":
    main()
