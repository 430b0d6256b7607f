"""How fast logs are read: MB of a container's log a second of CPU, by `kcover-ebpf logs` and by the agent.

python -m bench.logbench [--mib N]            measures, and prints a line of JSON for each
python -m bench.logbench --take [--mib N]     the same, into .bench/data and docs/bench/logs.md

The agent's reader follows a file on disk, joins what the runtime cut, searches the rules and reads tracebacks. CPU time
of this process, so that a busy machine counts little.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kcover_ebpf.api import rfc3339
from kcover_ebpf.devices.catalog.files import shipped
from kcover_ebpf.logs import rules
from kcover_ebpf.logs.container_log import ContainerLogReader
from kcover_ebpf.logs.lines import Source
from kcover_ebpf.logs.log_files import LogFiles
from kcover_ebpf.logs.reader import LogReader
from tools.pages import ROOT, data_file

_PAGE = ROOT / "docs/bench/logs.md"
_CALM = "[2026-11-22 10:00:00,123] INFO step 12345 epoch 3 loss 0.123 lr 1e-4 12345 tokens/s rank 7 memory 61.2 GiB"
_STEPLESS = (
    "[2026-11-22 10:00:00,123] INFO loss 0.123 lr 1e-4 12345 tokens/s rank 7 memory 61.2 GiB"
)
_ERROR = "RuntimeError: CUDA error: an illegal memory access was encountered"
_TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "/workspace/train.py", line 88, in <module>',
    "    main()",
    '  File "/workspace/train.py", line 71, in main',
    "    loss = model(batch)",
    "ValueError: expected 4 channels",
)
_PIECE_BYTES = 16 << 10
"""What containerd makes of a longer line."""
_BLOCK = 128 << 10
_BYTES_PER_SECOND = 5_000_000
"""Of a log's own time: as fast as the agent follows one."""
_GOAL = 50.0
"""MB a second of CPU, for the log of a training that is well."""


@dataclass(frozen=True)
class _Log:
    """A log whose lines are calm, but for a share of them."""

    share: float = 0.0
    special: Callable[[random.Random], list[str]] = lambda _: []
    stream: str = "stdout"
    """Of the special lines."""
    calm: str = _CALM


_LOGS = {
    "quiet": _Log(),
    "a line in 10,000 matches a rule": _Log(1e-4, lambda _: [_ERROR]),
    "a line in 100 matches a rule": _Log(1e-2, lambda _: [_ERROR]),
    "a traceback every 1,000 lines": _Log(1e-3, lambda _: list(_TRACEBACK)),
    "a traceback on stderr every 10,000 lines": _Log(1e-4, lambda _: list(_TRACEBACK), "stderr"),
    "the same amid lines without a step": _Log(
        1e-4, lambda _: list(_TRACEBACK), "stderr", _STEPLESS
    ),
    "lines of 64 KiB, in pieces": _Log(1.0, lambda chance: ["x" * chance.randint(60_000, 65_000)]),
    "every line matches a rule": _Log(1.0, lambda _: [_ERROR]),
    "every line matches a rule, and no two are alike": _Log(
        1.0, lambda chance: [f"{_ERROR} at step {chance.random()}"]
    ),
    "hostile: lines of 30 KiB that are all heads": _Log(
        1.0, lambda _: [("[rank1]: " * 3300)[:_PIECE_BYTES] + _ERROR]
    ),
    "hostile: lines of 30 KiB of what rules begin with": _Log(
        1.0, lambda _: ["NCCL WARN Call to [Errno CUDA error: Watchdog " * 650]
    ),
}
_HEAVY = ("every", "hostile")
"""How the names of logs begin of which less is read."""


def log(size: int, kind_log: _Log) -> bytes:
    """A container's log of about `size` bytes, whose last line was written now: what is long ago is not reported."""
    chance = random.Random(1)
    made: list[str] = []
    length = 0
    begin_s = time.time() - size / _BYTES_PER_SECOND
    while length < size:
        is_special = chance.random() < kind_log.share
        stream = kind_log.stream if is_special else "stdout"
        for text in kind_log.special(chance) if is_special else [kind_log.calm]:
            for line in _cri(text, stream, begin_s + length / _BYTES_PER_SECOND):
                made.append(line)
                length += len(line)
    return "".join(made).encode()


def _cri(text: str, stream: str, at_s: float) -> Iterator[str]:
    pieces = [text[at : at + _PIECE_BYTES] for at in range(0, len(text), _PIECE_BYTES)]
    for number, piece in enumerate(pieces, start=1):
        tag = "F" if number == len(pieces) else "P"
        yield f"{rfc3339.to_text(at_s)[:-1]}789Z {stream} {tag} {piece}\n"


def by_command(data: bytes) -> tuple[float, int]:
    """(CPU seconds, lines that matched) of the reader of `kcover-ebpf logs`."""
    reader = LogReader(rules.shipped(), shipped())
    begin = time.process_time()
    count = sum(
        1
        for start in range(0, len(data), _BLOCK)
        for _ in reader.feed(data[start : start + _BLOCK])
    )
    return time.process_time() - begin, count


def by_agent(data: bytes) -> tuple[float, int]:
    """The same of the reader of the agent, from a file."""
    own = tuple(rule for rule in rules.shipped() if rule.source is Source.CONTAINER)
    reader = ContainerLogReader("uid", "main", own)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "ns_pod_uid", "main", "0.log")
        file.parent.mkdir(parents=True)
        files = LogFiles(Path(folder), "ns_pod_uid", "main", tail_bytes=None)
        begin = time.process_time()
        with file.open("ab") as out:
            # written in parts: what is far behind is skipped
            for start in range(0, len(data), 8 * _BLOCK):
                before = time.process_time()
                out.write(data[start : start + 8 * _BLOCK])
                out.flush()
                begin += time.process_time() - before
                while (chunk := files.read(_BLOCK)) is not None:
                    reader.feed(chunk, time.time())
        took = time.process_time() - begin
        files.close()
    shown = reader.summary(time.time())
    return took, sum(finding.count for finding in shown.findings) if shown is not None else 0


def measure(mib: int) -> Iterator[dict[str, object]]:
    """One row for each log and reader."""
    for name, kind in _LOGS.items():
        size = (mib << 20) >> (5 if name.startswith(_HEAVY) else 0)
        data = log(size, kind)
        for reader, run in (("logs", by_command), ("agent", by_agent)):
            took, count = run(data)
            yield {
                "log": name,
                "reader": reader,
                "bytes": len(data),
                "cpu_seconds": round(took, 3),
                "mb_per_cpu_second": round(len(data) / took / 1e6, 1),
                "matches": count,
                "machine": platform.machine(),
                "load": round(os.getloadavg()[0], 1),
                "cpus": os.cpu_count(),
            }


def page(rows: list[dict[str, object]]) -> str:
    """docs/bench/logs.md."""
    found = {(row["log"], row["reader"]): row["mb_per_cpu_second"] for row in rows}
    table = [f"| {name} | {found[name, 'logs']} | {found[name, 'agent']} |" for name in _LOGS]
    return "\n".join(
        [
            "# Reading logs",
            "",
            "<!-- Written by bench/logbench.py. -->",
            "",
            "`python -m bench.logbench --take`: MB of a container's log a second of CPU, made up logs in the",
            f"format of the CRI. The goal is {_GOAL:.0f} for the log of a training that is well. The agent takes",
            "at most 5% of a core for all logs of its node, so it follows 5 MB/s of them; what is written faster",
            "is skipped and counted. The lines' own time advances as fast as that, so of the logs with a traceback",
            "on stderr all is searched for steps that were printed before one and written after it. A storm of",
            "known lines and hostile ones are read in linear time: twice as much takes twice as long.",
            "",
            f"The machine had {rows[0]['cpus']} processors and a load of {rows[0]['load']}.",
            "",
            "| log | `kcover-ebpf logs` | agent |",
            "|---|---|---|",
            *table,
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mib", type=int, default=64, help="size of each log")
    parser.add_argument("--take", action="store_true", help="write docs/bench/logs.md")
    how = parser.parse_args()
    rows = []
    for row in measure(how.mib):
        print(json.dumps(row), flush=True)
        rows.append(row)
    if how.take:
        data_file("logs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        _PAGE.write_text(page(rows))


if __name__ == "__main__":
    main()
