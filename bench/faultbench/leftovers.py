"""Remove what killed benches left behind: processes, namespaces, mounts, control groups."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from bench.faultbench.cgroups import ROOT, UNIFIED, dissolve
from bench.faultbench.live import kill_tagged
from bench.faultbench.prepare import SWAP_NOTE
from testbed.workloads import network

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
    groups = list(groups_below(ROOT))
    names |= {path.name for path in groups}
    names |= {path.name for path in Path("/run/netns").glob(f"{PREFIX}*")}
    dead = {match[0] for name in names if owner_is_dead(name) and (match := run_name(name))}
    for path in groups:
        if owner_is_dead(path.name):
            dissolve(path, path.parent)
    for name in dead:
        kill_tagged(name + ";")
        release(work / name)
        network.remove(name)
        shutil.rmtree(work / name, ignore_errors=True)
    for group in UNIFIED.glob("kcover-run-*"):  # the sensor's own, if it was killed with its bench
        if not Path("/proc", group.name.removeprefix("kcover-run-")).exists():
            with contextlib.suppress(OSError):  # processes are left in it
                group.rmdir()


def groups_below(root: Path) -> Iterator[Path]:
    """The control groups of benches; others come and go while the tree is read."""
    for parent, folders, _ in os.walk(root):
        yield from (Path(parent, name) for name in folders if name.startswith(PREFIX))


def run_name(name: str) -> re.Match[str] | None:
    """The run's own name at the start of a longer one."""
    return re.match(rf"{PREFIX}\d+-\d+", name)


def release(folder: Path) -> None:
    """Give back what a dead run's folder holds: swap, mounts, suspended or not."""
    commands = [["fsfreeze", "--unfreeze", str(folder / "ext4")]]
    commands += [["umount", "-f", "-l", str(folder / mount)] for mount in ("fuse", "ext4")]
    if (folder / SWAP_NOTE).exists():
        device = (folder / SWAP_NOTE).read_text()
        commands += [["swapoff", device], ["zramctl", "--reset", device]]
    for command in commands:
        subprocess.run(command, check=False, capture_output=True)  # most are not there to release
