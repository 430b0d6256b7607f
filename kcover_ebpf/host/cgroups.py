"""Control groups as directories: find, list, freeze, kill, create and remove them.

Supports cgroup v2, v1 and both at once ("hybrid"). A job's group is created only in v2, because only v2 can kill a
group as a whole; a group to watch may be in any hierarchy. Source: the kernel's
Documentation/admin-guide/cgroup-v2.rst and proc_pid_mountinfo(5). For ending the processes of a v1 group see
`host.terminate`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import UsageError
from kcover_ebpf.host import proc_text
from kcover_ebpf.host.process_tree import Witness
from kcover_ebpf.tunables.host import FREEZE_PATIENCE_S, FREEZE_POLL_S

_GONE = (errno.ENOENT, errno.ENODEV)


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One mounted hierarchy of control groups."""

    mount: Path
    root: str
    """The part of the hierarchy that is mounted; "/" except for bind mounts of containers."""
    unified: bool
    """True for version 2, in which all controllers share one hierarchy."""

    def directory(self, inside: str) -> Path:
        """Directory of the group that /proc/PID/cgroup calls `inside`; it need not exist."""
        if self.root != "/":
            inside = inside.removeprefix(self.root)
        return self.mount / inside.lstrip("/")


def hierarchies(mountinfo: str) -> tuple[Hierarchy, ...]:
    """The cgroup mounts in the text of /proc/PID/mountinfo, v2 first."""
    found = []
    for mount_line in proc_text.mountinfo(mountinfo):
        if mount_line.kind in ("cgroup", "cgroup2"):
            root, mount = (
                proc_text.unescaped(mount_line.root),
                proc_text.unescaped(mount_line.place),
            )
            found.append(Hierarchy(Path(mount), root, mount_line.kind == "cgroup2"))
    return tuple(sorted(found, key=lambda hierarchy: not hierarchy.unified))


def _mounted() -> tuple[Hierarchy, ...]:
    text = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    return hierarchies(text)


def find(text: str) -> Path:
    """The directory of a group that a user named; raises `UsageError` if there is none.

    The name may be a directory or the path that /proc/PID/cgroup shows (searched in v2 first).
    """
    named = Path(text)
    mounted = _mounted()
    if text and _is_group(named):
        path = named.resolve()
        if any(path.is_relative_to(hierarchy.mount) for hierarchy in mounted):
            return path
    for hierarchy in mounted:
        path = hierarchy.directory(text)
        if text and ".." not in path.parts and _is_group(path):
            return path
    below = mounted[0].mount if mounted else "a cgroup mount (there is none)"
    raise UsageError(f"no cgroup {text!r}; name a directory below {below}")


def _is_group(path: Path) -> bool:
    try:
        return (path / "cgroup.procs").exists()
    except (OSError, ValueError):
        return False


def is_root(path: Path) -> bool:
    """True for the top group of a hierarchy, as far as we see it: the whole machine or container."""
    return any(path == hierarchy.mount for hierarchy in _mounted())


def make_for_job(prefix: str, pid: int) -> Path | None:
    """Create an empty v2 group PREFIX-PID below our own or at the top; None if that is refused.

    Also removes empty groups with this prefix whose process and supervisor were both killed.
    """
    name = f"{prefix}-{pid}"
    for hierarchy in _mounted():
        if not hierarchy.unified:
            continue
        for parent in (hierarchy.directory(_own_v2()), hierarchy.mount):
            path = parent / name
            sweep(parent, prefix)
            try:
                path.mkdir(exist_ok=True)
                # Any type but "domain" accepts no processes, because its parent is threaded.
                if (path / "cgroup.type").read_text().strip() == "domain":
                    return path
                path.rmdir()
            except OSError:
                continue
    return None


def sweep(parent: Path, prefix: str) -> None:
    """Remove the groups PREFIX-PID of processes that no longer exist."""
    for path in parent.glob(f"{prefix}-*"):
        pid = path.name.removeprefix(f"{prefix}-")
        if pid.isdecimal() and not Path("/proc", pid).exists():
            remove(path)


def own_groups() -> tuple[Path, ...]:
    """The directory of our own group in each mounted v2 hierarchy; in a container it may be another group's."""
    return tuple(hierarchy.directory(_own_v2()) for hierarchy in _mounted() if hierarchy.unified)


def _own_v2() -> str:
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        if line.startswith("0::"):
            return line.removeprefix("0::")
    return "/"


def memory_limit_bytes() -> int | None:
    """The smallest memory.max of our own v2 group and its ancestors, in bytes; None if none is visible."""
    limits = []
    for hierarchy in _mounted():
        path = hierarchy.directory(_own_v2())
        for group in (path, *path.parents) if hierarchy.unified else ():
            with contextlib.suppress(
                OSError, ValueError
            ):  # the top group has no limit, others may have "max"
                limits.append(int((group / "memory.max").read_text(encoding="ascii")))
    return min(limits, default=None)


def processes(path: Path) -> set[int]:
    """Pids in the group and in all groups below it, without zombies; empty once the group is gone."""
    found: set[int] = set()
    waiting = [path]
    while waiting:
        group = waiting.pop()
        try:
            found.update(int(word) for word in (group / "cgroup.procs").read_bytes().split())
            # kernfs counts subdirectories in the link count, so most groups need no listing
            if group.stat().st_nlink > 2:
                waiting += _below(group)
        except OSError as error:
            # EOPNOTSUPP: a threaded group; its processes are listed in the group above.
            if error.errno not in (*_GONE, errno.EOPNOTSUPP):
                raise
    found.discard(0)  # a process outside our pid namespace
    return found


def _below(path: Path) -> list[Path]:
    with os.scandir(path) as entries:
        return [Path(entry) for entry in entries if entry.is_dir()]


def join(path: Path) -> None:
    """Move the calling process into the group."""
    (path / "cgroup.procs").write_text("0", encoding="ascii")


def can_kill(path: Path) -> bool:
    """True if the group can be frozen and killed as a whole (cgroup.kill: v2, Linux 5.14)."""
    return (path / "cgroup.kill").exists()


def kill_as_one(path: Path) -> None:
    """Freeze the group, so that no process sees another one die, then kill all of it at once.

    If it is not frozen within half a second (uninterruptible calls), it is killed anyway.
    """
    (path / "cgroup.freeze").write_text("1", encoding="ascii")
    deadline = time.monotonic() + FREEZE_PATIENCE_S
    while not _event(path, "frozen") and time.monotonic() < deadline:
        time.sleep(FREEZE_POLL_S)
    (path / "cgroup.kill").write_text("1", encoding="ascii")
    (path / "cgroup.freeze").write_text("0", encoding="ascii")


def _event(path: Path, name: str) -> bool:
    return f"{name} 1" in (path / "cgroup.events").read_text().splitlines()


def remove(path: Path) -> bool:
    """Remove the group and those below it; False while there are processes in it."""
    try:
        if not all(remove(group) for group in _below(path)):
            return False
        path.rmdir()
    except OSError as error:
        return error.errno in _GONE
    return True


class CgroupTarget:
    """The processes of one group, as the watched job."""

    def __init__(self, path: Path, name: str, exclude: frozenset[int] = frozenset()) -> None:
        """`exclude`: the sensor's own processes, which may be in the group but are not part of the job."""
        self.path = path
        self.name = name
        self._exclude = exclude
        self._witness = Witness()

    def pids(self) -> set[int]:
        """The current members; empty once the group is gone."""
        members = processes(self.path) - self._exclude
        if not (self._witness.pid in members and self._witness.lives):
            self._witness.hold(min(members, default=0))
        return members

    def gone(self) -> bool:
        """True when no member is left.

        The kernel walks every thread of a group to list its processes. So this only checks that one member of the
        last listing is alive. A member that has moved to another group counts until the next listing.
        """
        return not self._witness.lives and not self.pids()
