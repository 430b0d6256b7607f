"""Faults of GPUs, PCIe, memory and fabric: how they read, what they mean, who holds the device."""
