"""The processes of a job: their identities, their owners, and the open files that connect them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.diagnosis.membership.kinship import Kinship
from kcover_ebpf.diagnosis.membership.roles import classify
from kcover_ebpf.diagnosis.membership.roster import Roster, roster_of
from kcover_ebpf.diagnosis.membership.together import is_apart
from kcover_ebpf.facts.host import WaitedFile
from kcover_ebpf.facts.kernel import ProcessExit, ProcessFork
from kcover_ebpf.ids import Pid
from kcover_ebpf.model.roles import Membership, Role
from kcover_ebpf.tunables.diagnosis import ESTABLISHED_NS

_DEEPEST = 8
_MOST_CANDIDATES = 256
"""Processes that may be ranks and whose connections are read, at most: each costs a descriptor, and some 5 us a
pass."""


class Members:
    """All known processes of one job, including ranks that have ended."""

    def __init__(self) -> None:
        self.views: dict[Pid, ProcessHistory] = {}
        self.world_size: int | None = None
        self.kinship = Kinship()
        self._stale = False
        self._roster: Roster | None = None

    def _changed(self) -> None:
        self._roster = None
        self.kinship.forget_candidates()

    @property
    def roster(self) -> Roster:
        """Index of the processes by role; computed again after a process came, went or became better known."""
        if self._roster is None:
            self._roster = roster_of(self.views)
        return self._roster

    def view(self, pid: Pid, now_ns: int) -> ProcessHistory:
        """The process, added if it is new."""
        process = self.views.get(pid)
        if process is None:
            process = self.views[pid] = ProcessHistory(pid, now_ns)
            self._changed()
        return process

    def rename(self) -> None:
        """Something was learned about the identity of a process: the next `classify` decides roles again."""
        self._stale = True
        self._changed()

    def on_fork(self, fork: ProcessFork) -> None:
        """Note that a process began another one."""
        parent = self.views.get(fork.pid)
        if parent is not None:
            parent.active_ns = fork.boottime_ns
        self.view(fork.child_pid, fork.boottime_ns)

    def on_exec(self, process: ProcessHistory) -> None:
        """Note that a process became another program, about which nothing was read yet."""
        process.on_exec()
        self._changed()

    def forget_descriptors(self) -> None:
        """Drop the open files seen in detail, which are no longer kept up to date."""
        for process in self.views.values():
            process.descriptors.clear()

    def classify(self) -> bool:
        """Decide roles again if anything changed; True if it did."""
        if not self._stale:
            return False
        self._stale = False
        self._decide()
        self._changed()
        return True

    def _decide(self) -> None:
        gone = {pid for pid, history in self.views.items() if history.exit is not None}
        seen = [history.seen for history in self.views.values() if history.seen is not None]
        joined = self.kinship.joined
        found = classify(seen, joined, gone, self.kinship.settled)
        numbered = any(
            membership.rank is not None and not membership.by_pod for membership in found.values()
        )
        for pid, member in found.items():
            process = self.views[pid]
            if process.exit is None or process.membership is None:
                process.membership = member
            elif (joined or numbered) and self._was_wrapper(process):
                # what ran before the ranks had numbers was a wrapper around them
                self._forget(pid)
        self._changed()
        for replaced in [pid for pid in self.views if self._is_replaced(self.views[pid])]:
            self._forget(replaced)
        living = [member for pid, member in found.items() if pid not in gone]
        self._learn_world_size(living or found.values())

    def _is_replaced(self, process: ProcessHistory) -> bool:
        if process.exit is None or process.membership is None:
            return False
        if process.membership.rank is not None:
            return self._has_prepared(process, process.exit)
        again = self.successor(process) if process.pid in self.kinship.joined else None
        return again is not None and again.pid in self.kinship.joined

    def _has_prepared(self, process: ProcessHistory, process_exit: ProcessExit) -> bool:
        """True if it ended well and the living rank with its number is the script that ran it, or came after it.

        A failed one is kept: its number shows that it was restarted.
        """
        again = (
            self.successor(process) if not (process_exit.signal or process_exit.exit_code) else None
        )
        if process.role is not Role.RANK or again is None or again.seen is None:
            return False
        return (
            not established(process, process_exit)
            or again.seen.boottime_ns > process_exit.boottime_ns
        )

    def _was_wrapper(self, process: ProcessHistory) -> bool:
        member = process.membership
        unnumbered = member is not None and (member.rank is None or member.by_pod)
        return unnumbered and process.pid not in self.kinship.joined

    def _learn_world_size(self, found: Iterable[Membership]) -> None:
        # programs around ranks without numbers may have the number of their node, and the number of nodes
        ranks = [membership for membership in found if membership.role is Role.RANK]
        if ranks:
            known = next((rank.world_size for rank in ranks if rank.world_size), None)
            unnumbered = any(rank.rank is None for rank in ranks)
            self.world_size = known or (None if unnumbered else self.world_size)

    def meet(self) -> None:
        """Once a pass: read which processes are connected, which shows which are ranks."""
        if self.kinship.observe(self.views):
            self.rename()

    def _forget(self, pid: Pid) -> None:
        del self.views[pid]
        self._changed()
        self.kinship.forget(pid)

    def leave(self, pid: Pid, process_exit: ProcessExit, *, learns: bool) -> None:
        """Note the end of a process. `learns`: the job was training and healthy.

        Processes of a rank stay known, so that waits for them can be explained.
        """
        process = self.views[pid]
        if learns:
            self._learn_helper(process, process_exit)
        apart = self.is_apart(process)
        process.exit = process_exit
        self._changed()
        member = process.membership
        # a program that a script runs before the training ends at any time: no rank will wait for it
        prepared = not (
            process_exit.signal or process_exit.exit_code or established(process, process_exit)
        )
        known = member is not None and (member.role in (Role.RANK, Role.LOADER) or member.wraps)
        if not known or apart or (prepared and self.is_wrapped(process)):
            self._forget(pid)

    def _learn_helper(self, process: ProcessHistory, process_exit: ProcessExit) -> None:
        # a program that began and ended during healthy training explains no wait, nor do later runs of it
        member = process.membership
        owner = self.views.get(member.owner) if member is not None and member.owner else None
        if owner is None or member is None or member.role not in (Role.HELPER, Role.COMPILER):
            return
        if 0 < owner.healthy_since_ns < process.first_seen_ns:
            lasts_ns = process_exit.boottime_ns - process.first_seen_ns
            owner.efforts.background.learn_program(process_exit.comm, lasts_ns)

    def is_apart(self, process: ProcessHistory) -> bool:
        """True for a rank that shares nothing with the other living ones: another job, such as a trial of a sweep."""
        return process.role is Role.RANK and is_apart(process, self.ranks.values())

    def is_wrapped(self, process: ProcessHistory) -> bool:
        """True while a shell around this rank, or around another shell, lives: it decides what an early exit means.

        A living parent that was not read yet may be one.
        """
        rank, ppid = process.rank, process.ppid
        for _ in range(_DEEPEST):
            above = self.views.get(ppid) if ppid is not None else None
            if above is None:
                return False
            if above.exit is None and above.seen is None:
                return True
            member = above.membership
            if above.exit is None and member and member.wraps and member.rank == rank:
                return True
            ppid = above.ppid
        return False

    def successor(self, ended_process: ProcessHistory) -> ProcessHistory | None:
        """The living rank that replaced an ended one: by its number, else by its start; None if there is none."""
        rank = ended_process.rank
        for process in self.ranks.values():
            member = process.membership
            later = (
                ended_process.exit is not None
                and process.first_seen_ns > ended_process.exit.boottime_ns
            )
            if member is not None and member.rank == rank and (rank is not None or later):
                return process
        return None

    def supersede(self, failed_process: ProcessHistory) -> list[Pid]:
        """Forget the ranks that ended before this one began and that were replaced, once this one fails as well.

        Returns them; empty if this one replaced none. The rest explains the present failure. Without this, a container
        that is restarted endlessly would leave ranks endlessly.
        """
        rank = failed_process.rank
        if rank is None or failed_process.role is not Role.RANK:
            return []
        before = [
            process
            for process in self.all_ranks.values()
            if process.exit is not None and process.exit.boottime_ns <= failed_process.first_seen_ns
        ]
        if all(process.rank != rank for process in before):
            return []
        later = {process.rank for process in self.ranks.values()} | {rank}
        found = [process.pid for process in before if process.rank in later]
        for pid in found:
            self._forget(pid)
        return found

    def launcher_of(self, process: ProcessHistory) -> ProcessHistory | None:
        """The living launcher that started it; None if there is none."""
        above = self.views.get(process.ppid) if process.ppid is not None else None
        for _ in range(_DEEPEST):
            if above is None or above.exit is not None:
                return None
            if above.role is Role.LAUNCHER:
                return above
            above = self.views.get(above.ppid) if above.ppid is not None else None
        return None

    def started_by(self, process: ProcessHistory) -> ProcessHistory | None:
        """As `launcher_of`; once no rank lives, its living parent: without ranks a launcher is not known as one."""
        launcher = self.launcher_of(process)
        if launcher is not None or self.ranks or process.ppid is None:
            return launcher
        parent = self.views.get(process.ppid)
        return parent if parent is not None and parent.exit is None else None

    def supersede_former(self) -> list[Pid]:
        """Forget the ranks of an earlier start: their launcher has started all of its living ones since.

        Returns them. An elastic job that forms again has other numbers, and maybe fewer of them.
        """
        first_ns: dict[Pid, int] = {}
        for process in self.ranks.values():
            launcher = self.launcher_of(process)
            if launcher is not None:
                first_ns[launcher.pid] = min(
                    process.first_seen_ns, first_ns.get(launcher.pid, process.first_seen_ns)
                )
        found = []
        for pid, process in self.all_ranks.items():
            launcher = self.launcher_of(process) if process.exit is not None else None
            if launcher is not None and process.exit is not None:
                began_ns = first_ns.get(launcher.pid, 0)
                found += [pid] if began_ns > process.exit.boottime_ns else []
        for pid in found:
            self._forget(pid)
        return found

    @property
    def all_ranks(self) -> Mapping[Pid, ProcessHistory]:
        """All ranks, including those that have ended."""
        return self.roster.all_ranks

    @property
    def ranks(self) -> Mapping[Pid, ProcessHistory]:
        """The ranks that have not ended."""
        return self.roster.ranks

    @property
    def has_ended(self) -> bool:
        """True if a rank has ended and, as far as known, was not replaced."""
        return len(self.all_ranks) > len(self.ranks)

    @property
    def local_size(self) -> int | None:
        """Number of ranks that their launcher started on this host; None if unknown, or if the ranks disagree."""
        return self.roster.local_size

    @property
    def expected(self) -> int | None:
        """Number of ranks that this host should have in the end; None if unknown.

        If it is unknown how many of them are elsewhere, all ranks of the job.
        """
        local, world = self.local_size, self.world_size
        if local is None or world is None:
            return world
        # two launchers of one job may share a host
        return min(world, max(local, len(self.all_ranks)))

    def others_elsewhere(self, *, whole: bool) -> bool | None:
        """True if ranks are on hosts that are not observed: connections to unknown processes may lead to them.

        None if unknown. `whole`: every rank should be here, unless a launcher says otherwise.
        """
        size, known = self.world_size, self.all_ranks
        if size is not None:
            return size > len(known)
        # a rank with a number that is alone here has its peers elsewhere, or has none
        numbered = [process.rank is not None for process in known.values()]
        return None if numbered == [True] or not whole else False

    @property
    def connected(self) -> list[Pid]:
        """Living processes whose connections matter: ranks, launchers, and processes that may be ranks."""
        roles = (Role.RANK, Role.LAUNCHER)
        alive = (
            (pid, process.membership) for pid, process in self.views.items() if process.exit is None
        )
        known = [pid for pid, member in alive if member is not None and member.role in roles]
        return known + self.kinship.candidates(self.views)[:_MOST_CANDIDATES]

    @property
    def owned(self) -> Mapping[Pid, ProcessHistory]:
        """Living ranks and the living processes that belong to one."""
        return self.roster.owned

    def children(self, pid: Pid) -> Sequence[ProcessHistory]:
        """Living processes that belong to the rank `pid`, itself not included."""
        return self.roster.children.get(pid, ())

    def kind(self, pid: Pid, waited: WaitedFile) -> str:
        """The real kind of a file: the sampler knows more than the name of a descriptor."""
        process = self.views[pid]
        if waited.fd in process.sockets:
            return "tcp"
        known = [
            descriptor.kind
            for descriptor in process.descriptors.values()
            if descriptor.fd == waited.fd
        ]
        return known[0] if known else waited.kind


def established(process: ProcessHistory, process_exit: ProcessExit) -> bool:
    """True if a process that ends took part in the job: it exchanged data with a rank, or existed for seconds."""
    return (
        process.peer_bytes_ns > 0
        or process_exit.boottime_ns - process.first_seen_ns >= ESTABLISHED_NS
    )
