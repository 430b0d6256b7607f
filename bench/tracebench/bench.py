"""`bench/tracebench/run`: time from the start of `kcover-ebpf trace` to its table, and to its verdict.

The target is testbed/faults/crowd.c: threads that wait for one mutex. Written as a Markdown table.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMAND = ROOT / ".venv/bin/kcover-ebpf"


def traced(pid: int) -> tuple[float, float, float]:
    """(seconds to the end of the table, to the verdict, CPU seconds of the whole trace)."""
    before = cpu_s()
    begin = time.monotonic()
    process = subprocess.Popen(
        [str(COMMAND), "trace", "--pid", str(pid)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    table_s = None
    for line in process.stdout:
        if table_s is None and not line.strip():
            table_s = time.monotonic() - begin
    process.stdout.close()
    process.wait()
    if table_s is None:
        raise SystemExit(f"tracebench: trace said nothing (exit code {process.returncode})")
    return table_s, time.monotonic() - begin, cpu_s() - before


def cpu_s() -> float:
    """CPU seconds of all children that ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(program: str, threads: int, repetitions: int) -> str:
    """One line of the table."""
    with subprocess.Popen(
        [program, "threads", str(threads)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as crowd:
        assert crowd.stdout is not None
        crowd.stdout.readline()
        traces = [traced(crowd.pid) for _ in range(repetitions)]
        crowd.kill()
    tables, verdicts, cpus = (sorted(column) for column in zip(*traces, strict=True))
    return (
        f"| {threads} | {statistics.median(tables):.2f} | {tables[-1]:.2f} "
        f"| {statistics.median(verdicts):.2f} | {statistics.median(cpus):.2f} |"
    )


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="bench/tracebench/run", description=__doc__)
    parser.add_argument("--threads", default="1,100,500,2000", help="sizes of the target")
    parser.add_argument("--repetitions", type=int, default=15)
    args = parser.parse_args()
    if os.geteuid() != 0 or not COMMAND.exists():
        print("tracebench: needs root and `make build`", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/crowd"
        source = ROOT / "testbed/faults/crowd.c"
        subprocess.run(["cc", "-O1", "-pthread", "-o", program, source], check=True)
        print(
            f"{args.repetitions} traces each, load {os.getloadavg()[0]:.1f}, {os.cpu_count()} CPUs"
        )
        print(
            "\n| threads | table p50 s | table worst s | verdict p50 s | CPU s |\n|---|---|---|---|---|"
        )
        for threads in map(int, args.threads.split(",")):
            print(measure(program, threads, args.repetitions), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
