"""The ways to guard a job that are compared: how each starts it, and how its words are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.faultbench.job import SENSOR

WORLD = 4
TIMEOUT = "COLLECTIVE_TIMEOUT_S"
TIMER = "STEP_TIMER_S"
"""Variables of the job, read by trainee.py."""
TIMEOUT_S = 60.0
"""Of a collective; PyTorch's default is 1800 s (gloo) or 600 s (NCCL), for which a bench cannot wait."""
TIMER_S = 30.0
"""Of torchelastic's timer: no step, and nothing between steps, may take longer."""
PYTHON = "/usr/bin/python3"
_FAILED = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+)")


@dataclass(frozen=True, slots=True)
class Word:
    """What a way says: that something is wrong, and with whom; `rank` None names none."""

    text: str
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Way:
    """`prefix` comes before torchrun; `watcher` is a module that runs next to the job, given its event file.

    `read` finds a word in a line of the job's stderr, `read_json` in a JSON line of the prefix or the watcher; None
    where there is none. `restarts` is what torchrun itself may do; everything else is restarted by the way.
    """

    name: str
    title: str
    read: Callable[[str], Word | None] = lambda _: None
    read_json: Callable[[dict[str, Any]], Word | None] = lambda _: None
    prefix: tuple[str, ...] = ()
    watcher: str = ""
    restarts: int = 3
    variables: Mapping[str, str] = field(default_factory=dict)


def by_torchrun(line: str) -> Word | None:
    """Torchrun names the worker whose end it saw first."""
    found = _FAILED.search(line)
    return Word(found[0], int(found[2])) if found else None


def by_sensor(line: dict[str, Any]) -> Word | None:
    """A verdict that reports a fault or names a rank; UNKNOWN counts only with a name, as in the fault bench."""
    if line.get("event") != "verdict" or line.get("verdict") == "WORKING":
        return None
    rank = (line.get("culprit") or {}).get("rank")
    if line.get("verdict") == "UNKNOWN" and rank is None:
        return None
    return Word(f"{line['verdict']} {line.get('cause')}", rank)


def by_watcher(line: dict[str, Any]) -> Word | None:
    """What a watcher of ours prints."""
    return Word(str(line["text"]), line.get("rank"))


WAYS = {
    way.name: way
    for way in (
        Way("torchrun", "torchrun, with a time-out for collectives", by_torchrun),
        Way(
            "torchelastic",
            "torchrun, with torchelastic's timer around each step",
            by_torchrun,
            variables={"TORCHELASTIC_ENABLE_FILE_TIMER": "1", TIMER: str(TIMER_S)},
        ),
        Way(
            "py-spy",
            "py-spy in a loop: a stack of each rank every 10 s, three that are equal are a hang",
            read_json=by_watcher,
            watcher="bench.peerbench.stack_loop",
        ),
        Way(
            "exit-codes",
            "kcover's way: a rank's exit code ends and restarts the job",
            read_json=by_watcher,
            prefix=(PYTHON, "-m", "bench.peerbench.exit_codes"),
            restarts=0,
        ),
        Way(
            "kcover-ebpf",
            "kcover-ebpf run --act restart",
            read_json=by_sensor,
            prefix=(
                str(SENSOR),
                "run",
                "--act",
                "restart",
                "--max-restarts",
                "3",
                "-o",
                "json",
                "--",
            ),
        ),
    )
}


def command(way: Way, folder: str, events: str, options: list[str]) -> list[str]:
    """The job's command line. torchrun restarts the workers itself, whatever ended one of them."""
    # under Python 3.11 this torchrun starts no workers unless it redirects one of their streams
    return [
        *way.prefix, PYTHON, "-m", "torch.distributed.run", "--nproc_per_node", str(WORLD),
        "--max_restarts", str(way.restarts), "--monitor_interval", "1",
        "-r", "1", "-t", "1", "--log_dir", f"{folder}/torchrun",
        "-m", "bench.peerbench.trainee", "--events", events, *options,
    ]  # fmt: skip
