"""`bench/tapebench/run`: the judge that ships, fed with scripted GPU-shaped jobs in virtual time.

Synthetic: it shows what the code does with such facts, not that a GPU job makes them. Prints one JSON line a tape.
"""

from __future__ import annotations

import argparse
import fnmatch
import gc
import itertools
import json
import multiprocessing
import random
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any

from bench.tapebench.catalog import SHAPES
from bench.tapebench.faults import FAULTS
from bench.tapebench.report import markdown
from bench.tapebench.tape import Outcome, Tape
from kcover_ebpf.errors import KcoverError
from kcover_ebpf.settings import Policy

_FAULT_SHAPES = tuple(
    name for name, shape in SHAPES.items() if shape.pause is None and shape.step_s <= 20
)
_RANKS = (4, 8, 4, 2)
"""Of healthy jobs, from seed to seed; eight cost twice as much as four, and show the same."""
_FAULTY_RANKS = 8
Work = tuple[str, int, str, float]
"""Shape, seed, fault or nothing, hours."""
Key = tuple[str, int, str]
"""By which a tape is known: shape, seed, fault."""


def healthy(hours: float, longest: float, seed: int, only: str = "*") -> Iterator[Work]:
    """Tapes of every shape that `only` fits, for `hours` job-hours in total; each round in its own order."""
    names = fnmatch.filter(SHAPES, only)
    while hours > 0 and names:
        for name in random.Random(seed).sample(names, len(names)):
            if hours <= 0:
                return
            length = min(hours, longest, SHAPES[name].hours)
            yield name, seed, "", length
            hours -= length
        seed += 1


def faulty(rounds: int, seed: int, only: str = "*") -> Iterator[Work]:
    """Every fault in every such shape whose steps are no longer than 20 s; a run that is cut short has any of them."""
    for turn in range(seed, seed + rounds):
        pairs = list(itertools.product(fnmatch.filter(_FAULT_SHAPES, only), FAULTS))
        for shape, fault in random.Random(turn).sample(pairs, len(pairs)):
            yield shape, turn, fault, 0.0


def play(work: Work, policy: Policy | None = None) -> Outcome:
    """One tape; `policy`: what it is judged by."""
    name, seed, fault, hours = work
    world = _FAULTY_RANKS if fault else _RANKS[seed % len(_RANKS)]
    shape = replace(SHAPES[name], world=world)
    return Tape(shape, seed, FAULTS.get(fault), policy).play(hours)


def outcomes(
    work: Iterable[Work], jobs: int, until_s: float, policy: Policy | None = None
) -> Iterator[Outcome]:
    """What came of each tape; no further ones are waited for once the time is over."""
    judged = partial(play, policy=policy)
    with ExitStack() as stack:
        played: Iterable[Outcome] = map(judged, work)
        if jobs > 1:
            pool = stack.enter_context(multiprocessing.get_context("fork").Pool(jobs))
            played = pool.imap_unordered(judged, work)
        for outcome in played:
            yield outcome
            if time.monotonic() > until_s:
                return


def lines_of(file: Path) -> list[dict[str, Any]]:
    """The lines of earlier runs, less one that a run was cut short in; none where there is no file."""
    if not file.exists():
        return []
    text = file.read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def _new(work: Iterable[Work], done: Collection[Key]) -> Iterator[Work]:
    return (pair for pair in work if pair[:3] not in done)


def _play_all(args: argparse.Namespace, out: IO[str], done: Collection[Key]) -> None:
    # what was imported lives as long as the process, and facts are in no cycles
    gc.freeze()
    gc.set_threshold(50_000)
    until_s = time.monotonic() + args.minutes * 60
    for work in (
        faulty(args.fault_rounds, args.seed, args.only),
        healthy(args.hours, args.longest, args.seed, args.only),
    ):
        for outcome in outcomes(_new(work, done), args.jobs, until_s, args.policy):
            print(line_of(outcome), file=out, flush=True)


def line_of(outcome: Outcome) -> str:
    """JSON without what is empty or unknown; rank 0 is neither."""
    found = {name: value for name, value in vars(outcome).items() if value or value == 0}
    return json.dumps(found | {"fault": outcome.fault})


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench/tapebench/run", description=__doc__)
    parser.add_argument("--hours", type=float, default=42.0, help="healthy job-hours (default 42)")
    parser.add_argument("--longest", type=float, default=1.0, help="hours of one tape (default 1)")
    parser.add_argument("--fault-rounds", type=int, default=1, help="each fault so often a shape")
    parser.add_argument("--seed", type=int, default=1, help="the same seed plays the same tapes")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="shapes, such as 'clock-*'")
    parser.add_argument(
        "--policy",
        type=lambda name: Policy.from_file(Path(name)),
        metavar="FILE",
        help="judge with these thresholds (TOML, as of `kcover-ebpf run`), to try them before they are used",
    )
    parser.add_argument("--jobs", type=int, default=1, help="tapes at a time")
    parser.add_argument("--minutes", type=float, default=600.0, help="stop after this many minutes")
    parser.add_argument(
        "--into",
        type=Path,
        help="append the lines to this file, less the tapes that it has: a run that was cut short continues",
    )
    parser.add_argument("--report", type=Path, help="write the table of a file of lines, and exit")
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """Play tapes, or make the report."""
    parser = _arguments()
    try:
        args = parser.parse_args(words)
    except KcoverError as error:
        parser.error(str(error))
    try:
        if args.report is not None:
            sys.stdout.write(markdown(lines_of(args.report.resolve(strict=True))))
            return 0
        if not fnmatch.filter(SHAPES, args.only):
            parser.error(f"--only {args.only}: no shape fits; there are {', '.join(SHAPES)}")
        if (
            min(args.hours, args.fault_rounds) < 0
            or min(args.jobs, args.minutes, args.longest) <= 0
        ):
            parser.error(
                "--hours and --fault-rounds must not be negative, all others must be positive"
            )
        if args.into is None:
            _play_all(args, sys.stdout, ())
            return 0
        done = {(entry["shape"], entry["seed"], entry["fault"]) for entry in lines_of(args.into)}
        with args.into.open("ab") as whole:
            whole.truncate(args.into.read_bytes().rfind(b"\n") + 1)
        with args.into.open("a", encoding="utf-8") as out:
            _play_all(args, out, done)
    except (OSError, ValueError, KeyError) as error:
        parser.error(f"cannot use {args.report or args.into}: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
