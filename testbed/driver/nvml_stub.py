"""libnvidia-ml.so.1 without a GPU behind it, for what uses the real binding."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from testbed.skips import ROOT

_CALL = re.compile(r"\bnvml(?:Init|Shutdown|Device[A-Z]|EventSet)\w*")


def calls(*modules: str) -> set[str]:
    """The calls of NVML in the source of these modules, by their names in the binding."""
    texts = ((ROOT / "kcover_ebpf" / name).read_text() for name in modules)
    return {call for text in texts for call in _CALL.findall(text)}


def build(folder: Path, source: str = "nvml_health.c") -> Path:
    """Compile it into a folder; returns the folder. `source`: in testbed/faults."""
    target = folder / "libnvidia-ml.so.1"
    flags = ["-shared", "-fPIC", f"-Wl,-soname,{target.name}"]
    subprocess.run(
        ["gcc", *flags, "-o", str(target), str(ROOT / "testbed/faults" / source)],
        check=True,
        timeout=60,
    )
    return folder


def environ(library: Path, script: Path) -> dict[str, str]:
    """Of a process that finds this library, which does what the script says."""
    return os.environ | {
        "LD_LIBRARY_PATH": str(library),
        "FAKE_NVML": str(script),
        "PYTHONPATH": str(ROOT),
    }
