"""`python -m bench.tapebench.thresholds`: how much verdicts depend on a threshold without a measurement behind it.

The same tapes are judged with the threshold as it ships, halved and doubled. A threshold of which neither changes a
verdict was not chosen too sharply for these jobs, or no tape comes near it: the table shows which by the passes that
differ. One JSON line for each threshold and factor. Synthetic, as all tapes are.

    nice -n 19 python -m bench.tapebench.thresholds --into FILE    # what FILE lacks; all of it takes hours
    python -m bench.tapebench.thresholds --report FILE
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.tapebench.bench import lines_of

Line = Mapping[str, Any]
CHOSEN = (
    "TRAINING_SIGNS",
    "STANDSTILL_SHARE",
    "STANDSTILL_MINUTES",
    "SLOWED_SHARE",
    "PCIE_SHARE",
    "NVLINK_FLOOR_BYTES",
    "FAULTING_BELIEVED_S",
    "DEVICE_BELIEVED_S",
    "OTHER_BELIEVED_S",
    "FREEZE_PATIENCE_NS",
    "LOSS_FLOOR_S",
    "THROTTLED_ALONE_NS",
    "SWAPPING_PER_S",
    "LONE_FLOOR_S",
    "GAVE_UP_S",
    "COUNTS_MOVE_S",
    "LAUNCHED_AHEAD_S",
    "SILENCE_MARGIN",
    "PRIOR_HOURS",
    "PRIOR_RATE_PER_H",
    "PRIOR_SHAPE",
    "WAIT_EXIT_SHARE",
)
"""Tunables of the judge (`tunables.diagnosis`, `tunables.certainty`) whose docstring says "Chosen"."""
_SHIPPED = ("as shipped", 1.0)
_PLAY = """
import sys
from kcover_ebpf.tunables import certainty, diagnosis
name, factor = sys.argv[1], float(sys.argv[2])
for tunables in (certainty, diagnosis):
    if factor != 1.0 and hasattr(tunables, name):
        old = getattr(tunables, name)
        setattr(tunables, name, type(old)(old * factor))  # before any module has imported the value
from bench.tapebench.bench import main
sys.exit(main(sys.argv[3:]))
"""


def play(name: str, factor: float, words: Sequence[str]) -> list[dict[str, Any]]:
    """The lines of the tapes, judged in a process of their own."""
    command = [sys.executable, "-c", _PLAY, name, str(factor), *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def summary(lines: Iterable[Line]) -> dict[str, Any]:
    """What matters of all tapes of one run, and what each of them came to."""
    found: dict[str, Any] = {"hours": 0.0, "ended": 0, "faults": 0, "right": 0, "wrong": 0}
    verdicts = {}
    for line in lines:
        if line["fault"]:
            rank = line.get("rank")
            others = [one for one in line.get("named", ()) if one != rank]
            found["faults"] += 1
            found["right"] += bool(line.get("named")) and not others
            found["wrong"] += bool(others)
        else:
            found["hours"] += line["hours"]
            found["ended"] += bool(line.get("shutdown"))
        kept = ("reported", "shutdown", "named", "passes")
        key = f"{line['shape']} {line['seed']} {line['fault']}"
        verdicts[key] = [line.get(name) for name in kept]
    return found | {"tapes": verdicts}


def compared(name: str, factor: float, line: Line, shipped_line: Line) -> dict[str, Any]:
    """The line of one run: its counts, and of how many tapes a verdict or only a pass differs from what ships."""
    pairs = [(line["tapes"][key], shipped_line["tapes"][key]) for key in shipped_line["tapes"]]
    counts = {key: value for key, value in line.items() if key != "tapes"}
    return {
        "threshold": name,
        "factor": factor,
        **counts,
        "verdicts_differ": sum(ours[:3] != theirs[:3] for ours, theirs in pairs),
        "passes_differ": sum(ours != theirs for ours, theirs in pairs),
    }


def markdown(lines: Sequence[Line]) -> str:
    """The table."""
    rows = [
        "# Thresholds that were chosen",
        "",
        "The tapes of one seed, judged with each threshold halved and doubled",
        "(`python -m bench.tapebench.thresholds`). Synthetic.",
        "Tapes differ in a reported verdict, or only in the number of passes, from what ships; where none",
        "differs in either, no tape came near the threshold.",
        "",
        "| threshold | factor | healthy hours | ended | faults | right rank alone | wrong rank | verdicts | passes |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    keys = ("hours", "ended", "faults", "right", "wrong", "verdicts_differ", "passes_differ")
    for line in lines:
        cells = [f"`{line['threshold']}`", f"{line['factor']:g}"]
        cells += [f"{line[key]:.1f}" if key == "hours" else str(line[key]) for key in keys]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join((*rows, ""))


def runs_left(done: Sequence[Line], names: Sequence[str]) -> list[tuple[str, float]]:
    """Threshold and factor of each run whose line is not there yet; that of what ships is the first."""
    runs = [_SHIPPED, *((name, factor) for name in names for factor in (0.5, 2.0))]
    there = {(line["threshold"], line["factor"]) for line in done}
    return [run for run in runs if run not in there]


def main() -> int:
    """Play all, or make the table."""
    parser = argparse.ArgumentParser(prog="bench.tapebench.thresholds", description=__doc__)
    parser.add_argument("--hours", type=float, default=21.0, help="healthy job-hours each")
    parser.add_argument("--fault-rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=9000)
    parser.add_argument("--only", default="*", metavar="PATTERN", help="shapes, as of tapebench")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--into", type=Path, help="append to this file the lines that it lacks")
    parser.add_argument("--report", type=Path, help="write the table of a file of lines, and exit")
    args = parser.parse_args()
    if args.report is not None:
        sys.stdout.write(markdown(lines_of(args.report)))
        return 0
    words = [f"--hours={args.hours}", f"--fault-rounds={args.fault_rounds}"]
    words += [f"--seed={args.seed}", f"--jobs={args.jobs}", f"--only={args.only}"]
    runs = runs_left(lines_of(args.into) if args.into else (), CHOSEN)
    shipped = summary(play(*_SHIPPED, words)) if runs else {}
    for name, factor in runs:
        one = shipped if (name, factor) == _SHIPPED else summary(play(name, factor, words))
        text = json.dumps(compared(name, factor, one, shipped))
        if args.into:
            with args.into.open("a", encoding="utf-8") as out:
                out.write(text + "\n")
        else:
            print(text, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
