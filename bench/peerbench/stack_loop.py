"""What an engineer writes in an afternoon: py-spy takes a stack of each rank, again and again.

Where the stack of every rank is what it was the two times before, the job hangs: the rank that is not where most are
is named, and all ranks are killed, so that torchrun starts them again. Prints a JSON line for each hang.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from bench.faultbench.truth import parse

PERIOD_S = 10.0
EQUAL = 3
DUMP_S = 5.0
Stacks = dict[int, str]


def ranks(events: Path) -> dict[int, int]:
    """The newest process of each rank."""
    return {
        entry["rank"]: entry["pid"]
        for entry in parse(events.read_text())
        if entry["event"] == "start"
    }


def stack(program: str, pid: int) -> str:
    """Functions and lines of the main thread; empty where py-spy got nothing in time."""
    command = [program, "dump", "--pid", str(pid), "--json"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=DUMP_S, check=True)
        threads = json.loads(done.stdout)
    except (subprocess.SubprocessError, ValueError):
        return ""
    main = next((thread for thread in threads if thread.get("thread_name") == "MainThread"), None)
    return "\n".join(f"{frame['name']}:{frame['line']}" for frame in main["frames"]) if main else ""


def odd_one(stacks: Stacks) -> int | None:
    """The one rank that is somewhere else than all others; None where there is no such rank."""
    (usual, _), *others = Counter(stacks.values()).most_common()
    odd = [rank for rank, text in stacks.items() if text != usual]
    return odd[0] if len(others) == 1 and len(odd) == 1 else None


def is_hang(seen: list[Stacks]) -> bool:
    """Whether all ranks were in the same places the last times."""
    return len(seen) >= EQUAL and all(entry == seen[-1] for entry in seen[-EQUAL:])


def main() -> None:
    """Take stacks until killed."""
    program, events = sys.argv[1], Path(sys.argv[2])
    seen: list[Stacks] = []
    before: dict[int, int] = {}
    while True:
        time.sleep(PERIOD_S)
        pids = ranks(events)
        seen = seen if pids == before else []
        before = pids
        seen.append({rank: stack(program, pid) for rank, pid in pids.items()})
        if not is_hang(seen):
            continue
        print(
            json.dumps({"text": "all stacks stay the same", "rank": odd_one(seen[-1])}), flush=True
        )
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)
        seen = []


if __name__ == "__main__":
    main()
