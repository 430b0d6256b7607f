"""Rank 0 saves a checkpoint to a file system mounted for the job, while the others wait for it."""

import errno
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench.lifebench.life import Training, folder, torch_training


def data() -> Path:
    """The file of the mounted file system, once it is there."""
    path = folder() / "files/data"
    while not path.exists():
        time.sleep(0.2)
    return path


def slow(job: Training) -> None:
    """Each write of 128 KiB takes the server 0.2 s."""
    with open(data(), "r+b", buffering=0) as file:
        for _ in range(50):
            file.write(bytes(1 << 17))
            file.seek(0)


def synced(job: Training) -> None:
    """The server is late with the fsync."""
    with open(data(), "r+b", buffering=0) as file:
        file.write(bytes(1 << 17))
        os.fsync(file.fileno())


def full(job: Training) -> None:
    """The volume is full; try again every 2 s until there is room."""
    path = folder() / "files/checkpoint"
    while True:
        try:
            path.write_bytes(bytes(2 << 20))
            return
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            path.unlink()
            time.sleep(2)


RUNS: dict[str, Callable[[Training], None]] = {"slow": slow, "synced": synced, "full": full}

if __name__ == "__main__":
    with torch_training() as training:
        training.train(18)
        if training.rank == 0:
            with training.phase():
                RUNS[sys.argv[1]](training)
        training.train(8)
