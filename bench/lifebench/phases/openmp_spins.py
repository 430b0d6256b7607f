"""Rank 0's main thread spins at the end of an OpenMP region whose other thread computes for 9 s."""

import ctypes
import os
import subprocess
from pathlib import Path

from bench.lifebench.life import folder, torch_training

os.environ["OMP_WAIT_POLICY"] = "active"  # OpenMP reads it when PyTorch loads it
with torch_training() as job:
    library = folder() / f"openmp-{job.rank}.so"
    source = Path(__file__).with_name("openmp.c")
    subprocess.run(
        ["gcc", "-O2", "-fopenmp", "-shared", "-fPIC", "-o", library, source], check=True
    )
    imbalanced = ctypes.CDLL(str(library)).imbalanced
    imbalanced.argtypes, imbalanced.restype = [ctypes.c_double], ctypes.c_double
    job.train(18)
    if job.rank == 0:
        with job.phase():
            imbalanced(9.0)
    job.train(8)
