"""Ranks leave as agreed, or the run ends with work left for one of them."""

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import service
from group_training import GroupTraining

from bench.lifebench.life import await_events, folder

SYNC = """
import sys, time
for line in sys.stdin:
    pass
for part in range(8):
    open("run.log", "ab").write(bytes(100_000))
    time.sleep(2)
"""


def one_leaves(job: GroupTraining) -> None:
    """The last rank has no more data and leaves; the others train on, and later rank 0 waits for a thread."""
    rest = job.smaller(range(job.world - 1))
    job.train(16)
    if job.rank == job.world - 1:
        return
    job.group = rest
    job.train(14)
    if job.rank == 0:
        with job.phase(), ThreadPoolExecutor(1) as pool:
            pool.submit(time.sleep, 12).result()
    job.train(6)


def scaled_down(job: GroupTraining) -> None:
    """The last rank is ended by its launcher, as agreed; the others train on, and later rank 1 waits for a thread."""
    rest = job.smaller(range(job.world - 1))
    job.train(16)
    if job.rank == job.world - 1:
        job.log.write("free")
        signal.pause()
    job.group = rest
    job.train(10)
    if job.rank == 1:
        with job.phase(), ThreadPoolExecutor(1) as pool:
            pool.submit(time.sleep, 12).result()
    job.train(6)


def upload(job: GroupTraining) -> None:
    """All is trained; rank 0's thread uploads the last checkpoint and its main thread joins it."""
    job.train(18)
    if job.rank == 0:
        with job.phase():
            thread = threading.Thread(target=service.put, args=("/upload/10", bytes(2 << 20)))
            thread.start()
            thread.join()


def upload_itself(job: GroupTraining) -> None:
    """All is trained; rank 0 uploads the last checkpoint itself and waits 16 s for the last answer."""
    job.train(18)
    if job.rank == 0:
        with job.phase():
            service.put("/upload/4", bytes(2 << 20))
            service.get("/late/12")


def tracking(job: GroupTraining) -> None:
    """All is trained; rank 0's tracking process still has 16 s to write."""
    tracker = None
    if job.rank == 0:
        command = [sys.executable, "-c", SYNC]
        tracker = subprocess.Popen(command, stdin=subprocess.PIPE, cwd=folder(), text=True)
    job.train(18)
    if tracker and tracker.stdin:
        with job.phase():
            tracker.stdin.close()
            tracker.wait()


def last_thread(job: GroupTraining) -> None:
    """All is trained; rank 2 ends only when its thread has sent what is in its queue, 12 s later."""
    messages: queue.Queue[float] = queue.Queue()

    def send() -> None:
        local = service.Local()
        for _ in range(4):
            local.ask(messages.get())
        job.log.write("phase_end")

    job.train(18)
    if job.rank == 2:
        job.log.write("phase_begin")
        threading.Thread(target=send).start()
        for _ in range(4):
            messages.put(3)


RUNS: dict[str, Callable[[GroupTraining], None]] = {
    "one-leaves": one_leaves,
    "scaled-down": scaled_down,
    "upload": upload,
    "upload-itself": upload_itself,
    "tracking": tracking,
    "last-thread": last_thread,
}


def scale_down(world: int) -> int:
    """Another launcher: start the ranks, end the last one when it is free, and wait for the others."""
    ranks = []
    for rank in range(world):
        variables = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world)}
        command = [sys.executable, "-u", __file__, "scaled-down"]
        ranks.append(subprocess.Popen(command, env=variables | {"LOCAL_RANK": str(rank)}))
    await_events("free")
    ranks[-1].terminate()
    return max(abs(rank.wait()) for rank in ranks[:-1])


if __name__ == "__main__":
    if "RANK" not in os.environ:
        sys.exit(scale_down(4))
    RUNS[sys.argv[1]](GroupTraining())
