"""Inspections of the node, faults its devices announced, and the pods on its GPUs."""
