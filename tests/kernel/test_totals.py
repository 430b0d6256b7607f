"""Sums per process: what was done is what is counted, no more and no less."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kcover_ebpf.facts.kernel import ProcessTotals
from kcover_ebpf.host import cgroups
from kcover_ebpf.ids import Pid
from kcover_ebpf.kernel.sampler import KernelSampler
from tests.kernel.helpers import EACH_PASS, FIRINGS, of_kind, program, running, until, watch

MIB = 1 << 20
BURN_NS = 20_000_000


def totals(kernel: KernelSampler, pid: Pid) -> ProcessTotals:
    found = [one for one in of_kind(kernel.sample([]), ProcessTotals) if one.pid == pid]
    assert len(found) == 1
    return found[0]


def test_cpu_time_is_counted_from_when_a_process_is_watched(kernel: KernelSampler) -> None:
    with running(program("works"), "cpu", "20") as target:
        target.work()
        watch(kernel, target.pid, EACH_PASS)
        assert totals(kernel, target.pid).cpu_ns == 0, "what came before is not counted"
        for _ in range(FIRINGS):
            target.work()
        last = totals(kernel, target.pid)
    # Each round ends a little after its time, much after on an emulated machine.
    assert FIRINGS * BURN_NS * 0.99 < last.cpu_ns < FIRINGS * BURN_NS * 2
    assert last.ppid == os.getpid()


def test_threads_that_live_between_two_passes_count(kernel: KernelSampler) -> None:
    with running(program("works"), "threads", "23") as target:
        watch(kernel, target.pid, EACH_PASS)
        totals(kernel, target.pid)
        target.work()
        last = totals(kernel, target.pid)
    # Each burns 2 ms; to make and end a thread costs, too, most of all on an emulated machine.
    assert FIRINGS * 2_000_000 < last.cpu_ns < FIRINGS * 6_000_000


@pytest.mark.parametrize("what", ["write", "read"])
def test_bytes_of_files_on_a_disk_are_counted(
    kernel: KernelSampler, what: str, tmp_path: Path
) -> None:
    path = _on_disk(tmp_path) / f"kcover-storage-{os.getpid()}"
    path.write_bytes(bytes(MIB))
    try:
        with running(program("works"), what, str(path), str(MIB)) as target:
            watch(kernel, target.pid, EACH_PASS)
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


_FILLS = """
import os, sys, time
path, pause = sys.argv[1] + "/checkpoint", float(sys.argv[2])
print("ready", flush=True)
while True:
    try:
        with open(path, "wb", buffering=0) as file:
            for _ in range(16):
                file.write(bytes(1 << 20))
    except OSError:
        os.unlink(path)
        if pause:  # even of no length, a sleep may sleep on a busy machine
            time.sleep(pause)
"""


@pytest.mark.parametrize(("pause", "share"), [("0.3", 1.0), ("0", 0.0)])
def test_bytes_between_sleeps_are_counted_as_well(
    kernel: KernelSampler, tmp_path: Path, pause: str, share: float
) -> None:
    """A program fills a small volume, fails, removes what it wrote and tries again."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", tmp_path], check=True)
    try:
        with running(sys.executable, "-c", _FILLS, str(tmp_path), pause) as target:
            target.line()
            watch(kernel, target.pid, EACH_PASS)
            before = after = totals(kernel, target.pid)
            for _ in range(30):
                time.sleep(0.1)
                after = totals(kernel, target.pid)
    finally:
        subprocess.run(["umount", "-l", tmp_path], check=True)
    moved = after.write_chars - before.write_chars
    assert moved > 5 * 4 * MIB
    assert after.asleep_chars - before.asleep_chars == pytest.approx(share * moved, abs=0.1 * moved)


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
        watch(kernel, target.pid, EACH_PASS)
        kernel.sample([])
        target.work()
        found = {one.pid: one for one in of_kind(kernel.sample([]), ProcessTotals)}
    child = next(one for pid, one in found.items() if pid != target.pid)
    assert child.ppid == target.pid
    assert child.cpu_ns > BURN_NS


def test_what_a_quota_takes_away_is_counted(kernel: KernelSampler) -> None:
    group = _quota_group(f"kcover-quota-{os.getpid()}")
    try:
        with running(program("waits"), "spin") as target:
            target.line()
            watch(kernel, target.pid, EACH_PASS)
            free = totals(kernel, target.pid)
            (group / "cgroup.procs").write_text(str(target.pid))
            # where others want the processor too, it seldom gets so far that it is throttled
            until(lambda: totals(kernel, target.pid).throttled_ns > 1_000_000_000, "a second")
            before_ns = _throttled_ns(group)
            throttled = totals(kernel, target.pid)
            after_ns = _throttled_ns(group)
    finally:
        until(lambda: cgroups.remove(group), "an empty group")
    assert free.throttled_ns == 0
    assert throttled.throttled_ns < throttled.boottime_ns - free.boottime_ns
    assert before_ns <= throttled.throttled_ns < after_ns + 1000, (
        "what cpu.stat says, in microseconds"
    )


def _throttled_ns(group: Path) -> int:
    """What the kernel itself says, by cgroup v2 or v1."""
    lines = (group / "cpu.stat").read_text().splitlines()
    stat = dict(line.split() for line in lines)
    if "throttled_usec" in stat:
        return int(stat["throttled_usec"]) * 1000
    return int(stat["throttled_time"])


def _quota_group(name: str) -> Path:
    """A group that may use 1% of a processor, by cgroup v2 or v1."""
    for root, files in (
        (Path("/sys/fs/cgroup"), {"cpu.max": "1000 100000"}),
        (Path("/sys/fs/cgroup/cpu"), {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "1000"}),
    ):
        group = root / name
        try:
            group.mkdir()
        except OSError:
            continue
        if all((group / file).exists() for file in files):
            for file, text in files.items():
                (group / file).write_text(text)
            return group
        cgroups.remove(group)
    pytest.skip("needs cpu quota: no control group has one here")
