"""Ends and restarts a job when one of its ranks has ended in error: what can be known from exit codes alone.

kcover does this with pods: it watches their containers, and deletes all pods of a job of which one failed. It prints a
JSON line for each failure; the job's own output goes to stderr.
"""

from __future__ import annotations

import json
import subprocess
import sys

from bench.peerbench.ways import by_torchrun

MOST_RESTARTS = 3


def attempt(command: list[str]) -> int:
    """Run the job once; its exit code. The first rank that failed is printed as soon as torchrun says so."""
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as job:
        for line in job.stderr or ():
            print(line, end="", file=sys.stderr, flush=True)
            if word := by_torchrun(line):
                print(json.dumps({"text": word.text, "rank": word.rank}), flush=True)
    return job.returncode


def main() -> int:
    """Run the command until it succeeds, or was restarted often enough."""
    code = 1
    for _ in range(1 + MOST_RESTARTS):
        code = attempt(sys.argv[1:])
        if code == 0:
            break
    return code


if __name__ == "__main__":
    sys.exit(main())
