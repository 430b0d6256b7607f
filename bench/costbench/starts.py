"""`python -m bench.costbench.starts NAME=CHECKOUT... --into FILE`: starts of several checkouts, one after the other.

Each round starts `run -- true` once from every checkout, so that a machine that gets slower or faster favours none.
Needs root. One JSON line a start: seconds to the first line (all is attached then) and to the end, CPU seconds, KiB.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.costbench.processes import status_number

_COMMAND = ("run", "-o", "json", "--", "true")
_FIELDS = {
    "attached_s": "until attached, s",
    "whole_s": "`run -- true`, s",
    "cpu_s": "CPU, s",
    "rss_kib": "resident, KiB",
}


def one_start(root: Path) -> dict[str, Any]:
    """One start of the command of a checkout; `cpu_s` is of the sensor and what it waited for."""
    begin_s = time.monotonic()
    process = subprocess.Popen(
        [str(root / ".venv/bin/kcover-ebpf"), *_COMMAND], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    first = json.loads(process.stdout.readline())
    attached_s, rss_kib = time.monotonic() - begin_s, status_number(process.pid, "VmRSS")
    process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    whole_s = time.monotonic() - begin_s
    process.returncode = os.waitstatus_to_exitcode(status)
    if first.get("event") != "start" or process.returncode != 0:
        sys.exit(f"{root}: the sensor does not start: see kcover-ebpf doctor")
    return {
        "attached_s": round(attached_s, 4),
        "whole_s": round(whole_s, 4),
        "cpu_s": round(used.ru_utime + used.ru_stime, 4),
        "rss_kib": rss_kib,
        "load": os.getloadavg()[0],
    }


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Medians of each checkout, as Markdown."""
    rows = [f"| checkout | starts | {' | '.join(_FIELDS.values())} |", "|---|---|---|---|---|---|"]
    for name in dict.fromkeys(line["name"] for line in lines):
        own = [line for line in lines if line["name"] == name]
        medians = (f"{statistics.median(entry[field] for entry in own):g}" for field in _FIELDS)
        rows.append(f"| {name} | {len(own)} | {' | '.join(medians)} |")
    return "\n".join(rows)


def main(words: Sequence[str] | None = None) -> int:
    """Measure, and print the medians of all that the file has."""
    parser = argparse.ArgumentParser(prog="bench.costbench.starts", description=__doc__)
    parser.add_argument("checkouts", nargs="*", metavar="NAME=CHECKOUT")
    parser.add_argument("--count", type=int, default=25, help="starts of each (default 25)")
    parser.add_argument("--into", type=Path, required=True, help="append the lines to this file")
    args = parser.parse_args(words)
    named = dict(checkout.partition("=")[::2] for checkout in args.checkouts)
    for root in named.values():
        if not (Path(root) / ".venv/bin/kcover-ebpf").exists():
            parser.error(
                f"{root!r} is no checkout with .venv/bin/kcover-ebpf: run make build there"
            )
    with args.into.open("a", encoding="utf-8") as out:
        for _ in range(args.count):
            for name, root in named.items():
                print(json.dumps({"name": name} | one_start(Path(root))), file=out, flush=True)
    print(table([json.loads(line) for line in args.into.read_text(encoding="utf-8").splitlines()]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
