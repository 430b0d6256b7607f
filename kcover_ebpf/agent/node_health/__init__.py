"""Inspections, device faults and idle GPUs of the node."""
