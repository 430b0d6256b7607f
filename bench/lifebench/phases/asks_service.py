"""A rank asks something outside of the job; the others wait for the rank."""

import ctypes
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import service

from bench.lifebench.life import Training, folder, torch_training

MOUNT_NAMESPACE, BIND, PRIVATE = 0x20000, 0x1000, 0x44000


def judge(job: Training) -> None:
    """Rank 0 asks a reward model over HTTP, three times; each answer takes 8 s."""
    job.train(18)
    for _ in range(3):
        if job.rank == 0:
            with job.phase():
                service.get("/late/8")
        job.train(3)
    job.train(3)


def judge_long(job: Training) -> None:
    """Rank 0 asks a reward model over HTTP that is started for it: 150 s."""
    job.train(18)
    if job.rank == 0:
        with job.phase():
            service.get("/late/150")
    job.train(8)


def upload_future(job: Training) -> None:
    """Rank 0 waits for the thread that uploads its checkpoint; the store puts the parts together for 10 s."""
    job.train(18)
    if job.rank == 0:
        with job.phase(), ThreadPoolExecutor(1) as pool:
            pool.submit(service.put, "/upload/10", bytes(4 << 20)).result()
    job.train(8)


def retry(job: Training) -> None:
    """Rank 0's request is refused for being busy; it tries again after 1, 2, 4 ... s."""
    job.train(18)
    if job.rank == 0:
        with job.phase():
            pause_s = 1.0
            while service.get("/busy/14") == 503:
                time.sleep(pause_s)
                pause_s *= 2
    job.train(8)


def shard(job: Training) -> None:
    """Before the first step rank 0 downloads the data set; the store slows down and pauses for 12 s."""
    if job.rank == 0:
        with job.phase():
            service.get("/shard/12")
    job.trainer.barrier()
    job.train(20)


def unix_poll(job: Training) -> None:
    """Rank 2 polls a Unix socket without a time-out for what a service on its host prepares."""
    local = socket.socket(socket.AF_UNIX)
    service.url()
    local.connect(str(folder() / service.SOCKET))
    job.train(18)
    if job.rank == 2:
        with job.phase():
            local.sendall(b"14\n")
            poll = select.poll()
            poll.register(local, select.POLLIN)
            poll.poll()
    job.train(8)


def resolve_elsewhere() -> None:
    """Ask the resolver outside the job for names, only in this process and its children."""
    libc = ctypes.CDLL(None, use_errno=True)
    path = folder() / "resolv.conf"
    address = os.environ["LIFE_ADDRESS"]
    path.write_text(f"nameserver {address}\noptions timeout:5 attempts:3\n")
    calls: tuple[Callable[[], int], ...] = (
        lambda: libc.unshare(MOUNT_NAMESPACE),
        lambda: libc.mount(None, b"/", None, PRIVATE, None),
        lambda: libc.mount(str(path).encode(), b"/etc/resolv.conf", None, BIND, None),
    )
    if any(call() for call in calls):
        raise OSError(ctypes.get_errno(), "cannot bind another resolv.conf")


def name(job: Training) -> None:
    """Rank 0 looks a name up; the resolver answers its third query, 10 s later."""
    job.train(18)
    if job.rank == 0:
        with job.phase():
            socket.getaddrinfo("store.example", 443)
    job.train(8)


def telemetry(job: Training) -> None:
    """Every rank has busy side threads, logs and telemetry; rank 2's input is 12 s late."""
    stop = threading.Event()

    def compute() -> None:
        while not stop.wait(0.047):
            job.pace.burn(0.003)

    def tell() -> None:
        with open(folder() / f"log-{job.rank}", "wb", buffering=0) as file:
            while not stop.wait(0.2):
                file.write(b"x" * 4000)
                service.post("/metrics/0", b"loss 0.693 " * 100)

    threads = [threading.Thread(target=work) for work in (compute, tell)]
    for thread in threads:
        thread.start()
    job.train(18)
    if job.rank == 2:
        local = service.Local()
        with job.phase(), ThreadPoolExecutor(1) as pool:
            pool.submit(local.ask, 12).result()
    job.train(8)
    stop.set()


RUNS: dict[str, Callable[[Training], None]] = {
    "judge": judge,
    "judge-long": judge_long,
    "upload-future": upload_future,
    "retry": retry,
    "shard": shard,
    "unix-poll": unix_poll,
    "name": name,
    "telemetry": telemetry,
}

if __name__ == "__main__":
    if sys.argv[1] == "name":
        resolve_elsewhere()
    with torch_training() as training:
        RUNS[sys.argv[1]](training)
