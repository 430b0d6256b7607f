"""Which processes belong to which rank, and which have a file open, at one moment of a job.

Asked about each process of a job in turn: a container of thousands must not cost their square.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property

from kcover_ebpf.diagnosis.endpoints import EndpointIndex
from kcover_ebpf.diagnosis.members import Members
from kcover_ebpf.diagnosis.process import ProcessHistory
from kcover_ebpf.facts.host import WaitedFile
from kcover_ebpf.ids import Inode, Pid


class MemberIndex:
    """Of the members as they are when it is first asked."""

    def __init__(self, members: Members, ends: EndpointIndex) -> None:
        self._members, self._ends = members, ends

    def children(self, pid: Pid) -> Sequence[ProcessHistory]:
        """Living processes that belong to the rank `pid`, itself not included."""
        return [view for view in self._owned_by.get(pid, ()) if view.pid != pid]

    def holders(self, pid: Pid, waited: WaitedFile) -> tuple[Pid, ...]:
        """Living processes of the job that hold the other end of a pipe or connection."""
        view = self._members.views[pid]
        socket = view.sockets.get(waited.fd)
        if socket is not None:
            peer = self._ends.peer(socket)
            return () if peer is None else (peer,)
        inodes: set[Inode] = {waited.inode}
        for descriptor in view.descriptors.values():
            if descriptor.fd == waited.fd:
                inodes = {descriptor.peer_inode or descriptor.inode}
        found = {other for inode in inodes for other in self._opened_by.get(inode, ())}
        return tuple(sorted(found - {pid}))

    @cached_property
    def _owned_by(self) -> dict[Pid, list[ProcessHistory]]:
        found: dict[Pid, list[ProcessHistory]] = defaultdict(list)
        for view in self._members.owned.values():
            if view.member is not None and view.member.owner is not None:
                found[view.member.owner].append(view)
        return found

    @cached_property
    def _opened_by(self) -> dict[Inode, set[Pid]]:
        found: dict[Inode, set[Pid]] = defaultdict(set)
        for view in self._members.views.values():
            if view.exit is None:
                for descriptor in view.descriptors.values():
                    found[descriptor.inode].add(view.pid)
        return found
