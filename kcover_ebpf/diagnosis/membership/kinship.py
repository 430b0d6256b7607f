"""Ranks recognised by behaviour: processes that one program started, and that are connected to each other.

`mp.spawn`, a notebook's launcher and Ray Train number their ranks inside the processes, which cannot be observed. But
data loaders and helpers have no connections to each other, and ranks have some from the moment at which they form a
process group. Once recognised, they are ranks for as long as they live.

A rank that is connected to another rank is certain: the processes that it starts belong to it, even if they are
connected to each other. A rank that is connected to none may only watch the program that it forked (`monitors`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from functools import lru_cache
from posixpath import basename

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.diagnosis.membership.endpoints import trains_elsewhere
from kcover_ebpf.diagnosis.membership.far_ends import FarEnds, LinksOf
from kcover_ebpf.diagnosis.membership.monitors import forked_once
from kcover_ebpf.diagnosis.membership.rank_numbers import is_one_process
from kcover_ebpf.diagnosis.membership.roles import SPAWNED
from kcover_ebpf.ids import Pid
from kcover_ebpf.model.roles import Role
from kcover_ebpf.tunables.diagnosis import LEAD_RESTS_NS, STARTER_PASSES
from kcover_ebpf.tunables.sampling import CANDIDATES_PASSES, STARTER_LEARNED_PASSES

_Views = Mapping[Pid, ProcessHistory]
_DIGITS = str.maketrans("", "", "0123456789")


class Kinship:
    """The processes of one job that have joined others like them."""

    def __init__(self) -> None:
        self.joined: set[Pid] = set()
        """Ranks recognised by their behaviour."""
        self.settled: set[Pid] = set()
        """Ranks that are connected to another rank."""
        self._candidates: list[Pid] = []
        self._far_ends = FarEnds()
        self._candidates_passes = 0

    def forget_candidates(self) -> None:
        """A process came, went or became better known: look for possible ranks again."""
        self._candidates_passes = 0

    def forget(self, pid: Pid) -> None:
        """Forget a process that is gone for good: its pid may be used again."""
        self.joined.discard(pid)
        self.settled.discard(pid)
        self.forget_candidates()

    def candidates(self, views: _Views) -> list[Pid]:
        """Living processes that may be ranks: siblings of one program, with no certain rank above them."""
        if self._candidates_passes <= 0:
            self._candidates_passes = CANDIDATES_PASSES
            self._candidates = self._find_candidates(views)
        return self._candidates

    def _find_candidates(self, views: _Views) -> list[Pid]:
        siblings: dict[tuple[Pid, str], dict[Pid, _Name]] = defaultdict(dict)
        for pid, process in views.items():
            member, seen, name = process.membership, process.seen, _name(process)
            if process.exit is not None or member is None or seen is None or name is None:
                continue
            may_be = member.role in (Role.LOADER, Role.HELPER)
            if pid in self.joined or (may_be and not self._is_certain(process, views)):
                siblings[seen.ppid, name.comm][pid] = name
        found = [pid for group in siblings.values() for pid in _alike(group)]
        found += self._forked_once(views)
        return [pid for pid in dict.fromkeys(found) if pid not in self.joined]

    def _forked_once(self, views: _Views) -> Mapping[Pid, Pid]:
        return forked_once(views, self.settled | self.joined)

    def unclear(self, views: _Views, now_ns: int) -> list[Pid]:
        """Processes that work while the rank that started them only waits, and that are not known to be ranks."""
        found = []
        for pid in self.candidates(views):
            member = views[pid].membership
            owner = views.get(member.owner) if member is not None and member.owner else None
            rests = owner is not None and now_ns - _moved_ns(owner) > LEAD_RESTS_NS
            if rests and now_ns - _moved_ns(views[pid]) <= LEAD_RESTS_NS:
                found.append(pid)
        return found

    def _is_certain(self, process: ProcessHistory, views: _Views) -> bool:
        owner = (
            views.get(process.membership.owner)
            if process.membership and process.membership.owner
            else None
        )
        if owner is None:
            return False
        numbered = owner.seen is not None and is_one_process(owner.seen.rank_environ)
        return numbered or owner.pid in self.settled or owner.pid in self.joined

    def observe(self, views: _Views) -> bool:
        """Once a pass: read which processes are connected; True if that shows more about which are ranks."""
        self._candidates_passes -= 1
        asked = [pid for pid in self.candidates(views) if views[pid].links.fds]
        starters = {
            process.seen.ppid for pid in self.joined if (process := views.get(pid)) and process.seen
        }
        unsettled = [
            pid for pid in views if views[pid].links.fds and self._is_open(views[pid], starters)
        ]
        if not asked and not unsettled:
            return False
        known, settled = len(self.joined), len(self.settled)
        watched = self._forked_once(views)
        self._far_ends.observe(views)
        for pid in dict.fromkeys([*unsettled, *asked]):
            links = self._far_ends.of(pid)
            if elsewhere := _leads_to_ranks(views[pid], links, watched):
                self.settled.add(pid)
                if pid in watched and any(elsewhere):
                    self.joined.add(pid)
            for peer, fds in links.peers.items():
                if peer in views:
                    self._join_watched(views[pid], views[peer], watched)
                    self._meet(views[pid], views[peer], fds, views)
        is_news = (len(self.joined), len(self.settled)) != (known, settled)
        if is_news:
            self.forget_candidates()
        return is_news

    def _join_watched(
        self, process: ProcessHistory, other_process: ProcessHistory, watched: Mapping[Pid, Pid]
    ) -> None:
        # a fork that is connected to a rank, or to another rank's fork, does the work of the rank that forked it
        owners = {
            watched.get(process.pid, process.pid),
            watched.get(other_process.pid, other_process.pid),
        }
        ranks = all(
            process_history.pid in watched or process_history.role is Role.RANK
            for process_history in (process, other_process)
        )
        if len(owners) == 2 and ranks:
            self.joined |= {process.pid, other_process.pid} & watched.keys()

    def _is_open(self, process: ProcessHistory, starters: Collection[Pid]) -> bool:
        if process.exit is not None or process.membership is None or process.pid in self.settled:
            return False
        watched = process.traffic.learned_passes < STARTER_LEARNED_PASSES
        starter = process.pid in starters and process.pid not in self.joined and watched
        return starter or process.membership.role is Role.RANK

    def _meet(
        self,
        process: ProcessHistory,
        other_process: ProcessHistory,
        fds: Collection[int],
        views: _Views,
    ) -> None:
        if process.membership is None or other_process.membership is None:
            return
        if process.membership.role is Role.RANK and other_process.membership.role is Role.RANK:
            pair = {process.pid, other_process.pid}
            self.settled |= pair
            numbered = (
                process.membership.rank is not None or other_process.membership.rank is not None
            )
            if not numbered and _is_one_program(process, other_process):
                self.joined |= pair
        elif _are_siblings(process, other_process) and not self._is_certain(process, views):
            self.joined |= {process.pid, other_process.pid}
        elif other_process.pid in self.joined and _is_same_program(process, other_process):
            passes = (process.traffic.payload_passes(process.sockets[fd]) for fd in fds)
            if any(count >= STARTER_PASSES for count in passes):
                self.joined.add(process.pid)


def _leads_to_ranks(
    process: ProcessHistory, links: LinksOf, watched: Collection[Pid]
) -> list[bool]:
    """Connections of a numbered rank, or of its fork, to ranks on other hosts: to their store, or with payload.

    Each is True if the connection is its own rather than inherited.
    """
    member, seen = process.membership, process.seen
    if member is None or seen is None or member.rank is None:
        return []
    if member.role is not Role.RANK and process.pid not in watched:
        return []
    store = seen.rank_environ.get("MASTER_PORT", "")
    found = [links.ports_away[store]] if store in links.ports_away else []
    return found + [
        links.away[fd]
        for fd in process.traffic.carriers
        if fd in links.away and trains_elsewhere(process, process.sockets[fd])
    ]


def _moved_ns(process: ProcessHistory) -> int:
    lead_ns = process.lead.progress_ns if process.lead is not None else 0
    return max(lead_ns, process.first_seen_ns, process.data_ns)


@dataclass(frozen=True, slots=True)
class _Name:
    """Name of a process without digits, which only number several processes of one program."""

    comm: str
    """Its present comm, without digits."""
    words: tuple[str, str] | None
    """Its program and its script when they were read; None if it had no arguments, or a title in their place."""
    is_renamed: bool
    """It had arguments when it was read, and has changed its name since."""

    def is_like(self, other_name: _Name) -> bool:
        """True if both may run one program.

        Actors of Ray differ only in the titles that they give themselves after some seconds: those that were read
        before have the arguments of their worker, and those that were read later have none.
        """
        if self.comm != other_name.comm:
            return False
        if self.words is None or other_name.words is None:
            return all(name.words is None or name.is_renamed for name in (self, other_name))
        return self.words == other_name.words


def _alike(group: Mapping[Pid, _Name]) -> list[Pid]:
    """Processes of a group with one comm that are like another process of the group."""
    count = Counter(name.words for name in group.values())
    renamed = any(name.is_renamed for name in group.values())
    return [
        pid
        for pid, name in group.items()
        if count[name.words] > 1
        or (name.words is None and renamed)
        or (name.is_renamed and None in count)
    ]


def _name(process: ProcessHistory) -> _Name | None:
    return (
        None
        if process.seen is None
        else _name_of(process.seen.argv, process.seen.comm, process.name)
    )


@lru_cache(maxsize=1024)
def _name_of(argv: tuple[str, ...], before: str, comm: str) -> _Name | None:
    if not argv:
        return None
    called = comm.translate(_DIGITS)
    if len(argv) == 1:
        return _Name(called, None, is_renamed=False)
    script = next((word for word in argv[1:] if not word.startswith("-")), "")
    # processes of multiprocessing differ in the number of a pipe
    words = basename(argv[0]), script.translate(_DIGITS)
    return _Name(called, words, is_renamed=before != comm)


def _is_one_program(process: ProcessHistory, other_process: ProcessHistory) -> bool:
    name, others = _name(process), _name(other_process)
    return name is not None and others is not None and name.is_like(others)


def _are_siblings(process: ProcessHistory, other_process: ProcessHistory) -> bool:
    return process.ppid == other_process.ppid and _is_one_program(process, other_process)


def _is_same_program(starting_process: ProcessHistory, started_process: ProcessHistory) -> bool:
    above, below = starting_process.seen, started_process.seen
    if above is None or below is None or below.ppid != above.pid:
        return False
    return above.argv == below.argv or SPAWNED in below.argv
