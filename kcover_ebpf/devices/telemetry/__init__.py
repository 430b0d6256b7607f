"""Use and health of this host's GPUs every few seconds.

A separate program reads NVML or dcgm-exporter; it may hang.
"""
