"""Finds the control groups of a pod's containers on this node, and the processes in them.

Works on the host, and in a pod that sees the host's processes and /sys/fs/cgroup. Directories are searched for by
the pod's uid: /proc/PID/cgroup of a process that is just being started shows the group that it was started from.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from kcover_ebpf.api.container_cgroup import containers_of
from kcover_ebpf.api.job_kinds import with_ranks
from kcover_ebpf.api.pods import Pod
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.host import cgroups, procfs
from kcover_ebpf.host.host_programs import host_root
from kcover_ebpf.host.process_tree import read_stat
from kcover_ebpf.host.procfs import namespace_numbers, task_state
from kcover_ebpf.ids import Pid
from kcover_ebpf.tunables.agent import CGROUP_ROOTS_S, CONTAINER_CREATED_NS

_DEEPEST_ROOT = 4
_QOS = ("", "burstable", "besteffort")
# name of a process that becomes the container's program later (runc: nsexec.c)
_RUNTIME_STAGES = ("runc:[", "youki:[")
_RUNTIME_NAMES = ("crun", "memfd:crun_clon")
_CLONED_CRUN = "/memfd:crun_cloned"
"""crun keeps its own name, or has that of the memory file from which it runs a copy of itself (cloned_binary.c): the
file's name since Linux 6.14, before that the number of a descriptor."""


@dataclass(frozen=True, slots=True)
class RunningContainer:
    """A container that has a control group now."""

    pod_uid: str
    id: str
    path: Path


class Containers:
    """Finds control groups of containers; caches only the directories in which kubelets keep theirs."""

    def __init__(self, mounts: Sequence[Path] | None = None) -> None:
        """`mounts`: cgroup hierarchies, v2 first; None: all that are mounted here."""
        self._mounts = mounts
        self._roots: list[Path] = []
        self._next_search_s = 0.0

    def of_pod(self, uid: str) -> list[RunningContainer]:
        """Containers of a pod that have a control group now, the sandbox included; empty if there are none."""
        found = self._of_pod(uid)
        if not found and time.monotonic() >= self._next_search_s:
            self._next_search_s = time.monotonic() + CGROUP_ROOTS_S
            self._roots = [
                root
                for mount in self._all_mounts()
                for root in _kubelet_roots(mount, _DEEPEST_ROOT)
            ]
            found = self._of_pod(uid)
        return found

    def _of_pod(self, uid: str) -> list[RunningContainer]:
        for root in self._roots:
            for folder in _pod_folders(root, uid):
                found = list(_containers_in(folder, uid))
                # with several hierarchies, any one that contains its processes will do
                if any(cgroups.processes(container.path) for container in found):
                    return found
        return []

    def _all_mounts(self) -> Sequence[Path]:
        if self._mounts is not None:
            return self._mounts
        root = host_root()
        process = Path("/proc/1" if root != Path("/") else "/proc/self")
        text = (process / "mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
        return [root / hierarchy.mount.relative_to("/") for hierarchy in cgroups.hierarchies(text)]

    def of_ranks(self, pod: Pod) -> list[RunningContainer]:
        """Those containers of the pod that may run ranks and have a control group now."""
        ranks = {container.id for container in with_ranks(pod) if container.id}
        return (
            [container for container in self.of_pod(pod.uid) if container.id in ranks]
            if ranks
            else []
        )

    def of_work(self, pod: Pod) -> list[RunningContainer]:
        """All containers except the sandbox, also one so new that the API server does not list it yet."""
        known = {container.id for container in pod.containers}
        found = self.of_pod(pod.uid)
        sandbox = _sandbox(found)
        return [
            container for container in found if container.id in known or container is not sandbox
        ]

    def at_work(self, pod: Pod) -> list[RunningContainer]:
        """Those of `of_work` that may be stopped: a container that is disturbed while it is being created fails.

        A pod that is never restarted then fails with it (seen with kubelet 1.36, containerd 1.6).
        """
        return [container for container in self.of_work(pod) if not _is_being_made(container)]


def processes(found: Iterable[RunningContainer]) -> set[int]:
    """Pids now in these containers, without zombies."""
    return {pid for container in found for pid in cgroups.processes(container.path)}


def inits(container: RunningContainer) -> set[int]:
    """Processes whose death ends the container: PID 1 of its pid namespace, or all if it shares a namespace."""
    pids = cgroups.processes(container.path)
    first = {pid for pid in pids if _number_inside(pid) == 1}
    return first or pids


def _is_being_made(container: RunningContainer) -> bool:
    """True until the container's own program runs: until then all its processes are the runtime's, and young."""
    pids = cgroups.processes(container.path)
    return bool(pids) and all(map(_is_of_runtime, pids))


def _is_of_runtime(pid: int) -> bool:
    name = procfs.comm(pid)
    try:
        program = os.fspath(Path(f"/proc/{pid}/exe").readlink())
    except OSError:
        return False
    begun_ns = procfs.start_ns(Pid(pid))
    # a program may use this name, too: then it is overlooked for this minute only
    is_young = begun_ns is not None and procfs.boottime_ns() - begun_ns < CONTAINER_CREATED_NS
    named = name in _RUNTIME_NAMES or name.startswith(_RUNTIME_STAGES)
    return is_young and (named or program.startswith(_CLONED_CRUN))


def is_stopped(pid: int) -> bool:
    """True for a process that cannot run user code now: stopped, traced, or gone."""
    return task_state(pid) in ("T", "t", "Z", "X", "")


def start_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot, which with the pid identifies it; None if it is gone."""
    stat = read_stat(pid)
    return None if stat is None else stat.start_ticks


def _kubelet_roots(folder: Path, depth: int) -> Iterator[Path]:
    for child in _folders(folder):
        name = child.name
        if name == "kubepods" or (name.endswith("kubepods.slice") and "pod" in name):
            yield child
        elif depth > 1:
            yield from _kubelet_roots(child, depth - 1)


def _pod_folders(root: Path, uid: str) -> Iterator[Path]:
    for qos in _QOS:
        yield root / qos / f"pod{uid}"
        base = root.name.removesuffix(".slice") + (f"-{qos}" if qos else "")
        parent = root / f"{base}.slice" if qos else root
        yield parent / f"{base}-pod{uid.replace('-', '_')}.slice"


def _containers_in(folder: Path, uid: str) -> Iterator[RunningContainer]:
    for child in _folders(folder):
        where = containers_of(os.fspath(child))
        if where and where[0].pod_uid == uid.lower() and where[0].container_id is not None:
            yield RunningContainer(uid, where[0].container_id, child)


def _folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [Path(entry) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _sandbox(found: Sequence[RunningContainer]) -> RunningContainer | None:
    """A pod's sandbox is started before all its containers, and lives as long as the pod."""
    begun = {container.id: start for container in found if (start := _begun(container)) is not None}
    return min(
        (container for container in found if container.id in begun),
        key=lambda container: begun[container.id],
        default=None,
    )


def _begun(container: RunningContainer) -> int | None:
    starts = [start_ticks(pid) for pid in cgroups.processes(container.path)]
    return min((start for start in starts if start is not None), default=None)


def _number_inside(pid: int) -> int | None:
    """Pid of the process in its innermost pid namespace."""
    numbers = namespace_numbers(pid)
    # a single number is that of our own namespace: the container shares it
    return numbers[-1] if len(numbers) > 1 else None
