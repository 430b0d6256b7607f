"""Runs the tools of others: what they print is bounded, what is missing is named.

There is no time limit here: the process of the check has one, and its end is theirs.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

_OUTPUT_BYTES = 1 << 20
"""Of what a tool prints: dcgmi prints 0.1 MB for eight GPUs."""


@dataclass(frozen=True, slots=True)
class Ran:
    """How a tool ended."""

    exit_code: int
    """Negative: the signal that ended it."""
    output: str
    """Standard output and standard error, in the order written; at most 1 MiB."""

    @property
    def first_line(self) -> str:
        """The first line that has words, of 200 characters at most."""
        lines = (line.strip() for line in self.output.splitlines())
        return next(filter(None, lines), "it printed nothing")[:200]


def run(argv: Sequence[str]) -> Ran | None:
    """The tool's end and words; None if it is not on the PATH."""
    import shutil

    program = shutil.which(argv[0])
    if program is None:
        return None
    with subprocess.Popen(
        [program, *argv[1:]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdout is not None
        output = process.stdout.read(_OUTPUT_BYTES)
        while process.stdout.read(_OUTPUT_BYTES):
            pass
    return Ran(process.returncode, output.decode(errors="replace"))
