"""The texts of /proc/PID: stat, status, maps. Alone here: what only needs these is started often, and imports little.

A program's name and the paths of what it maps may hold whatever else a text takes for the end of a line: status is
split as bytes, and who reads maps opens it so that a newline alone ends a line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple


def split_stat(text: str) -> tuple[str, list[str]]:
    """(name, words from the state on) of a stat line of /proc; the name may hold anything, also ")"."""
    head, _, rest = text.rpartition(")")
    return head.partition("(")[2], rest.split()


def status_words(status: bytes, field: bytes) -> list[bytes]:
    """The words of one field of a status file (proc_pid_status(5)); empty without it."""
    for line in status.split(b"\n"):
        if line.startswith(field + b":"):
            return line.split()[1:]
    return []


def status_numbers(status: bytes, field: bytes) -> tuple[int, ...]:
    """The same as decimal numbers."""
    return tuple(map(int, status_words(status, field)))


class CodeMapping(NamedTuple):
    """A mapping that may be executed, and has a name (proc_pid_maps(5))."""

    start: int
    end: int
    offset: int
    """In the file."""
    inode: int
    path: str
    """In the process's own mount namespace; "[vdso]" and the like are no files."""


def code_mappings(lines: Iterable[str]) -> Iterator[CodeMapping]:
    """Those among the lines of a maps file."""
    for line in lines:
        part = line.rstrip("\n").split(maxsplit=5)
        if len(part) == 6 and "x" in part[1]:
            start, end = (int(each, 16) for each in part[0].split("-"))
            yield CodeMapping(start, end, int(part[2], 16), int(part[4]), part[5])
