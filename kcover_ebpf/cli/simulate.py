"""`kcover-ebpf simulate TAPE...`: judges recorded jobs with another policy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from kcover_ebpf.cli.options import output_option
from kcover_ebpf.errors import UsageError
from kcover_ebpf.output.formatting import aligned, printable
from kcover_ebpf.run.tape_simulation import SimulatedTape, simulated_tape
from kcover_ebpf.settings import Policy

_EXAMPLES = """
\b
Examples:
  kcover-ebpf simulate --policy changed.toml job.tape.gz
  kcover-ebpf simulate --policy changed.toml tapes/ -o json

\b
Exit codes:
  0 all tapes were read; 2 wrong usage, or not a complete tape
"""
TAPE_COLUMNS = ("TAPE", "LASTS", "AS RECORDED", "WITH THIS POLICY", "DIFFERENCE", "WHY")


@click.command(epilog=_EXAMPLES)
@click.argument(
    "tapes", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="TAPE..."
)
@click.option(
    "--policy",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML file with thresholds, as for `run --policy`.",
)
@output_option()
def simulate(tapes: tuple[Path, ...], policy: Path, output: str) -> int:
    """Judge recorded jobs with another policy, and print which would be ended, and when.

    Both results assume that the job may be ended, as with --act restart. Needs no privileges. A folder means all
    tapes in it.
    """
    changed = Policy.from_file(policy)
    found = [simulated_tape(path, changed) for path in tapes_of(tapes)]
    if output == "json":
        print(json.dumps({"tapes": [object_of(one) for one in found]}))
        return 0
    show_tapes(found)
    return 0


def tapes_of(paths: Sequence[Path]) -> list[Path]:
    """The files; for a folder, the files in it with the name of a tape."""
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        inside = sorted(
            file for file in path.iterdir() if file.name.endswith((".tape", ".tape.gz"))
        )
        if not inside:
            raise UsageError(f"no tape in {path}: their names end in .tape or .tape.gz")
        found += inside
    return found


def object_of(simulated: SimulatedTape) -> dict[str, object]:
    """The JSON form, with the keys of `-o json`."""
    return asdict(simulated) | {"difference": simulated.difference.value}


def show_tapes(found: Sequence[SimulatedTape]) -> None:
    """Print one line per tape."""
    rows = [TAPE_COLUMNS, *map(_cells, found)]
    print("\n".join(aligned([tuple(map(printable, row)) for row in rows], gap="   ")))


def _cells(simulated: SimulatedTape) -> tuple[str, ...]:
    def end(after_s: float | None) -> str:
        return f"ended after {after_s:.0f} s" if after_s is not None else "not ended"

    return (
        simulated.tape,
        f"{simulated.lasted_s:.0f} s",
        end(simulated.ended_s),
        end(simulated.would_end_s),
        simulated.difference.value,
        simulated.would_end_for or simulated.ended_for or simulated.did,
    )
