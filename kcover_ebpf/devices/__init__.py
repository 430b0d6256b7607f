"""Faults of GPUs, PCIe, memory and the fabric: how they are read, what they mean, which processes they affect."""
