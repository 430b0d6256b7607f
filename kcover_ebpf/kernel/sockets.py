"""Decides which processes the socket sampler walks; kernels since 6.1 can walk single processes."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence

from kcover_ebpf.ids import Pid
from kcover_ebpf.kernel.objects import BpfLink, BpfObject, IteratorWalk
from kcover_ebpf.kernel.probes import LoadedFamily
from kcover_ebpf.tunables.host import (
    SOCKET_BYTES_A_PASS,
    SOCKET_WALK_NS_A_PASS,
    UNANNOUNCED_PASSES,
    UNCONNECTED_PASSES,
)

_PROGRAM = "sample_sockets"
_ANNOUNCES = "on_tcp_state"


class SocketSampler:
    """Reads the descriptor iterator, for one process at a time, or for all (before Linux 6.1).

    A walk costs some 15 us, plus 0.1 us per descriptor and 1.2 us per TCP socket. So only processes that may have
    connections to other ranks are walked, and those that never had a TCP socket are walked only occasionally.

    Each owner (a pod) has a budget of records and CPU time per pass. What exceeds it is left to the following
    passes, in turn. A walk over a process with many descriptors continues where it paused.
    """

    def __init__(
        self,
        bpf_object: BpfObject | None,
        link: BpfLink | None,
        owner_ids: Mapping[Pid, int],
        *,
        announced: bool,
        cpu_ns: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        """`link` is the link over all processes; None if the family was refused.

        `owner_ids`: the owner whose budget a process uses; processes without an entry share one. `announced`:
        `has_connection` is called for every connection that is opened or listened for. `cpu_ns`: returns the CPU
        time used so far, in nanoseconds.
        """
        self._owner_ids, self._cpu_ns = owner_ids, cpu_ns
        self._walks: dict[Pid, IteratorWalk] = {}
        self._begun: dict[Pid, int] = {}
        """Process -> pass in which its current walk (`_walks`) began."""
        self._walked: dict[Pid, int] = {}
        """Process -> pass in which its last complete walk began."""
        self._object = bpf_object
        self._unconnected_every = UNCONNECTED_PASSES if announced else UNANNOUNCED_PASSES
        self._every = link
        self._links: dict[Pid, BpfLink] = {}
        self._leaderless: set[Pid] = set()
        self._connected: set[Pid] = set()
        self._due: set[Pid] = set()
        self._by_process = self._knows_processes()

    @classmethod
    def of(cls, families: Sequence[LoadedFamily], owner_ids: Mapping[Pid, int]) -> SocketSampler:
        """The sampler of the family that contains the program; it reads nothing if none does."""
        announced = any(_ANNOUNCES in family.links for family in families)
        for family in families:
            if _PROGRAM in family.links:
                return cls(family.object, family.links[_PROGRAM], owner_ids, announced=announced)
        return cls(None, None, owner_ids, announced=announced)

    def read(self, pids: Collection[Pid], pass_id: int) -> bytes:
        """The records of those of `pids` that are due; of all processes if the kernel walks only all."""
        if self._every is None or not pids:
            return b""
        if not self._by_process:
            return self._every.read_iterator()
        due = [pid for pid in pids if self._is_due(pid, pass_id)]
        # processes that were postponed come first
        due.sort(key=lambda pid: self._walked.get(pid, 0))
        left_bytes: defaultdict[int, int] = defaultdict(lambda: SOCKET_BYTES_A_PASS)
        left_ns: defaultdict[int, int] = defaultdict(lambda: SOCKET_WALK_NS_A_PASS)
        parts: list[bytes] = []
        began_ns = self._cpu_ns()
        for pid in due:
            owner_id = self._owner_ids.get(pid, 0)
            is_over = False
            while not is_over and left_bytes[owner_id] > 0 and left_ns[owner_id] > 0:
                parts.append(self._read(pid, left_bytes[owner_id], pass_id))
                is_over = pid not in self._walks
                ended_ns = self._cpu_ns()
                left_bytes[owner_id] -= len(parts[-1])
                left_ns[owner_id] -= ended_ns - began_ns
                began_ns = ended_ns
            # a walk that has begun is due in each pass
            if not is_over and pid not in self._walks:
                self._due.add(pid)
        return b"".join(parts)

    def _read(self, pid: Pid, most_bytes: int, pass_id: int) -> bytes:
        """Part of the walk over a process; the last part ends the walk."""
        walk = self._walks.get(pid)
        if walk is None:
            self._due.discard(pid)
            walk = self._walks[pid] = self._link_to(pid).walk()
            self._begun[pid] = pass_id
        part = walk.read(most_bytes)
        if walk.is_over:
            self._walked[pid] = self._begun[pid]
            self._end_walk(pid)
        return part

    def _end_walk(self, pid: Pid) -> None:
        self._begun.pop(pid, None)
        walk = self._walks.pop(pid, None)
        if walk is not None:
            walk.close()

    def _is_due(self, pid: Pid, pass_id: int) -> bool:
        is_known = pid in self._links and pid not in self._due and pid not in self._walks
        return (
            pid in self._connected or not is_known or (pid + pass_id) % self._unconnected_every == 0
        )

    def behind(self) -> dict[Pid, int]:
        """Processes not completely walked in the last pass -> pass in which the last complete walk began, or 0."""
        return {pid: self._walked.get(pid, 0) for pid in (*self._walks, *self._due)}

    def has_connection(self, pid: Pid) -> None:
        """Record that a process has or opens a TCP connection: from now on it is walked in every pass."""
        self._connected.add(pid)

    def wants_descriptors(self, pid: Pid) -> None:
        """Request the descriptors of a process in the next pass."""
        self._due.add(pid)

    def lost_leader(self, pid: Pid) -> None:
        """Record that the first thread of a process ended and others continue: it has no descriptors any more."""
        if pid not in self._leaderless:
            self._drop_link(pid)
            self._leaderless.add(pid)

    def forget(self, pid: Pid) -> None:
        """Drop all state of a process that ended or is no longer watched."""
        for kept in (self._leaderless, self._connected, self._due):
            kept.discard(pid)
        self._walked.pop(pid, None)
        self._drop_link(pid)

    def _drop_link(self, pid: Pid) -> None:
        self._end_walk(pid)
        link = self._links.pop(pid, None)
        if link is not None:
            link.destroy()

    def close(self) -> None:
        """Drop the state of all processes and close their walks."""
        for pid in list(self._links):
            self.forget(pid)

    def _link_to(self, pid: Pid) -> BpfLink:
        if pid not in self._links:
            assert self._object is not None
            # By the first thread: all threads share its descriptors, except rare clones without
            # CLONE_FILES.
            whom = {"pid" if pid in self._leaderless else "tid": pid}
            self._links[pid] = self._object.attach_task_iterator(_PROGRAM, **whom)
        return self._links[pid]

    def _knows_processes(self) -> bool:
        if self._object is None:
            return False
        try:
            self._object.attach_task_iterator(_PROGRAM, pid=os.getpid()).destroy()
        except OSError:
            return False
        return True
