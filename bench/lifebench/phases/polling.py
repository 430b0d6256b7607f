"""A rank looks for something again and again; the others wait for it, or do the same."""

import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench.lifebench.life import Training, folder, torch_training

SOURCE = "int f{n}(int x) {{ for (int i = 0; i < x; i++) x ^= x * {n} + i; return x; }}\n"
NINJA = """rule cc
  command = nice gcc -O2 -c $in -o $out
"""


def await_file(path: Path, every_s: float) -> None:
    """Poll for a file."""
    while not path.exists():
        time.sleep(every_s)


def fast(job: Training) -> None:
    """Rank 0 polls every 5 ms for rollouts that others write."""
    job.train(18)
    if job.rank == 0:
        with job.phase():
            await_file(folder() / "ready", 0.005)
    job.train(8)


def build(seconds: float) -> None:
    """Compile an extension with ninja, repeatedly for the given number of seconds."""
    place = folder() / "build"
    place.mkdir()
    text = NINJA
    for number in range(4):
        functions = (SOURCE.format(n=number * 1000 + part) for part in range(150))
        (place / f"kernel{number}.c").write_text("".join(functions))
        text += f"build kernel{number}.o: cc kernel{number}.c\n"
    (place / "build.ninja").write_text(text)
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        subprocess.run(["ninja", "-j1"], cwd=place, check=True, stdout=subprocess.DEVNULL)
        for path in place.glob("*.o"):
            path.unlink()


def baton(job: Training) -> None:
    """Rank 0 compiles an extension with ninja; the others poll for its lock file, 10 times a second."""
    lock = folder() / "build.lock"
    job.train(18)
    if job.rank == 0:
        lock.touch()
    job.trainer.barrier()
    if job.rank == 0:
        with job.phase():
            build(12)
            lock.unlink()
    while lock.exists():
        time.sleep(0.1)
    job.train(8)


def kernel(job: Training) -> None:
    """Rank 3 compiles a kernel that the others had in their cache; they are in the next collective."""
    job.train(18)
    if job.rank == 3:
        with job.phase():
            build(10)
    job.train(8)


def stale_lock(job: Training) -> None:
    """Rank 2 finds the lock of a process that was killed, and takes it after 16 s, as the lock's time-out says."""
    job.train(18)
    if job.rank == 2:
        lock = folder() / "cache.lock"
        lock.touch()
        with job.phase():
            while time.time() < lock.stat().st_mtime + 16:
                time.sleep(0.2)
            lock.unlink()
    job.train(8)


def spin_on_flag(job: Training) -> None:
    """Rank 1 spins on a flag in shared memory while its child computes."""
    job.train(18)
    if job.rank == 1:
        shared = mmap.mmap(-1, 4096)
        with job.phase():
            child = os.fork()
            if child == 0:
                job.pace.burn(8)
                shared[0] = 1
                os._exit(0)
            while not shared[0]:
                pass
            os.waitpid(child, 0)
    job.train(8)


def sleep(job: Training) -> None:
    """Rank 0 sleeps 20 s in one call, as a script does that gives a file system time to settle."""
    job.train(18)
    if job.rank == 0:
        with job.phase():
            time.sleep(20)
    job.train(8)


RUNS: dict[str, Callable[[Training], None]] = {
    "fast": fast,
    "baton": baton,
    "kernel": kernel,
    "stale-lock": stale_lock,
    "spin-on-flag": spin_on_flag,
    "sleep": sleep,
}

if __name__ == "__main__":
    with torch_training() as training:
        RUNS[sys.argv[1]](training)
