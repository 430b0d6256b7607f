"""The cgroups of a test bed, in every hierarchy of the host: v1, v2 or both.

Everything that a test bed starts is below one separate cgroup, and a process cannot leave it by
dying or forking. So what is left over is found without a list and without comparing names.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from testbed.cluster.errors import Failure

KILL_PATIENCE_S = 20.0


def hierarchies() -> list[Path]:
    """Mount points of all cgroup hierarchies; cgroup v2 is the first where there is one."""
    found: list[Path] = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, kind, *_ = line.split()
        if kind in {"cgroup", "cgroup2"} and Path(where) not in found:
            found.insert(0 if kind == "cgroup2" else len(found), Path(where))
    if not found:
        raise Failure("no cgroup file system is mounted on this machine")
    return found


def create(cgroup: str) -> None:
    """Make the cgroup in every hierarchy, with the parents' processors and memory nodes."""
    for top in hierarchies():
        for path in reversed([top / cgroup, *(top / cgroup).parents]):
            if not path.is_relative_to(top) or path == top:
                continue
            path.mkdir(exist_ok=True)
            for name in ("cpuset.cpus", "cpuset.mems"):
                file = path / name
                # v1: empty means none, and then no process can enter. v2: empty means all.
                if file.exists() and not file.read_text().strip() and not _is_v2(path):
                    file.write_text((path.parent / name).read_text())


def weigh(cgroup: str, processors: int) -> None:
    """Give the cgroup the weight that a node gives its pods: 1024 shares for each processor.

    Without it a whole test bed counts as much as one single process of the host.
    """
    for top in hierarchies():
        for name, value in (("cpu.shares", 1024), ("cpu.weight", 100)):
            file = top / cgroup / name
            if file.exists():
                file.write_text(str(value * processors))


def procs_file(cgroup: str) -> Path:
    """Writing 0 to it moves the writer into the cgroup, in the hierarchy that we track."""
    return hierarchies()[0] / cgroup / "cgroup.procs"


def members(cgroup: str) -> set[int]:
    """The processes in the cgroup and below it, in any hierarchy."""
    pids: set[int] = set()
    for top in hierarchies():
        for group in _groups(top / cgroup):
            with contextlib.suppress(OSError):  # gone in between
                pids.update(map(int, (group / "cgroup.procs").read_text().split()))
    pids.discard(0)  # of another pid namespace: none that we started
    return pids


def kill(cgroup: str) -> None:
    """End all members; raises Failure with those that do not end (state D) in 20 s."""
    deadline = time.monotonic() + KILL_PATIENCE_S
    while alive := members(cgroup):
        _thaw(cgroup)
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise Failure(f"processes that do not end by SIGKILL: {sorted(alive)}; try again later")
        time.sleep(0.05)


def remove(cgroup: str) -> None:
    """Remove the cgroup and all below it; it must be empty."""
    for top in hierarchies():
        folders = sorted((top / cgroup).rglob("*/"), reverse=True)
        for folder in [*folders, top / cgroup]:
            if folder.is_dir():
                _remove_folder(folder)


def _remove_folder(folder: Path) -> None:
    """A cgroup stays busy for a moment after its last process has gone."""
    deadline = time.monotonic() + KILL_PATIENCE_S
    while True:
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise Failure(f"{folder} cannot be removed: {error.strerror}") from error
            time.sleep(0.05)
        else:
            return


def _thaw(cgroup: str) -> None:
    """A frozen process ends only after it was thawed (v1)."""
    for top in hierarchies():
        for group in _groups(top / cgroup):
            for name, text in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
                with contextlib.suppress(OSError):
                    if (group / name).exists():
                        (group / name).write_text(text)


def _groups(top: Path) -> Iterator[Path]:
    """A cgroup and all below it, but those that go meanwhile: a dying runtime still removes its containers' groups."""
    for folder, _, _ in os.walk(top):
        yield Path(folder)


def _is_v2(folder: Path) -> bool:
    return (folder / "cgroup.controllers").exists()
