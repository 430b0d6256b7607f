"""A process and all its descendants, as the watched job.

The pids in /proc are listed at each pass, but only new processes are read: a process changes its parent only when
that parent ends, and by then it is known. Two kinds of processes are missed: those whose parent ended between their
creation and the next pass, and those whose pid belonged to a process that existed at the previous pass.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Mapping
from typing import NamedTuple

from kcover_ebpf.errors import UsageError
from kcover_ebpf.host.bounded import read_bytes
from kcover_ebpf.host.proc_text import split_stat, status_numbers, status_words
from kcover_ebpf.host.procfs import every_process


class Stat(NamedTuple):
    """The fields of /proc/PID/stat that identify a process (proc_pid_stat(5))."""

    ppid: int
    start_ticks: int
    """Start in clock ticks since boot; together with the pid it identifies a process."""
    alive: bool
    """False for a zombie, unless other threads of it still run."""
    group: int
    """Process group id, in the pid namespace of the reader."""


def read_stat(pid: int) -> Stat | None:
    """Identity and liveness of a process; None if there is none."""
    try:
        _, words = split_stat(read_bytes(f"/proc/{pid}/stat").decode("utf-8", "replace"))
    except OSError:
        return None
    alive = words[0] not in ("Z", "X") or int(words[17]) > 1
    return Stat(int(words[1]), int(words[19]), alive, int(words[2]))


def is_same_alive(pid: int, start_ticks: int) -> bool:
    """True while the process with this pid and start is alive; costs one read of a small file."""
    stat = read_stat(pid)
    return stat is not None and stat.alive and stat.start_ticks == start_ticks


class Witness:
    """A descriptor of one member of a job, so that checking that the job is alive costs one system call.

    A descriptor stays with its process when the pid is reused (pidfd_open(2)). It becomes readable once the last
    thread of the process has ended.
    """

    def __init__(self) -> None:
        self.pid = 0
        """Pid of the process whose descriptor is open; 0: none."""
        self._fd: int | None = None
        self._ends = select.poll()

    def hold(self, pid: int) -> None:
        """Watch this process instead of the previous one; if it no longer exists, it counts as dead."""
        self.close()
        self.pid = pid
        with contextlib.suppress(OSError):
            self._fd = os.pidfd_open(pid)
            self._ends.register(self._fd, select.POLLIN)

    @property
    def lives(self) -> bool:
        """False for a zombie, unless other threads of it still run, and if no process is watched."""
        return self._fd is not None and not self._ends.poll(0)

    def close(self) -> None:
        """Close the descriptor; `lives` is False afterwards."""
        if self._fd is not None:
            self._ends.unregister(self._fd)
            os.close(self._fd)
        self.pid, self._fd = 0, None

    def __del__(self) -> None:
        self.close()


def living_in_group(group: int) -> int | None:
    """A live process of a process group; None if there is none."""
    for pid in every_process():
        stat = read_stat(pid)
        if stat is not None and stat.alive and stat.group == group:
            return pid
    return None


def check_pid(pid: int) -> None:
    """Raise `UsageError`, which says what to pass instead, unless `pid` is a live user process."""
    stat = read_stat(pid)
    if stat is None or not stat.alive:
        raise UsageError(f"no process {pid}; `ps -ef` lists them")
    try:
        status = read_bytes(f"/proc/{pid}/status")
    except OSError as error:
        raise UsageError(f"no process {pid}; it has just exited") from error
    (owner,) = status_numbers(status, b"Tgid")
    if owner != pid:
        raise UsageError(f"{pid} is a thread; name its process, {owner}")
    if not status_words(status, b"VmSize") and stat.ppid in (0, 2) and pid != 1:
        raise UsageError(f"{pid} is a kernel thread; name a process of the job")


def ancestors(pid: int) -> set[int]:
    """`pid` and all its ancestors."""
    chain: set[int] = set()
    while pid > 0 and pid not in chain:
        chain.add(pid)
        stat = read_stat(pid)
        pid = stat.ppid if stat else 0
    return chain


class ProcessTree:
    """Processes and their descendants, also those whose parent has died since it was known."""

    def __init__(self, root: int | None = None, exclude: frozenset[int] = frozenset()) -> None:
        """`root`: the first process; None: those named by `follow`.

        `exclude`: the sensor's own processes; their descendants are not part of the job either.
        """
        self._root = root
        """Pid of a first process that no listing has shown yet. Later its number may belong to another process."""
        self._exclude = exclude
        self._seen: set[int] = set()
        self._members: dict[int, int] = {}
        """pid -> start_ticks; contains an excluded root too, so that its descendants are found."""

    def pids(self) -> set[int]:
        """The current members; each call lists /proc."""
        self._forget_dead()
        listed = set[int](every_process())
        fresh = listed - self._seen
        self._seen = listed
        self._adopt({pid: stat for pid in fresh if (stat := read_stat(pid)) is not None})
        return self._members.keys() - self._exclude

    def identities(self) -> dict[int, int]:
        """The current members as pid -> start_ticks, for another process to `follow`; each call lists /proc."""
        return {pid: self._members[pid] for pid in self.pids()}

    def follow(self, identities: Mapping[int, int]) -> None:
        """Take over processes that another one has known: pid -> start_ticks."""
        self._members.update(identities)

    def _forget_dead(self) -> None:
        for pid, start_ticks in list(self._members.items()):
            if not is_same_alive(pid, start_ticks):
                del self._members[pid]
                self._seen.discard(pid)

    def _adopt(self, fresh: dict[int, Stat]) -> None:
        children: dict[int, list[int]] = {}
        for pid, stat in fresh.items():
            # An excluded child is the sensor itself, and its children are not part of the job.
            if pid not in self._exclude:
                children.setdefault(stat.ppid, []).append(pid)
        waiting = [pid for member in self._members for pid in children.get(member, ())]
        if self._root is not None and self._root in fresh:
            waiting.append(self._root)
            self._root = None
        while waiting:
            pid = waiting.pop()
            if fresh[pid].alive:
                self._members[pid] = fresh[pid].start_ticks
                waiting += children.get(pid, ())


class PidTarget(ProcessTree):
    """A process and its descendants, as the watched job."""

    def __init__(self, pid: int, name: str, exclude: frozenset[int] = frozenset()) -> None:
        """`exclude`: as for `ProcessTree`."""
        super().__init__(pid, exclude)
        self.pid = pid
        self.name = name
        self._witness = Witness()

    def gone(self) -> bool:
        """True when no member is left. One live member is enough to know, so most calls are cheap."""
        if self._witness.lives:
            return False
        members = self.pids()
        self._witness.hold(min(members, default=0))
        return not members
