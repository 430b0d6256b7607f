"""Remove what killed benches left behind: processes, namespaces, mounts, control groups."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from tools.faultbench.cgroups import ROOT, dissolve
from tools.faultbench.live import kill_tagged
from tools.workloads import network

PREFIX = "kfb"


def tag(owner_pid: int, number: int) -> str:
    """The name prefix of a run; short, because interface names have 15 letters at most."""
    return f"{PREFIX}{owner_pid}-{number}"


def owner_is_dead(name: str) -> bool:
    """Whether a name was given by a bench that no longer runs."""
    match = re.match(rf"{PREFIX}(\d+)-", name)
    return bool(match) and not Path(f"/proc/{match[1]}").exists() if match else False


def remove_leftovers(work: Path) -> None:
    """Clean up after benches that were killed; those that still run are left alone."""
    names = {path.name for path in work.glob(f"{PREFIX}*")}
    groups = [path for path in ROOT.rglob(f"{PREFIX}*") if path.is_dir()]
    names |= {path.name for path in groups}
    names |= {path.name for path in Path("/run/netns").glob(f"{PREFIX}*")}
    dead = {match[0] for name in names if owner_is_dead(name) and (match := run_name(name))}
    for path in groups:
        if owner_is_dead(path.name):
            dissolve(path, path.parent)
    for name in dead:
        kill_tagged(name + ";")
        for mount in ("fuse", "ext4"):
            place = work / name / mount
            if place.exists() or mount == "fuse":
                subprocess.run(["umount", "-f", "-l", str(place)], check=False, capture_output=True)
        network.remove(name)
        shutil.rmtree(work / name, ignore_errors=True)


def run_name(name: str) -> re.Match[str] | None:
    """The run's own name at the start of a longer one."""
    return re.match(rf"{PREFIX}\d+-\d+", name)
