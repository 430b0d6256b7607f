"""`python -m bench.costbench.stretches`: the longest stretch for which a pass lets a kernel run nothing else.

8,000 parked threads in 64 processes, read for the first time, in calm passes, and all of them in detail; by the
walk in one call (Linux 6.7) and by the visits to each thread that older kernels need, both on this kernel. A stretch
is one `read` of the iterator: its CPU time is taken by the clock of the thread, for a kernel without preemption can
run something else only when it returns. Needs root.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from bench.costbench.processes import Group, build_load
from kcover_ebpf.facts.kernel import Detail, SampleRequest
from kcover_ebpf.host import cgroups
from kcover_ebpf.ids import Pid
from kcover_ebpf.kernel.probes import FAMILIES
from kcover_ebpf.kernel.sampler import KernelSampler
from kcover_ebpf.settings import Settings

THREADS, PROCESSES = 8_000, 64
CALM_PASSES = 40
_WALK = "walk"


@contextmanager
def timed_reads() -> Iterator[list[float]]:
    """Milliseconds of CPU of each read of an iterator meanwhile."""
    found: list[float] = []
    read = os.read

    def timed(fd: int, size: int) -> bytes:
        begin_ns = time.thread_time_ns()
        try:
            return read(fd, size)
        finally:
            found.append((time.thread_time_ns() - begin_ns) / 1e6)

    with patch.object(os, "read", timed):
        yield found


def measure(group: Group, *, walks: bool) -> Iterator[tuple[str, list[float]]]:
    """Each kind of pass with the reads that it took."""
    families = [family for family in FAMILIES if walks or family.name != _WALK]
    pids = [Pid(pid) for pid in cgroups.processes(group.path)]
    with KernelSampler.open(Settings(), families) as kernel, timed_reads() as reads:
        for pid in pids:
            kernel.watch(pid)
        kernel.sample(())
        yield "first sight", list(reads)
        reads.clear()
        for _ in range(CALM_PASSES):
            time.sleep(0.1)
            kernel.sample(())
        yield "calm", list(reads)
        reads.clear()
        for pid in pids:
            kernel.request(pid, SampleRequest(Detail.ALL, every=1))
        kernel.sample(())
        yield "in detail", list(reads)


def main() -> int:
    """Measure both ways, and print a table."""
    if os.geteuid() != 0:
        sys.exit("it loads BPF programs and makes control groups: run it as root")
    print("| kernel | way | pass | reads | longest | median |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="kcover-cost-") as folder:
        group = Group("stretches")
        try:
            group.park(build_load(Path(folder)), THREADS, PROCESSES)
            for walks in (True, False):
                for kind, reads in measure(group, walks=walks):
                    way = "one walk" if walks else "visits"
                    longest, median = max(reads), sorted(reads)[len(reads) // 2]
                    print(
                        f"| {os.uname().release} | {way} | {kind} | {len(reads)} "
                        f"| {longest:.2f} ms | {median:.2f} ms |",
                        flush=True,
                    )
        finally:
            group.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
