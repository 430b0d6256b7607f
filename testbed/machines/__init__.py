"""Kernels and root file systems of virtual machines."""
