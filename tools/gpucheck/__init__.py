"""Measures facts about a real GPU and its driver that the sensor relies on (docs/gpu-check.md)."""
