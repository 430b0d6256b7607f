"""libnvidia-ml.so.1 without a GPU behind it, for what uses the real binding."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.skips import ROOT


def build(folder: Path) -> Path:
    """Compile it into a folder; returns the folder."""
    target = folder / "libnvidia-ml.so.1"
    flags = ["-shared", "-fPIC", f"-Wl,-soname,{target.name}"]
    source = ROOT / "tests/faults/nvml_health.c"
    subprocess.run(["gcc", *flags, "-o", str(target), str(source)], check=True, timeout=60)
    return folder


def environ(library: Path, script: Path) -> dict[str, str]:
    """Of a process that finds this library, which does what the script says."""
    return os.environ | {
        "LD_LIBRARY_PATH": str(library),
        "FAKE_NVML": str(script),
        "PYTHONPATH": str(ROOT),
    }
