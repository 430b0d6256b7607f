"""`bench/faultbench/report`: results -> .bench/data/faultbench.jsonl -> report and plots in docs/bench.

The report is made from the data file alone, so that it can be made again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.faultbench import plots
from bench.faultbench.figures import Figures, Record, false_alarms, figures, quantile, valid_faults
from bench.faultbench.judge import fault_verdicts, named_rank
from bench.faultbench.plan import SCENARIOS
from bench.faultbench.runner import RESULTS
from bench.faultbench.scenario import CUDA, NOT_HERE, NOT_HERE_OF_DEVICES
from tools.pages import DATA, ROOT

OUT = ROOT / "docs/bench"
KEPT = (
    "name", "scenario", "framework", "step_s", "world", "held_out", "is_fault", "culprit_rank",
    "act", "load", "background", "valid", "problem", "effect", "exit_code", "not_runnable",
)  # fmt: skip
ANNOUNCED = frozenset(s.id for s in SCENARIOS if s.is_announced)
SLOWNESS = frozenset(s.id for s in SCENARIOS if "SLOW" in s.verdicts)
ACCEPTED = {s.id: s.verdicts for s in SCENARIOS}
SILENT_GOALS_S = {0.2: (3.0, 10.0), 2.0: (4.0, 10.0), 10.0: (15.0, 40.0)}
"""Step length -> goals for p50 and p99 of silent hangs."""
TITLES = {s.id: s.title for s in SCENARIOS}


def compact(result: dict[str, Any]) -> Record:
    """What the report needs of a result: its marks and each change of verdict."""
    record = {key: result[key] for key in KEPT if key in result}
    for key, value in result.get("judgement", {}).items():
        record[key] = round(value, 3) if isinstance(value, float) else value
    fault_at = (result.get("truth") or {}).get("fault_at")
    if fault_at:
        record["said"] = [
            [round(v["time"] - fault_at, 2), v["verdict"], v.get("cause"), named_rank(v)]
            for v in fault_verdicts(result["lines"], ACCEPTED[result["scenario"]])[:8]
        ]
    return record


def gather(folder: Path) -> list[Record]:
    """The compact records of all result files in a folder, by name."""
    return [compact(json.loads(path.read_text())) for path in sorted(folder.glob("*.json"))]


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; empty cells for None."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join("" if c is None else str(c) for c in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def number(value: float | None, digits: int = 1) -> str:
    """A number for a cell, a dash for None."""
    return "-" if value is None else f"{value:.{digits}f}"


def cells(marks: Figures) -> list[object]:
    """The cells that all tables of faults share."""
    seconds = " / ".join(number(v, 2) for v in marks.latency_s)
    steps = " / ".join(number(v) for v in marks.latency_steps)
    return [marks.runs, marks.recall, marks.rank, marks.cause, seconds, steps]


CELLS = ("runs", "recall", "exact rank", "cause", "p50 / p95 / p99 s", "in steps")


def split(records: Sequence[Record]) -> list[tuple[str, list[Record]]]:
    """All runs, those the rules were tuned on, and those held out."""
    tuned = [r for r in records if not r.get("held_out")]
    held_out = [r for r in records if r.get("held_out")]
    return [("all", list(records)), ("tuned", tuned), ("held out", held_out)]


def summary(records: Sequence[Record]) -> str:
    """Faults and false alarms, tuned and held out apart."""
    faults = table(("scenarios", *CELLS), ([n, *cells(figures(r))] for n, r in split(records)))
    rows = []
    for name, some in split(records):
        alarms = false_alarms(some)
        rate = number(alarms.per_1000_hours)
        bound = number(alarms.bound_per_1000_hours)
        hours = number(alarms.hours, 2)
        rows.append((name, hours, alarms.verdicts, alarms.shut_downs, rate, bound))
    head = ("scenarios", "healthy job-hours", "false verdicts", "false shutdowns",
            "shutdowns per 1,000 h", "95% bound")  # fmt: skip
    return faults + "\n" + table(head, rows)


def goals(records: Sequence[Record]) -> str:
    """The goals against what was measured, per step length; ranks that wait for devices have their own."""
    if of_devices(records):
        return goals_of_devices(records)
    rows = []
    for step_s in sorted({r["step_s"] for r in records}):
        some = [r for r in valid_faults(records) if r["step_s"] == step_s]
        silent = latencies(r for r in some if r["scenario"] not in ANNOUNCED | SLOWNESS)
        announced = latencies(r for r in some if r["scenario"] in ANNOUNCED)
        half, most = SILENT_GOALS_S.get(step_s, (max(3.0, 2 * step_s), max(10.0, 4 * step_s)))
        rows.append(goal(f"silent hang, {step_s:g} s steps, p50", quantile(silent, 0.5), half))
        rows.append(goal(f"silent hang, {step_s:g} s steps, p99", quantile(silent, 0.99), most))
        rows.append(goal(f"announced, {step_s:g} s steps, p99", quantile(announced, 0.99), 1.0))
    marks = figures(records)
    slow = figures([r for r in records if r["scenario"] == "45-slow-1.3" and r["step_s"] <= 5])
    shares = (("recall", marks.recall, 97.0), ("exact rank", marks.rank, 98.5),
              ("one rank 1.3 times slower, steps up to 5 s", slow.recall, 90.0))  # fmt: skip
    for what, found, least in shares:
        passed = found.percent is not None and found.percent >= least
        rows.append((what, f"{number(found.percent)} %", f">= {least:g} %", _yes(passed)))
    ended = false_alarms(records).shut_downs
    rows.append(("false shutdowns", str(ended), "0", _yes(ended == 0)))
    return table(("what", "measured", "goal", "reached"), rows)


def of_devices(records: Sequence[Record]) -> bool:
    """Whether these are the runs of `--gpu`."""
    return all(r["framework"] in CUDA for r in records)


def goals_of_devices(records: Sequence[Record]) -> str:
    """The goals of jobs whose ranks wait for devices."""
    half, share = quantile(latencies(valid_faults(records)), 0.5), figures(records).rank
    right = share.percent is not None and share.percent >= 95
    found = figures(records).recall
    is_found = found.percent is not None and found.percent >= 95
    alarms = false_alarms(records)
    rows = [
        goal("p50", half, 10.0),
        ("recall", f"{number(found.percent)} %", ">= 95 %", _yes(is_found)),
        ("right rank, or none where none is", f"{number(share.percent)} %", ">= 95 %", _yes(right)),
        ("false verdicts", str(alarms.verdicts), "0", _yes(alarms.verdicts == 0)),
        ("false shutdowns", str(alarms.shut_downs), "0", _yes(alarms.shut_downs == 0)),
    ]
    return table(("what", "measured", "goal", "reached"), rows)


def _yes(reached: bool) -> str:
    return "yes" if reached else "no"


def latencies(records: Iterable[Record]) -> list[float]:
    """Seconds from onset to verdict of the runs that had one."""
    return [r["latency_s"] for r in records if r["latency_s"] is not None]


def goal(what: str, measured: float | None, limit: float) -> tuple[str, str, str, str]:
    """A row of the table of goals for a time in seconds."""
    reached = "-" if measured is None else _yes(measured <= limit)
    return what, f"{number(measured, 2)} s", f"<= {limit:g} s", reached


def by_scenario(records: Sequence[Record]) -> str:
    """One row per fault, over all frameworks and step lengths."""
    rows = []
    for name in sorted({r["scenario"] for r in valid_faults(records)}):
        some = [r for r in records if r["scenario"] == name]
        star = " *" if some[0].get("held_out") else ""
        rows.append([name + star, TITLES.get(name, ""), *cells(figures(some))])
    return table(("scenario", "fault", *CELLS), rows)


def by_framework(records: Sequence[Record]) -> str:
    """One row per framework and step length."""
    keys = sorted({(r["framework"], r["step_s"]) for r in valid_faults(records)})
    return table(
        ("framework", "step", *CELLS),
        (
            [
                f,
                f"{s:g} s",
                *cells(figures([r for r in records if (r["framework"], r["step_s"]) == (f, s)])),
            ]
            for f, s in keys
        ),
    )


def confusion(records: Sequence[Record]) -> str:
    """What was said about each fault whose cause was not always right."""
    rows = []
    for name in sorted({r["scenario"] for r in valid_faults(records)}):
        some = [r for r in valid_faults(records) if r["scenario"] == name]
        if all(r["cause_right"] for r in some):
            continue
        said = Counter(f"{r['verdict']} {r['cause']}" if r["verdict"] else "nothing" for r in some)
        accepted = next((", ".join(sorted(s.causes)) for s in SCENARIOS if s.id == name), "")
        words = ", ".join(f"{what} ({count})" for what, count in sorted(said.items()))
        rows.append((name, accepted, words))
    return table(("scenario", "accepted causes", "said in the end"), rows)


def quiet(records: Sequence[Record]) -> str:
    """One row per quiet phase."""
    rows = []
    for name in sorted({r["scenario"] for r in records if r.get("valid") and not r["is_fault"]}):
        some = [r for r in records if r["scenario"] == name]
        alarms = false_alarms(some)
        star = " *" if some[0].get("held_out") else ""
        runs, hours = sum(bool(r.get("valid")) for r in some), number(alarms.hours * 60)
        rows.append(
            (name + star, TITLES.get(name, ""), runs, hours, alarms.verdicts, alarms.shut_downs)
        )
    head = ("phase", "what", "runs", "minutes", "false verdicts", "false shutdowns")
    return table(head, rows)


def not_counted(records: Sequence[Record]) -> str:
    """What could not be run, or did not happen as it should have, and why."""
    elsewhere = NOT_HERE_OF_DEVICES if of_devices(records) else NOT_HERE
    rows = [(name, reason) for name, reason in elsewhere.items()]
    rows += sorted({(r["scenario"], r["not_runnable"]) for r in records if "not_runnable" in r})
    for record in records:
        if "not_runnable" not in record and not record["valid"]:
            why = record["problem"] or f"the training was {record.get('effect')}"
            ended = "; a false shutdown" if record.get("false_shut_down") else ""
            rows.append(
                (record["name"], f"did not happen as planned: {why.splitlines()[0]}{ended}")
            )
    return table(("scenario or run", "why it is not counted"), rows)


def markdown(records: Sequence[Record], name: str = "faultbench") -> str:
    """The whole report; `name` is that of the files it belongs to."""
    loads = sorted(r["load"] for r in records if "load" in r)
    frameworks = ", ".join(sorted({r["framework"] for r in records}))
    kind = "" if name == "faultbench" else f": {name.removeprefix('faultbench-')}"
    return f"""# Fault bench{kind}

Made by `bench/faultbench/report` from {len(records)} runs on
{frameworks}, at a load of {number(quantile(loads, 0.5))} (median; from {number(quantile(loads, 0.0))} to \
{number(quantile(loads, 1.0))}). What happened and when was written down by the injector and the training, never by the
detector. Latency runs from the onset: when the fault began, or the last step that the culprit still
completed if that is later. `*` marks scenarios held out of tuning. How it works:
[bench/faultbench](../../bench/faultbench/README.md).

## In short

{summary(records)}
## Goals

{goals(records)}
![share of faults detected within a time]({name}-curves.svg)

## Per framework and step length

{by_framework(records)}
## Per fault

{by_scenario(records)}
![latency per fault]({name}-latency.svg)

## Causes that were not always right

{confusion(records)}
## Quiet phases

{quiet(records)}
## Not counted

{not_counted(records)}"""


def main(argv: list[str] | None = None) -> int:
    """Write the data file (if there are results), the report and the plots; 2 without any data."""
    parser = argparse.ArgumentParser(prog="bench/faultbench/report", description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS / "sensor")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of report and plots")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the raw lines")
    parser.add_argument("--name", default="faultbench", help="what the files are called")
    args = parser.parse_args(argv)
    data = args.data / f"{args.name}.jsonl"
    args.out.mkdir(parents=True, exist_ok=True)
    if args.results.is_dir() and (fresh := gather(args.results)):
        data.parent.mkdir(parents=True, exist_ok=True)
        data.write_text("".join(json.dumps(record) + "\n" for record in fresh))
    if not data.exists():
        print(f"report: no results in {args.results}; run tools/faultbench/run", file=sys.stderr)
        return 2
    records = [json.loads(line) for line in data.read_text().splitlines()]
    (args.out / f"{args.name}.md").write_text(markdown(records, args.name))
    (args.out / f"{args.name}-latency.svg").write_text(plots.latency_by_scenario(records))
    (args.out / f"{args.name}-curves.svg").write_text(plots.latency_curves(records, ANNOUNCED))
    print(f"{len(records)} runs -> {args.out}/{args.name}.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
