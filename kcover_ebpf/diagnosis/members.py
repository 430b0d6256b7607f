"""The processes of a job: who they are, who belongs to whom, who holds the other end of a file."""

from __future__ import annotations

from collections.abc import Sequence

from kcover_ebpf.diagnosis.endpoints import EndpointIndex
from kcover_ebpf.diagnosis.process import NS, ProcessHistory
from kcover_ebpf.diagnosis.roles import Role, classify, local_size_of
from kcover_ebpf.facts.host import WaitedFile
from kcover_ebpf.facts.kernel import ProcessExit
from kcover_ebpf.ids import Inode, Pid

_DEEPEST = 8
_ESTABLISHED_NS = 5 * NS


class Members:
    """All processes of one job that are known, the ranks that ended included."""

    def __init__(self) -> None:
        self.views: dict[Pid, ProcessHistory] = {}
        self.world_size: int | None = None
        self._stale = False

    def view(self, pid: Pid, now_ns: int) -> ProcessHistory:
        """The process, made known if it is new."""
        found = self.views.get(pid)
        if found is None:
            found = self.views[pid] = ProcessHistory(pid, now_ns)
        return found

    def rename(self) -> None:
        """Something was learned about who a process is: roles are decided anew at the next `classify`."""
        self._stale = True

    def forget_descriptors(self) -> None:
        """What was seen open in detail is not kept up to date any more."""
        for view in self.views.values():
            view.descriptors.clear()

    def classify(self) -> bool:
        """Tell roles anew if anything changed; True if it did."""
        if not self._stale:
            return False
        self._stale = False
        found = classify([view.seen for view in self.views.values() if view.seen is not None])
        numbered = any(each.rank is not None and not each.by_pod for each in found.values())
        for pid, member in found.items():
            view = self.views[pid]
            if view.exit is None or view.member is None:
                view.member = member
                self.world_size = member.world_size or self.world_size
            elif numbered and (view.member.rank is None or view.member.by_pod):
                # what ran before the ranks had numbers was a wrapper around them
                del self.views[pid]
        return True

    def leave(self, pid: Pid, leaving: ProcessExit) -> None:
        """A process ended. Those with a rank stay known, so that who waits for them can be explained."""
        view = self.views[pid]
        view.exit = leaving
        member = view.member
        # what a script runs before the training ends when it likes: nobody will wait for it
        prepared = not (leaving.signal or leaving.exit_code or established(view, leaving))
        known = member is not None and (member.role in (Role.RANK, Role.LOADER) or member.wraps)
        if not known or (prepared and self.is_wrapped(view)):
            del self.views[pid]

    def is_wrapped(self, view: ProcessHistory) -> bool:
        """True while a shell around this rank, or around another shell, lives: it decides what an early exit means."""
        seen, rank = view.seen, view.member.rank if view.member else None
        for _ in range(_DEEPEST):
            above = self.views.get(seen.ppid) if seen is not None else None
            if above is None:
                return False
            member = above.member
            if above.exit is None and member and member.wraps and member.rank == rank:
                return True
            seen = above.seen
        return False

    @property
    def all_ranks(self) -> dict[Pid, ProcessHistory]:
        """Ranks, living or not."""
        return {
            pid: view
            for pid, view in self.views.items()
            if view.member is not None and view.member.role is Role.RANK
        }

    @property
    def ranks(self) -> dict[Pid, ProcessHistory]:
        """Living ranks."""
        return {pid: view for pid, view in self.all_ranks.items() if view.exit is None}

    @property
    def local_size(self) -> int | None:
        """Ranks that their launcher started on this host; None where none says so, or they do not agree."""
        environs = (view.seen.rank_environ for view in self.all_ranks.values() if view.seen)
        sizes = {size for each in environs if (size := local_size_of(each)) is not None}
        return sizes.pop() if len(sizes) == 1 else None

    @property
    def expected(self) -> int | None:
        """Ranks that should be on this host in the end; None where it is unknown how many there are.

        Where it is not known how many of them are elsewhere, all.
        """
        local, world = self.local_size, self.world_size
        if local is None or world is None:
            return world
        # two launchers of one job may share a host
        return min(world, max(local, len(self.all_ranks)))

    @property
    def connected(self) -> list[Pid]:
        """Living processes whose connections tell something: the ranks, and the launchers they report to."""
        roles = (Role.RANK, Role.LAUNCHER)
        alive = ((pid, view.member) for pid, view in self.views.items() if view.exit is None)
        return [pid for pid, member in alive if member is not None and member.role in roles]

    @property
    def owned(self) -> dict[Pid, ProcessHistory]:
        """Living ranks and the living processes that belong to one."""
        return {
            pid: view
            for pid, view in self.views.items()
            if view.exit is None and view.member is not None and view.member.owner is not None
        }

    @property
    def loaders(self) -> dict[Pid, ProcessHistory]:
        """Living children of ranks that run the ranks' own program."""
        return {
            pid: view
            for pid, view in self.owned.items()
            if view.member is not None and view.member.role is Role.LOADER
        }

    def children(self, pid: Pid) -> Sequence[ProcessHistory]:
        """Living processes that belong to the rank `pid`, itself not included."""
        return [
            view
            for view in self.owned.values()
            if view.pid != pid and view.member and view.member.owner == pid
        ]

    def kind(self, pid: Pid, waited: WaitedFile) -> str:
        """What a file really is: the sampler knows what the name of a descriptor does not say."""
        view = self.views[pid]
        if waited.fd in view.sockets:
            return "tcp"
        known = [each.kind for each in view.descriptors.values() if each.fd == waited.fd]
        return known[0] if known else waited.kind

    def holders(self, pid: Pid, waited: WaitedFile, ends: EndpointIndex) -> tuple[Pid, ...]:
        """Living processes of the job that hold the other end of a pipe or connection."""
        view = self.views[pid]
        socket = view.sockets.get(waited.fd)
        if socket is not None:
            peer = ends.peer(socket)
            return () if peer is None else (peer,)
        inodes: set[Inode] = {waited.inode}
        for descriptor in view.descriptors.values():
            if descriptor.fd == waited.fd:
                inodes = {descriptor.peer_inode or descriptor.inode}
        return tuple(
            sorted(
                other.pid
                for other in self.views.values()
                if other.pid != pid
                and other.exit is None
                and any(each.inode in inodes for each in other.descriptors.values())
            )
        )


def established(view: ProcessHistory, leaving: ProcessExit) -> bool:
    """True if a process that ends took part in the job: it had talked to a rank, or was there for seconds."""
    return view.peer_bytes_ns > 0 or leaving.boottime_ns - view.first_seen_ns >= _ESTABLISHED_NS
