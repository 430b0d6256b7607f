"""Whether programs can hang on functions of this kernel."""

from __future__ import annotations

from pathlib import Path

_SOURCE = Path("/sys/bus/event_source/devices/kprobe")


def supported() -> bool:
    """True where the kernel is built with kprobes (since Linux 4.17 they are an event source of perf)."""
    return _SOURCE.exists()
