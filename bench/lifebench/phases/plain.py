"""A training of 40 s; what happens to it is caused from outside."""

from bench.lifebench.life import torch_training

with torch_training() as job:
    job.train(40)
