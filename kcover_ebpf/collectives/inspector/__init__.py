"""Reads what NCCL Inspector, NVIDIA's profiler plug-in, wrote about the collectives of a job."""
