"""`tools/tapebench/run`: the judge that ships, fed with scripted GPU-shaped jobs in virtual time.

Synthetic: it shows what the code does with such facts, not that a GPU job makes them. Prints one JSON line a tape.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from .faults import FAULTS
from .report import markdown
from .shapes import SHAPES
from .tape import Outcome, Tape

_FAULT_SHAPES = tuple(
    name for name, shape in SHAPES.items() if shape.pause is None and shape.step_s <= 20
)
Work = tuple[str, int, str, float]
"""Shape, seed, fault or nothing, hours."""


def healthy(hours: float, longest: float, seed: int) -> Iterator[Work]:
    """Tapes of every shape, for so many job-hours in all; each round in an order of its own."""
    while hours > 0:
        for name in random.Random(seed).sample(list(SHAPES), len(SHAPES)):
            if hours <= 0:
                return
            length = min(hours, longest, SHAPES[name].hours)
            yield name, seed, "", length
            hours -= length
        seed += 1


def faulty(rounds: int, seed: int) -> Iterator[Work]:
    """Every fault in every shape whose steps are no longer than 20 s; a run that is cut short has any of them."""
    for turn in range(seed, seed + rounds):
        pairs = list(itertools.product(_FAULT_SHAPES, FAULTS))
        for shape, fault in random.Random(turn).sample(pairs, len(pairs)):
            yield shape, turn, fault, 0.0


def play(work: Work) -> Outcome:
    """One tape."""
    shape, seed, fault, hours = work
    return Tape(SHAPES[shape], seed, FAULTS.get(fault)).play(hours)


def outcomes(work: Iterator[Work], jobs: int, until_s: float) -> Iterator[Outcome]:
    """What came of each tape; no further ones are waited for once the time is over."""
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        for outcome in pool.imap_unordered(play, work):
            yield outcome
            if time.monotonic() > until_s:
                pool.terminate()
                return


def line_of(outcome: Outcome) -> str:
    """JSON without what is empty or unknown; rank 0 is neither."""
    found = {name: value for name, value in vars(outcome).items() if value or value == 0}
    return json.dumps(found | {"fault": outcome.fault})


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tools/tapebench/run", description=__doc__)
    parser.add_argument("--hours", type=float, default=42.0, help="healthy job-hours (default 42)")
    parser.add_argument("--longest", type=float, default=1.0, help="hours of one tape (default 1)")
    parser.add_argument("--fault-rounds", type=int, default=1, help="each fault so often a shape")
    parser.add_argument("--seed", type=int, default=1, help="the same seed plays the same tapes")
    parser.add_argument("--jobs", type=int, default=1, help="tapes at a time")
    parser.add_argument("--minutes", type=float, default=600.0, help="stop after so long")
    parser.add_argument("--report", type=Path, help="write the table of a file of lines, and exit")
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """Play tapes, or make the report."""
    parser = _arguments()
    args = parser.parse_args(words)
    if args.report is not None:
        try:
            lines = args.report.read_text(encoding="utf-8").splitlines()
            sys.stdout.write(markdown([json.loads(line) for line in lines]))
        except (OSError, ValueError, KeyError) as error:
            parser.error(f"cannot read {args.report}: {error}")
        return 0
    if (
        args.hours < 0
        or args.fault_rounds < 0
        or args.jobs < 1
        or min(args.minutes, args.longest) <= 0
    ):
        parser.error("--hours and --fault-rounds must not be negative, all others must be positive")
    until_s = time.monotonic() + args.minutes * 60
    for work in (
        faulty(args.fault_rounds, args.seed),
        healthy(args.hours, args.longest, args.seed),
    ):
        for outcome in outcomes(work, args.jobs, until_s):
            print(line_of(outcome), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
