"""Rank 0 evaluates with batches and prints; the others are in the next step's collective."""

import time

from bench.lifebench.life import torch_training

with torch_training() as job:
    job.train(20)
    if job.rank == 0:
        with job.phase():
            for batch in range(100):
                job.pace.burn(0.02)
                time.sleep(0.18)
                if batch % 20 == 0:
                    print(f"evaluation: batch {batch}", flush=True)
    job.train(10)
