"""The main thread of a rank waits for a thread, a lock or a queue in the same process; the others wait for the rank."""

import asyncio
import gc
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import service

from bench.lifebench.life import Training, folder, torch_training


class Feed:
    """An input pipeline in the process: a thread asks the data service for each batch and fills a queue."""

    def __init__(self) -> None:
        self._batches: queue.Queue[int] = queue.Queue(1)
        self.late_s = 0.0
        threading.Thread(target=self._fill, daemon=True).start()

    def _fill(self) -> None:
        local = service.Local()
        while True:
            seconds, self.late_s = self.late_s, 0.0
            local.ask(seconds or 0.05)
            self._batches.put(1)

    def get(self, _: int = 0) -> None:
        """The next batch."""
        self._batches.get()

    def starve(self, seconds: float) -> None:
        """The next batches up to one that comes so late: one is in the queue and one in the thread's hands."""
        self.late_s = seconds
        for _ in range(3):
            self.get()


def unreachable(attempts: int) -> None:
    """Report to a tracking server that is not there, after 1, 2, 4 ... s again, then continue without it."""
    for pause_s in (2**attempt for attempt in range(attempts)):
        try:
            socket.create_connection(("127.0.0.1", 1)).close()
        except ConnectionRefusedError:
            time.sleep(pause_s)


def backoff(job: Training) -> None:
    """Rank 0 waits in future.result() for a thread that backs off."""
    job.train(18)
    if job.rank == 0:
        with job.phase(), ThreadPoolExecutor(1) as pool:
            pool.submit(unreachable, 4).result()
    job.train(8)


def backoff_long(job: Training) -> None:
    """The same with seven attempts, 127 s; the thread also backs off for 32 s after them."""
    job.train(18)
    if job.rank == 0:
        with job.phase(), ThreadPoolExecutor(1) as pool:
            pool.submit(unreachable, 7).result()
            pool.submit(time.sleep, 32).result()
    job.train(8)


def service_pause(job: Training, late_s: float = 15) -> None:
    """All ranks get their input from threads; the service pauses once for rank 0's."""
    feed = Feed()
    job.train(18, feed.get)
    if job.rank == 0:
        with job.phase():
            feed.starve(late_s)
    job.train(8, feed.get)


def service_pause_long(job: Training) -> None:
    """The same for 150 s: the data service fails over to another host."""
    service_pause(job, 150)


def hiccups(job: Training) -> None:
    """Rank 0's input is 4 s late, three times."""
    feed = Feed()
    job.train(16, feed.get)
    with job.phase():
        for _ in range(3):
            if job.rank == 0:
                feed.late_s = 4
            job.train(6, feed.get)
    job.train(6, feed.get)


def again(job: Training) -> None:
    """Rank 1 joins its saver thread for 6 s, four times."""
    job.train(16)
    with job.phase():
        for _ in range(4):
            if job.rank == 1:
                saver = threading.Thread(target=time.sleep, args=(6,))
                saver.start()
                saver.join()
            job.train(4)


def epoch_end(job: Training) -> None:
    """Three ranks are in the epoch's own collective; rank 2 still waits for its last batch."""
    feed = Feed()
    job.train(18, feed.get)
    if job.rank == 2:
        with job.phase():
            feed.starve(12)
    job.trainer.barrier()
    job.train(8, feed.get)


def saver_holds_lock(job: Training) -> None:
    """Rank 0 wants to change its weights while its saver, which holds their lock, writes slowly."""
    weights = threading.Lock()
    saving = threading.Event()

    def save() -> None:
        with weights, open(folder() / "checkpoint", "wb") as file:
            saving.set()
            for _ in range(5):
                file.write(bytes(1 << 20))
                os.fsync(file.fileno())
                time.sleep(2.5)

    job.train(18)
    if job.rank == 0:
        with job.phase():
            threading.Thread(target=save).start()
            saving.wait()
            with weights:
                pass
    job.train(8)


def event_loop(job: Training) -> None:
    """Rank 1 awaits a rollout of 15 s in its event loop; the environment is a service."""

    async def rollout() -> None:
        reader, writer = await asyncio.open_unix_connection(str(folder() / service.SOCKET))
        writer.write(b"15\n")
        await reader.readline()
        writer.close()

    service.url()
    job.train(18)
    if job.rank == 1:
        with job.phase():
            asyncio.run(rollout())
    job.train(8)


def collect(job: Training) -> None:
    """Rank 2 collects garbage over and over, as some trainers do between epochs, in a heap of millions of objects."""
    job.train(18)
    if job.rank == 2:
        with job.phase():
            heap = [[number] for number in range(3_000_000)]
            end_s = time.monotonic() + 8
            while time.monotonic() < end_s:
                gc.collect()
            del heap
    job.train(8)


RUNS: dict[str, Callable[[Training], None]] = {
    "backoff": backoff,
    "backoff-long": backoff_long,
    "service-pause": service_pause,
    "service-pause-long": service_pause_long,
    "hiccups": hiccups,
    "again": again,
    "epoch-end": epoch_end,
    "saver-holds-lock": saver_holds_lock,
    "event-loop": event_loop,
    "collect": collect,
}

if __name__ == "__main__":
    with torch_training() as training:
        RUNS[sys.argv[1]](training)
