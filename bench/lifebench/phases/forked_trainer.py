"""Each rank is a monitor that forks the process which trains, and has its RANK; rank 2's trainer waits for a thread."""

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from bench.lifebench.life import torch_training


def monitor(trainer: int) -> int:
    """Check the trainer once a second; its exit code."""
    while True:
        pid, status = os.waitpid(trainer, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(1)


if child := os.fork():
    sys.exit(monitor(child))
with torch_training() as job:
    job.train(18)
    if job.rank == 2:
        with job.phase(), ThreadPoolExecutor(1) as pool:
            pool.submit(time.sleep, 12).result()
    job.train(8)
