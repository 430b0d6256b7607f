"""What phases need of this host, found out by trying."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from bench.lifebench.phase import Phase

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / ".venv/bin"


@cache
def missing(need: str) -> str:
    """Why a capability is not here, "" if it is."""
    match need:
        case "torch":
            return (
                "" if _runs("/usr/bin/python3", "-c", "import torch.distributed") else "no PyTorch"
            )
        case "mpi":
            found = shutil.which("mpirun") and _runs("/usr/bin/python3", "-c", "import mpi4py")
            return "" if found else "no Open MPI with mpi4py"
        case "fuse":
            return "" if Path("/dev/fuse").exists() else "no /dev/fuse"
        case "tty":
            return "" if Path("/dev/ptmx").exists() else "no pseudo terminals"
        case "mount":
            return "" if _runs("unshare", "--mount", "true") else "no mount namespaces"
        case "netns":
            return "" if _runs("unshare", "--net", "true") else "no network namespaces"
        case _:
            path = os.pathsep.join([os.environ.get("PATH", ""), str(PROGRAMS)])
            return "" if shutil.which(need, path=path) else f"{need} is not installed"


def _runs(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def not_runnable(phase: Phase) -> str:
    """Why a phase cannot be run on this host, "" if it can."""
    needs = [*phase.needs, *(["netns"] if phase.hosts > 1 else [])]
    needs += ["gcc"] if phase.program.endswith(".c") else []
    needs += [phase.launcher.replace("run", "")] if phase.launcher in ("mpi", "torchrun") else []
    return next(filter(None, map(missing, needs)), "")
