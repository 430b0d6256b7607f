"""TCP connections between the ranks of a job: who has not read, who has not sent, which link is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kcover_ebpf.facts import SocketSample
from kcover_ebpf.ids import Pid
from kcover_ebpf.incidents.processes import NS, ProcessView
from kcover_ebpf.incidents.ranks import Role

_Pair = tuple[tuple[str, int], tuple[str, int]]
LOST_BACKOFF = 3
"""Doublings of the retransmission time-out without an answer: 0.2 s + 0.4 s + 0.8 s and more."""
LOST_ON_LOSSY_BACKOFF = 6
"""The same where other segments still get through: there one is lost four times in a row now and then."""
SEND_LEAD_NS = 60_000_000
"""A rank that sent last so much earlier than all others has not entered what they are in.
Kernel ticks of up to 10 ms and scheduling stay below it."""


@dataclass(frozen=True, slots=True)
class LostEdge:
    """A connection on which a sender repeats itself without an answer."""

    rank: int | None
    pid: Pid
    peer_pid: Pid | None
    """None when the other end is not on this host."""
    peer_rank: int | None
    local: tuple[str, int]
    remote: tuple[str, int]
    backoff: int
    unacked_bytes: int
    since_ns: int

    @property
    def text(self) -> str:
        """The edge for people."""
        return (
            f"{_end(self.rank, self.local)} -> {_end(self.peer_rank, self.remote)}: "
            f"{self.unacked_bytes} B unanswered, back-off {self.backoff}"
        )


def _end(rank: int | None, address: tuple[str, int]) -> str:
    where = f"{address[0]}:{address[1]}"
    return where if rank is None else f"rank {rank} ({where})"


class Ends:
    """Which process of the job holds which end of a connection."""

    def __init__(self, views: Iterable[ProcessView]) -> None:
        self._owner: dict[_Pair, Pid] = {}
        self._launchers: set[_Pair] = set()
        for view in views:
            pairs = [(sample.local, sample.remote) for sample in view.sockets.values()]
            if view.member is not None and view.member.role is Role.LAUNCHER:
                self._launchers.update(pairs)
                continue
            for pair in pairs:
                self._owner.setdefault(pair, view.pid)

    def peer(self, sample: SocketSample) -> Pid | None:
        """The process at the other end; None if it is not on this host, not watched, or a launcher."""
        return self._owner.get((sample.remote, sample.local))

    def asked_outside_ns(self, view: ProcessView) -> int:
        """When a process last sent to somebody who is none of the job's; 0 if it never did."""
        return max(
            (
                sample.last_send_ns
                for sample in view.sockets.values()
                if sample.state in ("ESTABLISHED", "SYN_SENT") and self._is_outside(sample)
            ),
            default=0,
        )

    def _is_outside(self, sample: SocketSample) -> bool:
        pair = sample.remote, sample.local
        return pair not in self._owner and pair not in self._launchers


def lost_edges(views: Iterable[ProcessView], ends: Ends) -> list[LostEdge]:
    """Connections of the given ranks on which the kernel has backed off at least `LOST_BACKOFF` times."""
    found, views = [], list(views)
    ranks = {view.pid: view.member.rank for view in views if view.member}
    for view in views:
        for sample in view.sockets.values():
            if sample.backoff < LOST_BACKOFF or not (sample.unacked_bytes or sample.unsent_bytes):
                continue
            if window_closed(sample):
                continue
            peer = ends.peer(sample)
            found.append(
                LostEdge(
                    rank=ranks.get(view.pid),
                    pid=view.pid,
                    peer_pid=peer,
                    peer_rank=None if peer is None else ranks.get(peer),
                    local=sample.local,
                    remote=sample.remote,
                    backoff=sample.backoff,
                    unacked_bytes=sample.unacked_bytes or sample.unsent_bytes,
                    since_ns=sample.last_send_ns or sample.changed_ns,
                )
            )
    return found


def window_closed(sample: SocketSample) -> bool:
    """True when a sender asks in vain for room: the peer answers, but does not read."""
    return sample.unacked_bytes == 0 and sample.unsent_bytes > sample.send_window_bytes


def closed_reader(views: Mapping[Pid, ProcessView], ends: Ends) -> tuple[Pid, int] | None:
    """(the rank that does not read, bytes that wait for it); None if no window is closed."""
    waiting: dict[Pid, int] = {}
    for view in views.values():
        for sample in view.sockets.values():
            reader = ends.peer(sample)
            if reader in views and reader is not None and window_closed(sample):
                waiting[reader] = waiting.get(reader, 0) + sample.unsent_bytes
    if not waiting:
        return None
    reader = max(waiting, key=lambda pid: waiting[pid])
    return reader, waiting[reader]


def common_end(edges: Iterable[LostEdge], rank_count: int) -> Pid | None:
    """The one process that every lost edge touches; None if there is none, or if two could be meant."""
    pairs = {frozenset({edge.pid, edge.peer_pid}) for edge in edges if edge.peer_pid is not None}
    if len(pairs) < 2 or rank_count < 3:
        return None
    touched = Counter(pid for pair in pairs for pid in pair)
    everywhere = [pid for pid, count in touched.items() if count == len(pairs)]
    return everywhere[0] if len(everywhere) == 1 else None


def unread(view: ProcessView, ends: Ends, ranks: Mapping[Pid, object]) -> tuple[int, int]:
    """(bytes, connections) that peers sent to this rank and that it did not read."""
    waiting = [
        sample.unread_bytes
        for sample in view.sockets.values()
        if sample.unread_bytes > 0 and ends.peer(sample) in ranks
    ]
    return sum(waiting), len(waiting)


def oldest_sender(views: Mapping[Pid, ProcessView]) -> tuple[Pid, float] | None:
    """(the rank that sent last before all others, lead in seconds); None without a clear lead.

    Each rank sends as it enters a collective; the one that never entered has only received. Source:
    measured, docs/decisions/0003.
    """
    times = sorted((view.last_send_ns, pid) for pid, view in views.items() if view.last_send_ns)
    if len(times) < 2 or len(times) < len(views):
        return None
    lead_ns = times[1][0] - times[0][0]
    return (times[0][1], lead_ns / NS) if lead_ns >= SEND_LEAD_NS else None


def newest_sender(views: Mapping[Pid, ProcessView]) -> tuple[Pid, float] | None:
    """(the rank that sent after all others, lead in seconds); None without a clear lead."""
    times = sorted(((view.last_send_ns, pid) for pid, view in views.items()), reverse=True)
    if len(times) < 2:
        return None
    lead_ns = times[0][0] - times[1][0]
    return (times[0][1], lead_ns / NS) if lead_ns >= SEND_LEAD_NS else None
