"""Fuzzes the targets one after the other: `python -m tests.fuzz --seconds 60 [NAME]...`.

Inputs that reached something new are kept in build/fuzz, and so is what made a target crash. `--keep` adds the smallest
of them to tests/fuzz/corpus, `--report` writes docs/bench/fuzz.md from the last run of each target.
Exits with 1 after a crash.
"""

from __future__ import annotations

import argparse
import sys

from tests.fuzz.campaign import fuzz, keep, results
from tests.fuzz.one import TARGETS
from tests.fuzz.report import write


def main(arguments: list[str]) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("names", nargs="*", metavar="NAME", help="targets; all without one")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (default 60)")
    parser.add_argument("--keep", action="store_true", help="add small inputs to the corpus")
    parser.add_argument("--report", action="store_true", help="write docs/bench/fuzz.md")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in TARGETS]:
        parser.error(f"no target {unknown[0]}; there are {', '.join(sorted(TARGETS))}")
    crashed = False
    for name in options.names or sorted(TARGETS):
        result = fuzz(TARGETS[name], options.seconds)
        crashed = crashed or bool(result.crash)
        print(result.line, flush=True)
        if options.keep:
            keep(TARGETS[name])
    if options.report:
        write(results())
    return int(crashed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
