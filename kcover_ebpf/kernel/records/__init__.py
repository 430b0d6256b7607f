"""Layouts of the kernel's records, and the facts that they decode to. Pure: no clock, no file, no network."""
