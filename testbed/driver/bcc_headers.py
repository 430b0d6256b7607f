"""Headers that bcc compiles against: those of the running kernel, else any of Debian's, merged to one folder.

The oracle reads no field of a kernel structure, so headers of another version serve as well.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SYSTEM_PYTHON = "/usr/bin/python3"
_SOURCES = Path("/usr/src")


def _of_this_kernel() -> bool:
    return Path(f"/lib/modules/{os.uname().release}/build").is_dir()


def _parts() -> tuple[Path, Path] | None:
    """Debian's: what all machines share, and what is of this one."""
    for common in sorted(_SOURCES.glob("linux-headers-*-common"), reverse=True):
        version = common.name.removesuffix("-common")
        for machine in ("amd64", "arm64"):
            own = _SOURCES / f"{version}-{machine}"
            if own.is_dir():
                return common, own
    return None


def can_run() -> bool:
    """The system's Python has bcc, and there are headers."""
    if not _of_this_kernel() and _parts() is None:
        return False
    asked = subprocess.run([SYSTEM_PYTHON, "-c", "import bcc"], capture_output=True, check=False)
    return asked.returncode == 0


def environment(folder: Path) -> dict[str, str]:
    """For bcc; a merged tree is made below `folder` where the running kernel has no headers."""
    parts = _parts()
    if _of_this_kernel() or parts is None:
        return dict(os.environ)
    merged = folder / "headers"
    merged.mkdir()
    for part in parts:
        copy = ["cp", "-a", "-s", "--remove-destination", f"{part}/.", str(merged)]
        subprocess.run(copy, check=True, timeout=60)
    return {**os.environ, "BCC_KERNEL_SOURCE": str(merged)}
