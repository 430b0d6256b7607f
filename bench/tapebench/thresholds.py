"""`python -m bench.tapebench.thresholds`: what changes if a number that decides is halved or doubled.

The same tapes are judged with what ships and with each number changed (`bench.tapebench.deciding`), one process for
each: some faults of each kind and some healthy hours, chosen by a seed: half a minute of CPU. The numbers of sampling
and of slow jobs follow. One JSON line for each number and factor, appended when it is known, so that a run that was cut
short continues. Synthetic, as all tapes are.

    chrt -i 0 python -m bench.tapebench.thresholds --into FILE    # what FILE lacks; all of it takes hours
    python -m bench.tapebench.thresholds --report FILE
"""

from __future__ import annotations

import argparse
import fnmatch
import itertools
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.tapebench import deciding
from bench.tapebench.bench import Work, faulty, line_of, lines_of, play
from bench.tapebench.catalog import SHAPES

Line = Mapping[str, Any]
FACTORS = (0.5, 2.0)
SHIPPED = ("as shipped", 1.0)
_SEED = 9000
_FAULTY = 55
"""Tapes with a fault: five of each kind on average, each in a shape drawn by the seed."""
_HEALTHY = (
    "life-*",
    "loader",
    "checkpoint-fuse",
    "evaluation",
    "inference",
    "slow-start",
    "clock-5s",
)
"""Shapes whose silences are the longest and least regular."""
_HOURS = 0.2
"""Of each healthy tape: every phase of a `life` shape comes some times."""
_LATER_S = 1.0
"""Seconds by which a moment must differ: the pass in which something is seen is chance."""
_HEAD = """\
# Numbers that decide, halved and doubled

The same tapes, judged with one number changed at a time (`python -m bench.tapebench.thresholds`, {runs} runs): {faulty}
with a fault and {healthy} healthy ones ({hours:.1f} h) of the shapes with the longest silences, drawn by a seed.
Synthetic. A number decides if a room that judges reads it (`bench/tapebench/deciding.py`).

A cell counts tapes that came to something else than with what ships: faults missed or found, another rank, cause,
certainty or moment of acting (`acts_at`), reported more than a second later or sooner, healthy jobs ended or reported
more often. *Same*: only details differ, such as a number in a sentence. *Untouched*: nothing does, so no tape comes
near the number. A share above one half is not doubled; what it lacks to 1 is halved.

As shipped, {missed} of these faults are missed within three minutes, {wrong} name a wrong rank, and {ended} healthy
jobs are ended.
"""
_PLAY = """
import sys
from bench.tapebench.deciding import Number, install
module, name, factor, only = sys.argv[1:]
if name:
    install(Number(module, name, "", ()), float(factor))  # before any module has read the value
from bench.tapebench.thresholds import print_tapes
print_tapes(only)
"""


def tapes(only: str = "*") -> Iterator[Work]:
    """The tapes of one run, the same in every process. `only`: of these, the shapes that it fits."""
    chosen = itertools.islice(faulty(1, _SEED), _FAULTY)
    healthy = (
        (name, _SEED, "", _HOURS)
        for pattern in _HEALTHY
        for name in fnmatch.filter(SHAPES, pattern)
    )
    return (work for work in itertools.chain(chosen, healthy) if fnmatch.fnmatch(work[0], only))


def print_tapes(only: str) -> None:
    """Play them, and print one JSON line for each."""
    for work in tapes(only):
        print(line_of(play(work)), flush=True)


def played(number: deciding.Number | None, factor: float, only: str = "*") -> list[dict[str, Any]]:
    """The lines of all tapes, judged in a process of their own with one number changed; None: with what ships."""
    module, name = ("", "") if number is None else (number.module, number.name)
    command = [sys.executable, "-c", _PLAY, module, name, str(factor), only]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def moved(lines: Iterable[Line], shipped_lines: Iterable[Line]) -> dict[str, int]:
    """How many tapes came to something else than with what ships, by what that is.

    A tape that differs in anything counts as "detail" as well.
    """
    shipped = {_key(line): line for line in shipped_lines}
    found: dict[str, int] = {}
    for line in lines:
        before = shipped[_key(line)]
        words = _of_fault(line, before) if line["fault"] else _of_healthy(line, before)
        for word in (*words, *(("detail",) if line != before else ())):
            found[word] = found.get(word, 0) + 1
    return found


def _key(line: Line) -> tuple[str, int, str]:
    return line["shape"], line["seed"], line["fault"]


def _of_fault(line: Line, before: Line) -> Iterator[str]:
    found_s, before_s = line.get("detected_s"), before.get("detected_s")
    if found_s is None or before_s is None:
        if found_s is not before_s:
            yield "missed" if found_s is None else "found"
        return
    if _wrong(line) and not _wrong(before):
        yield "wrong rank"
    elif line.get("named") != before.get("named"):
        yield "other rank"
    if line.get("text") != before.get("text"):
        yield "other cause"
    if line.get("certainty") != before.get("certainty"):
        yield "other certainty"
    elif _differ(line.get("acts_s"), before.get("acts_s")):
        yield "other acts_at"
    if abs(found_s - before_s) > _LATER_S:
        yield "later" if found_s > before_s else "sooner"


def _wrong(line: Line) -> bool:
    return any(rank != line.get("rank") for rank in line.get("named", ()))


def _differ(first_s: float | None, second_s: float | None) -> bool:
    if first_s is None or second_s is None:
        return first_s is not second_s
    return abs(first_s - second_s) > _LATER_S


def _of_healthy(line: Line, before: Line) -> Iterator[str]:
    if line.get("shutdown") and not before.get("shutdown"):
        yield "healthy ended"
    if _reports(line) > _reports(before):
        yield "healthy reported"


def _reports(line: Line) -> int:
    """Verdicts of a healthy tape that say that something is wrong."""
    said: Mapping[str, int] = line.get("reported", {})
    return sum(count for text, count in said.items() if not text.startswith("WORKING"))


def markdown(lines: Sequence[Line]) -> str:
    """The page: one row for each number."""
    shipped = next(line for line in lines if (line["threshold"], line["factor"]) == SHIPPED)
    by_name = {(line["threshold"], line["factor"]): line for line in lines}
    rows = [*_head(shipped, len(by_name) - 1), ""]
    all_deciding = deciding.deciding()
    groups = (
        ("Rules: what follows", [one for one in all_deciding if not one.only_measures]),
        (
            "Measures: what a thread or a link does",
            [one for one in all_deciding if one.only_measures],
        ),
        ("Sampling and slow jobs, which end nothing", deciding.others()),
    )
    for title, numbers in groups:
        done = [number for number in numbers if (number.name, FACTORS[0]) in by_name]
        rows += [f"## {title}", "", f"{len(done)} of {len(numbers)} were varied.", ""]
        if done:
            rows += [
                "| number | as shipped | read by | halved | doubled |",
                "|---|---|---|---|---|",
            ]
        for number in done:
            cells = [f"`{number.name}`", f"`{number.value}`", ", ".join(number.rooms)]
            cells += [_cell(by_name.get((number.name, factor))) for factor in FACTORS]
            rows.append(f"| {' | '.join(cells)} |")
        rows += [""] if done else []
    return "\n".join(rows)


def _head(shipped: Line, count: int) -> list[str]:
    return _HEAD.format(**shipped, runs=count).splitlines()


def _cell(line: Line | None) -> str:
    if line is None:
        return "-"
    found = dict(line["moved"])
    detail = found.pop("detail", 0)
    if not found:
        return "same" if detail else "untouched"
    return ", ".join(f"{count} {word}" for word, count in found.items())


def runs_left(
    done: Iterable[Line], numbers: Iterable[deciding.Number]
) -> list[tuple[deciding.Number, float]]:
    """Number and factor of each run whose line is not there yet."""
    there = {(line["threshold"], line["factor"]) for line in done}
    runs = ((number, factor) for number in numbers for factor in FACTORS)
    return [run for run in runs if (run[0].name, run[1]) not in there]


def _shipped_line(shipped: Sequence[Line]) -> dict[str, Any]:
    faults = [line for line in shipped if line["fault"]]
    healthy = [line for line in shipped if not line["fault"]]
    return {
        "threshold": SHIPPED[0],
        "factor": SHIPPED[1],
        "faulty": len(faults),
        "missed": sum(line.get("detected_s") is None for line in faults),
        "wrong": sum(map(_wrong, faults)),
        "healthy": len(healthy),
        "hours": sum(line["hours"] for line in healthy),
        "ended": sum(bool(line.get("shutdown")) for line in healthy),
    }


def main() -> int:
    """Play what is missing, or make the page."""
    parser = argparse.ArgumentParser(prog="bench.tapebench.thresholds", description=__doc__)
    parser.add_argument("--only", default="*", metavar="PATTERN", help="numbers, such as 'LOST_*'")
    parser.add_argument("--into", type=Path, help="append to this file the lines that it lacks")
    parser.add_argument("--report", type=Path, help="write the page of a file of lines, and exit")
    args = parser.parse_args()
    if args.report is not None:
        sys.stdout.write(markdown(lines_of(args.report)))
        return 0
    done = lines_of(args.into) if args.into else []
    numbers = [*deciding.deciding(), *deciding.others()]
    chosen = [number for number in numbers if fnmatch.fnmatch(number.name, args.only)]
    runs = runs_left(done, chosen)
    if not runs:
        return 0
    shipped = played(None, 1.0)
    if not any(line["threshold"] == SHIPPED[0] for line in done):
        _write(_shipped_line(shipped), args.into)
    for number, factor in runs:
        found = moved(played(number, factor), shipped)
        _write({"threshold": number.name, "factor": factor, "moved": found}, args.into)
    return 0


def _write(line: Line, into: Path | None) -> None:
    if into is None:
        print(json.dumps(line), flush=True)
        return
    with into.open("a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    sys.exit(main())
