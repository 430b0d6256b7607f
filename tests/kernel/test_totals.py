"""Sums per process: what was done is what is counted, no more and no less."""

import os
import sys
from pathlib import Path

import pytest

from kcover_ebpf.facts.kernel import ProcessTotals
from kcover_ebpf.ids import Pid
from kcover_ebpf.kernel.sampler import KernelSampler
from tests.kernel.helpers import FIRINGS, of_kind, program, running

MIB = 1 << 20
BURN_NS = 20_000_000


def totals(kernel: KernelSampler, pid: Pid) -> ProcessTotals:
    found = [one for one in of_kind(kernel.sample([]), ProcessTotals) if one.pid == pid]
    assert len(found) == 1
    return found[0]


def test_cpu_time(kernel: KernelSampler) -> None:
    with running(program("works"), "cpu", "20") as target:
        target.work()
        kernel.watch(target.pid)
        assert totals(kernel, target.pid).cpu_ns == 0, "what came before is not counted"
        for _ in range(FIRINGS):
            target.work()
        last = totals(kernel, target.pid)
    # Each round ends a little after its time, much after on an emulated machine.
    assert FIRINGS * BURN_NS * 0.99 < last.cpu_ns < FIRINGS * BURN_NS * 2
    assert last.ppid == os.getpid()


def test_threads_that_live_between_two_passes_count(kernel: KernelSampler) -> None:
    with running(program("works"), "threads", "23") as target:
        kernel.watch(target.pid)
        totals(kernel, target.pid)
        target.work()
        last = totals(kernel, target.pid)
    # Each burns 2 ms; to make and end a thread costs, too, most of all on an emulated machine.
    assert FIRINGS * 2_000_000 < last.cpu_ns < FIRINGS * 6_000_000


@pytest.mark.parametrize("what", ["write", "read"])
def test_storage(kernel: KernelSampler, what: str, tmp_path: Path) -> None:
    path = _on_disk(tmp_path) / f"kcover-storage-{os.getpid()}"
    path.write_bytes(bytes(MIB))
    try:
        with running(program("works"), what, str(path), str(MIB)) as target:
            kernel.watch(target.pid)
            before = totals(kernel, target.pid)
            for _ in range(FIRINGS):
                target.work()
            after = totals(kernel, target.pid)
    finally:
        path.unlink()
    moved = getattr(after, f"{what}_bytes") - getattr(before, f"{what}_bytes")
    chars = getattr(after, f"{what}_chars") - getattr(before, f"{what}_chars")
    assert moved == pytest.approx(FIRINGS * MIB, rel=0.02)
    assert chars == pytest.approx(FIRINGS * MIB, rel=0.02)


def _on_disk(tmp_path: Path) -> Path:
    """A folder on a block device; a memory file system has no storage to count."""
    for folder in (tmp_path, Path("/var/tmp"), Path.cwd()):
        if os.major(folder.stat().st_dev) != 0:
            return folder
    pytest.skip("needs disk: no folder on a block device")


def test_a_child_counts_from_its_birth(kernel: KernelSampler) -> None:
    code = """
import os, time
while input():
    if os.fork() == 0:
        sum(range(5000000))
        print("done", flush=True)
        time.sleep(60)
"""
    with running(sys.executable, "-c", code) as target:
        kernel.watch(target.pid)
        kernel.sample([])
        target.work()
        found = {one.pid: one for one in of_kind(kernel.sample([]), ProcessTotals)}
    child = next(one for pid, one in found.items() if pid != target.pid)
    assert child.ppid == target.pid
    assert child.cpu_ns > BURN_NS
