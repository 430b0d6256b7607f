"""The ranks of one host, as a shell loop would start them: `python -m bench.lifebench.launch --ranks 4 -- PROGRAM...`.

It waits for all ranks and exits with the code of the first that failed, 0 if none did. It ends no rank because another
failed. RANK, LOCAL_RANK, WORLD_SIZE and LOCAL_WORLD_SIZE are set as torchrun sets them; MASTER_ADDR and MASTER_PORT
come from its own environment.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from types import FrameType


def start(
    command: list[str], local: int, first: int, ranks: int, world: int
) -> subprocess.Popen[bytes]:
    """One rank; the first on the host has the launcher's standard input."""
    numbers = {
        "RANK": first + local,
        "LOCAL_RANK": local,
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": ranks,
    }
    variables = {**os.environ, **{name: str(value) for name, value in numbers.items()}}
    return subprocess.Popen(
        command, env=variables, stdin=None if local == 0 else subprocess.DEVNULL
    )


def end(number: int, frame: FrameType | None) -> None:
    """Leave through the clean-up code."""
    raise SystemExit(128 + number)


def main() -> int:
    """Start and wait."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4, help="on this host")
    parser.add_argument("--first", type=int, default=0, help="number of this host's first rank")
    parser.add_argument("--world", type=int, default=None, help="on all hosts")
    parser.add_argument("command", nargs="+", help="what each rank runs, after --")
    args = parser.parse_args()
    world = args.ranks if args.world is None else args.world
    signal.signal(signal.SIGTERM, end)
    children = [
        start(args.command, local, args.first, args.ranks, world) for local in range(args.ranks)
    ]
    try:
        codes = [child.wait() for child in children]
    finally:
        for child in children:
            child.terminate()
    return next((code if code > 0 else 128 - code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main())
