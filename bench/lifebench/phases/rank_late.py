"""Rank 2 of an MPI job writes its results for 15 s while the others wait in the last barrier."""

import os
import time

from bench.lifebench.life import folder, mpi_training

with mpi_training() as job:
    job.train(20)
    if job.rank == 2:
        with job.phase(), open(folder() / "results", "wb") as file:
            for _ in range(75):
                file.write(os.urandom(1 << 18))
                os.fsync(file.fileno())
                time.sleep(0.2)
    job.trainer.barrier()
