"""A process and all its descendants, as the job under watch.

/proc is listed at each pass, but only processes that were not there before are read: a process
changes its parent only when that one ends, and then it is known already. Missed are a process whose
parent ended between its birth and the next pass, and one that got the number of a process that was
there at the pass before.
"""

from __future__ import annotations

import contextlib
import os
import select
from typing import NamedTuple

from kcover_ebpf.errors import UsageError
from kcover_ebpf.host.bounded import read_bytes
from kcover_ebpf.host.proc_text import split_stat, status_numbers, status_words
from kcover_ebpf.host.procfs import every_process


class Stat(NamedTuple):
    """What identifies a process (proc_pid_stat(5))."""

    ppid: int
    start_ticks: int
    """Start in clock ticks since boot; with the pid it is the identity of a process."""
    alive: bool
    """False for a zombie, unless threads of it still run."""
    group: int
    """Number of its process group."""


def read_stat(pid: int) -> Stat | None:
    """Parent, start and liveness of a process; None if there is none."""
    try:
        _, words = split_stat(read_bytes(f"/proc/{pid}/stat").decode("utf-8", "replace"))
    except OSError:
        return None
    alive = words[0] not in ("Z", "X") or int(words[17]) > 1
    return Stat(int(words[1]), int(words[19]), alive, int(words[2]))


def is_same_alive(pid: int, start_ticks: int) -> bool:
    """True while the process that has this number and start lives; costs one small file."""
    stat = read_stat(pid)
    return stat is not None and stat.alive and stat.start_ticks == start_ticks


class Witness:
    """One process of a job, known by a descriptor: to ask whether it lives costs one call and no file of /proc.

    A descriptor stays that of its process when the number is used again (pidfd_open(2)); it can be read once the last
    thread of the process has ended.
    """

    def __init__(self) -> None:
        self.pid = 0
        """0: none is held."""
        self._fd: int | None = None
        self._ends = select.poll()

    def hold(self, pid: int) -> None:
        """This one from now on, in place of the one before; one that is gone does not live."""
        self.close()
        self.pid = pid
        with contextlib.suppress(OSError):
            self._fd = os.pidfd_open(pid)
            self._ends.register(self._fd, select.POLLIN)

    @property
    def lives(self) -> bool:
        """False for a zombie, unless threads of it still run, and where none is held."""
        return self._fd is not None and not self._ends.poll(0)

    def close(self) -> None:
        """Hold none any more."""
        if self._fd is not None:
            self._ends.unregister(self._fd)
            os.close(self._fd)
        self.pid, self._fd = 0, None

    def __del__(self) -> None:
        self.close()


def living_in_group(group: int) -> int | None:
    """A process of a process group that lives; None if there is none."""
    for pid in every_process():
        stat = read_stat(pid)
        if stat is not None and stat.alive and stat.group == group:
            return pid
    return None


def check_pid(pid: int) -> None:
    """Raise `UsageError`, saying what to ask for instead, unless `pid` is a live user process."""
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
    """`pid` and the chain of its parents."""
    chain: set[int] = set()
    while pid > 0 and pid not in chain:
        chain.add(pid)
        stat = read_stat(pid)
        pid = stat.ppid if stat else 0
    return chain


class PidTarget:
    """A process and its descendants, also those whose parent has died since the first pass."""

    def __init__(self, pid: int, name: str, exclude: frozenset[int] = frozenset()) -> None:
        """`exclude`: the sensor's own processes; what they started is no part of the job either."""
        self.pid = pid
        self.name = name
        self._exclude = exclude
        self._seen: set[int] = set()
        self._members: dict[int, int] = {}
        """pid -> start_ticks; an excluded root, too, so that its descendants are found."""
        self._rooted = False
        self._witness = Witness()

    def pids(self) -> set[int]:
        """Members now."""
        self._forget_dead()
        listed = set[int](every_process())
        fresh = listed - self._seen
        self._seen = listed
        self._adopt({pid: stat for pid in fresh if (stat := read_stat(pid)) is not None})
        return self._members.keys() - self._exclude

    def gone(self) -> bool:
        """True when no member is left; one that lives is enough to know, so most calls are cheap."""
        if self._witness.lives:
            return False
        members = self.pids()
        self._witness.hold(min(members, default=0))
        return not members

    def _forget_dead(self) -> None:
        for pid, start_ticks in list(self._members.items()):
            if not is_same_alive(pid, start_ticks):
                del self._members[pid]
                self._seen.discard(pid)

    def _adopt(self, fresh: dict[int, Stat]) -> None:
        children: dict[int, list[int]] = {}
        for pid, stat in fresh.items():
            children.setdefault(stat.ppid, []).append(pid)
        waiting = [pid for member in self._members for pid in children.get(member, ())]
        if self.pid in fresh and not self._rooted:
            self._rooted = True
            waiting.append(self.pid)
        while waiting:
            pid = waiting.pop()
            # An excluded child is the sensor itself, and its children are none of the job's.
            if fresh[pid].alive and (pid == self.pid or pid not in self._exclude):
                self._members[pid] = fresh[pid].start_ticks
                waiting += children.get(pid, ())
