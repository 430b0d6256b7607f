"""ELF files that a compiler made."""

from __future__ import annotations

import subprocess
from pathlib import Path

from testbed.skips import ROOT


def built(folder: Path, *options: str, source: Path = ROOT / "testbed/faults/nccl.c") -> Path:
    library = folder / "lib.so"
    command = ["gcc", "-O1", "-shared", "-fPIC", *options, "-o", str(library), str(source)]
    subprocess.run(command, check=True, timeout=60)
    return library
