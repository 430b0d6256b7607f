"""Processes of a job that have the other end of a file open that one of them waits for, at one moment.

The index is built once: a container of thousands of processes that wait for one pipe must not cost their square.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property

from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.diagnosis.membership.endpoints import EndpointIndex
from kcover_ebpf.diagnosis.membership.members import Members
from kcover_ebpf.facts.host import WaitedFile
from kcover_ebpf.ids import Inode, Pid


class FileHolders:
    """Index of open files, for the members at the first query."""

    def __init__(self, members: Members, endpoints: EndpointIndex) -> None:
        self._members, self._ends = members, endpoints

    def of(self, pid: Pid, waited: WaitedFile) -> tuple[Pid, ...]:
        """Living processes of the job that have the other end of a file open: of a pidfd, the process itself."""
        if waited.process is not None:
            return (waited.process,) if self._is_owned(waited.process) else ()
        process = self._members.views[pid]
        socket = process.sockets.get(waited.fd)
        if socket is not None:
            peer = self._ends.peer(socket)
            return () if peer is None else (peer,)
        return tuple(sorted(self._opened_by.get(_far_inode(process, waited), set()) - {pid}))

    def _is_owned(self, pid: Pid) -> bool:
        awaited = self._members.views.get(pid)
        membership = None if awaited is None else awaited.membership
        return membership is not None and membership.owner is not None

    def drained_ns(self, pid: Pid, fd: int) -> int:
        """When the reader of a socket last took something of what the process wrote to it, boottime; 0 if never.

        What the kernel of a TCP reader took is in its acknowledgements, seldom while the window is nearly closed; what
        the program took is known of processes of the job.
        """
        process = self._members.views[pid]
        taken_ns, socket = process.drains.taken_ns(fd), process.sockets.get(fd)
        reader = None if socket is None else self._ends.peer(socket)
        if socket is None or reader is None:
            return taken_ns
        far = self._members.views[reader]
        ends = socket.remote, socket.local
        read_ns = (
            far.drains.read_ns(sample.fd)
            for sample in far.connections
            if (sample.local, sample.remote) == ends
        )
        return max(taken_ns, *read_ns, 0)

    def is_own(self, pid: Pid, waited: WaitedFile) -> bool:
        """True if the process has both ends of a pipe or pair of sockets, and no other process of the job has one."""
        process = self._members.views[pid]
        far_inode = _far_inode(process, waited)
        fds = {
            descriptor.fd
            for descriptor in process.descriptors.values()
            if descriptor.inode == far_inode
        }
        return bool(fds - {waited.fd}) and not self.of(pid, waited)

    @cached_property
    def _opened_by(self) -> dict[Inode, set[Pid]]:
        found: dict[Inode, set[Pid]] = defaultdict(set)
        for process in self._members.views.values():
            if process.exit is None:
                for descriptor in process.descriptors.values():
                    found[descriptor.inode].add(process.pid)
        return found


def _far_inode(process: ProcessHistory, waited: WaitedFile) -> Inode:
    """Inode of the other end: both ends of a pipe have the same."""
    for descriptor in process.descriptors.values():
        if descriptor.fd == waited.fd:
            return descriptor.peer_inode or descriptor.inode
    return waited.inode
