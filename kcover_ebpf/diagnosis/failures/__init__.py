"""Announced failures: exits, signals, memory, devices, and ranks that never came. They need no waiting."""
