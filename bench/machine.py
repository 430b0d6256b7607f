"""On what a bench ran: what a reader needs to compare the numbers with those of another machine."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path


def kernel_series(release: str) -> str:
    """`6.18` of `6.18.44-a-build-of-ours`: a local build's name means nothing elsewhere."""
    found = re.match(r"\d+\.\d+", release)
    return found[0] if found else release


def cpu_model() -> str:
    """Of the first CPU in `/proc/cpuinfo`; empty where it has no name (arm64)."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "")


def described() -> str:
    """Cores, CPU and kernel of this machine."""
    cpu = cpu_model()
    named = f" ({cpu})" if cpu else ""
    return f"{os.cpu_count()} cores{named}, Linux {kernel_series(platform.release())}"
