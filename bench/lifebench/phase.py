"""What a phase is, and the table that lists a folder's phases. Pure."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from fnmatch import fnmatch
from typing import Any

TABLE = "phases.toml"
LAUNCHERS = ("alone", "loop", "mpi", "torchrun")
NEEDS = ("fuse", "gcc", "gdb", "mount", "mpi", "netns", "ninja", "py-spy", "strace", "torch", "tty")
STDIN = ("", "pipe", "tty")


class BadTableError(Exception):
    """A table cannot be used; the text is one line that says why."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A healthy job that trains, does something else for a while, and trains again or ends.

    `program` and `beside` are files of the table's folder: what each rank runs, and what runs outside the job but
    outside of it, "" for nothing. A name in `.c` is compiled. `lasts_s` is the length of the whole job in seconds on
    an idle host. `ranks` is the number of ranks on all hosts, `hosts` the number of hosts; each has its own sensor.
    `stdin` is what the job's standard input is, "" for nothing to read; `beside` has the other end.
    """

    name: str
    kind: str
    normal: str
    program: str
    lasts_s: float
    launcher: str = "loop"
    ranks: int = 4
    hosts: int = 1
    arguments: tuple[str, ...] = ()
    beside: str = ""
    stdin: str = ""
    needs: tuple[str, ...] = ()

    @property
    def limit_s(self) -> float:
        """Seconds after which it is taken for stuck: a busy host is several times slower."""
        return 120.0 + 4 * self.lasts_s


def phases_of(text: str) -> tuple[Phase, ...]:
    """The entries `[[phase]]` of a table in TOML; raises BadTableError."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadTableError(f"no TOML: {error}") from None
    entries = table.pop("phase", [])
    if table or not isinstance(entries, list) or not entries:
        raise BadTableError("it must hold [[phase]] entries and nothing else")
    phases = tuple(_phase(entry) for entry in entries)
    names = [phase.name for phase in phases]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise BadTableError(f"{twice[0]} is listed twice")
    return phases


def _phase(entry: Mapping[str, Any]) -> Phase:
    name = str(entry.get("name", "a phase without a name"))
    values: dict[str, Any] = {}
    known = {field.name: field for field in fields(Phase)}
    for key, value in entry.items():
        if key not in known:
            raise BadTableError(f"{name}: unknown field {key}")
        values[key] = tuple(map(str, value)) if isinstance(value, list) else value
    needed = [field.name for field in known.values() if field.default is MISSING]
    if missing := [key for key in needed if key not in values]:
        raise BadTableError(f"{name}: {missing[0]} is missing")
    phase = Phase(**values)
    if phase.launcher not in LAUNCHERS:
        raise BadTableError(f"{name}: launcher must be one of {', '.join(LAUNCHERS)}")
    if phase.stdin not in STDIN:
        raise BadTableError(f"{name}: stdin must be pipe or tty")
    if unknown := [need for need in phase.needs if need not in NEEDS]:
        raise BadTableError(f"{name}: unknown need {unknown[0]}; there are {', '.join(NEEDS)}")
    if phase.ranks % phase.hosts or (phase.hosts > 1 and phase.launcher == "mpi"):
        raise BadTableError(
            f"{name}: {phase.ranks} ranks of {phase.launcher} on {phase.hosts} hosts"
        )
    return phase


def chosen(phases: Sequence[Phase], patterns: str) -> list[Phase]:
    """Those whose name or kind matches one of the globs, comma separated; all for ""."""
    globs = [part.strip() for part in patterns.split(",") if part.strip()] or ["*"]
    return [
        phase
        for phase in phases
        if any(fnmatch(phase.name, glob) or fnmatch(phase.kind, glob) for glob in globs)
    ]
