"""TCP connections between the ranks of a job: who has not read, who has not sent, which link is lost.

Only connections that carry the training's data tell how far a rank has come: a store and NCCL's RAS are asked
every second, whatever the training does, and what leads out of the job is none of its links.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kcover_ebpf.diagnosis.process import NS, ProcessHistory
from kcover_ebpf.diagnosis.roles import Role
from kcover_ebpf.diagnosis.traffic import carried_all_its_life
from kcover_ebpf.facts.kernel import SocketSample
from kcover_ebpf.ids import Pid

_Pair = tuple[tuple[str, int], tuple[str, int]]
LOST_BACKOFF = 3
"""Doublings of the retransmission time-out without an answer: 0.2 s + 0.4 s + 0.8 s and more."""
LOST_ON_LOSSY_BACKOFF = 6
"""The same where other segments still get through: there one is lost four times in a row now and then."""
SEND_LEAD_NS = 60_000_000
"""A rank that sent last so much earlier than all others has not entered what they are in.
Kernel ticks of up to 10 ms and scheduling stay below it."""
_MIN_PASSES = 2
_RARELY = 10
"""What carried payload so many times more rarely than the rank's busiest connection is no part of its steps: a
new group is agreed upon, a name is looked up."""
SERVICE_PORTS = 1024
"""Below this are services (HTTPS, NFS, SSH): no rank listens there."""


@dataclass(frozen=True, slots=True)
class LostLink:
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
    """When it broke, at the latest: its first repetition that stayed without an answer."""

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


class EndpointIndex:
    """Which process of the job holds which end of a connection."""

    def __init__(self, views: Iterable[ProcessHistory], *, elsewhere: bool | None = False) -> None:
        """`elsewhere`: some ranks of the job are on hosts that are not seen; None where nobody can tell."""
        self._owner: dict[_Pair, Pid] = {}
        self._launchers: set[_Pair] = set()
        self._ranks: set[Pid] = set()
        self.elsewhere = elsewhere
        self._payload: dict[Pid, list[int]] = {}
        # a child inherits the connections of its rank: they are the rank's
        for view in sorted(views, key=lambda each: not _is_rank(each)):
            if _is_rank(view):
                self._ranks.add(view.pid)
            pairs = [(sample.local, sample.remote) for sample in view.sockets.values()]
            if view.member is not None and view.member.role is Role.LAUNCHER:
                self._launchers.update(pairs)
                continue
            for pair in pairs:
                self._owner.setdefault(pair, view.pid)

    def peer(self, sample: SocketSample) -> Pid | None:
        """The process at the other end; None if it is not on this host, not watched, or a launcher."""
        return self._owner.get((sample.remote, sample.local))

    def joins_ranks(self, pid: Pid, sample: SocketSample) -> bool:
        """True for a connection of `pid` to another rank: to one that is seen, or maybe to one on another host."""
        peer = self.peer(sample)
        if peer is not None:
            return peer != pid and peer in self._ranks
        ports = sample.local[1], sample.remote[1]
        return (
            self.elsewhere is not False
            and (sample.remote, sample.local) not in self._launchers
            and min(ports) >= SERVICE_PORTS
            and not is_loopback(sample.remote[0])
        )

    def payload_fds(self, view: ProcessHistory) -> list[int]:
        """Descriptors of the connections of a rank to other ranks that carry the training's data.

        Those that did so in healthy passes, at least twice and not ten times more rarely than the busiest. Of a
        process that was never seen healthy what its connections carried since it began decides.
        """
        if view.pid not in self._payload:
            ours = [each for each in view.sockets.values() if self.joins_ranks(view.pid, each)]
            self._payload[view.pid] = [each.fd for each in _with_payload(view, ours)]
        return self._payload[view.pid]

    def outside(self, view: ProcessHistory) -> list[SocketSample]:
        """The connections of a process itself to somebody who is none of the job's."""
        return [
            sample
            for sample in view.sockets.values()
            if sample.state in ("ESTABLISHED", "SYN_SENT") and self._is_outside(view.pid, sample)
        ]

    def _is_outside(self, pid: Pid, sample: SocketSample) -> bool:
        pair = sample.remote, sample.local
        own = self._owner.get((sample.local, sample.remote)) == pid
        return own and pair not in self._owner and pair not in self._launchers


def _is_rank(view: ProcessHistory) -> bool:
    return view.member is not None and view.member.role is Role.RANK


def is_loopback(address: str) -> bool:
    """True for an address of this host itself."""
    return address.startswith("127.") or address == "::1"


def payload_sockets(view: ProcessHistory, ends: EndpointIndex) -> Iterator[SocketSample]:
    """The connections of a rank to other ranks that carry the training's data, as `EndpointIndex.payload_fds` says."""
    return (view.sockets[fd] for fd in ends.payload_fds(view))


def _with_payload(view: ProcessHistory, ours: Sequence[SocketSample]) -> list[SocketSample]:
    if view.traffic.learned_passes >= _MIN_PASSES:
        passes = [view.traffic.payload_passes(each) for each in ours]
        needed = max(_MIN_PASSES, max(passes, default=0) / _RARELY)
        return [each for each, count in zip(ours, passes, strict=True) if count >= needed]
    if view.lead is None:
        return []
    start_ns = view.lead.sample.start_ns
    return [each for each in ours if carried_all_its_life(each, start_ns)]


def lost_edges(views: Iterable[ProcessHistory], ends: EndpointIndex) -> list[LostLink]:
    """Payload connections of the given ranks on which the kernel has backed off at least `LOST_BACKOFF` times."""
    found, views = [], list(views)
    ranks = {view.pid: view.member.rank for view in views if view.member}
    for view in views:
        for sample in payload_sockets(view, ends):
            if sample.backoff < LOST_BACKOFF or not (sample.unacked_bytes or sample.unsent_bytes):
                continue
            if window_closed(sample):
                continue
            peer = ends.peer(sample)
            found.append(
                LostLink(
                    rank=ranks.get(view.pid),
                    pid=view.pid,
                    peer_pid=peer,
                    peer_rank=None if peer is None else ranks.get(peer),
                    local=sample.local,
                    remote=sample.remote,
                    backoff=sample.backoff,
                    unacked_bytes=sample.unacked_bytes or sample.unsent_bytes,
                    since_ns=view.traffic.broken_ns(sample),
                )
            )
    return found


def window_closed(sample: SocketSample) -> bool:
    """True when a sender asks in vain for room: the peer answers, but does not read."""
    return sample.unacked_bytes == 0 and sample.unsent_bytes > sample.send_window_bytes


def closed_reader(
    views: Mapping[Pid, ProcessHistory], ends: EndpointIndex
) -> tuple[Pid, int] | None:
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


def common_end(edges: Iterable[LostLink], rank_count: int) -> Pid | None:
    """The one process that every lost edge touches; None if there is none, or if two could be meant."""
    pairs = {frozenset({edge.pid, edge.peer_pid}) for edge in edges if edge.peer_pid is not None}
    if len(pairs) < 2 or rank_count < 3:
        return None
    touched = Counter(pid for pair in pairs for pid in pair)
    everywhere = [pid for pid, count in touched.items() if count == len(pairs)]
    return everywhere[0] if len(everywhere) == 1 else None


def unread(
    view: ProcessHistory, ends: EndpointIndex, ranks: Mapping[Pid, object]
) -> tuple[int, int]:
    """(bytes, connections) of the training's data that peers sent to this rank and that it did not read."""
    waiting = [
        sample.unread_bytes
        for sample in payload_sockets(view, ends)
        if sample.unread_bytes > 0 and ends.peer(sample) in ranks
    ]
    return sum(waiting), len(waiting)


def last_send_ns(view: ProcessHistory, ends: EndpointIndex) -> int:
    """When a rank last sent data of the training to another one; 0 if that is not known."""
    times = (
        each.last_send_ns for each in payload_sockets(view, ends) if each.state == "ESTABLISHED"
    )
    return max(times, default=view.sent_ns)


def oldest_sender(
    views: Mapping[Pid, ProcessHistory], ends: EndpointIndex
) -> tuple[Pid, float] | None:
    """(the rank that sent last before all others, lead in seconds); None without a clear lead.

    Each rank sends as it enters a collective; the one that never entered has only received. Source:
    measured, docs/decisions/0003. If that one may be on a host that is not seen, the order of the others says nothing.
    """
    if ends.elsewhere:
        return None
    times = sorted(
        (at_ns, pid) for pid, view in views.items() if (at_ns := last_send_ns(view, ends))
    )
    if len(times) < 2 or len(times) < len(views):
        return None
    lead_ns = times[1][0] - times[0][0]
    return (times[0][1], lead_ns / NS) if lead_ns >= SEND_LEAD_NS else None


def newest_sender(
    views: Mapping[Pid, ProcessHistory], ends: EndpointIndex
) -> tuple[Pid, float] | None:
    """(the rank that sent after all others, lead in seconds); None without a clear lead."""
    times = sorted(((last_send_ns(view, ends), pid) for pid, view in views.items()), reverse=True)
    if len(times) < 2:
        return None
    lead_ns = times[0][0] - times[1][0]
    return (times[0][1], lead_ns / NS) if lead_ns >= SEND_LEAD_NS else None
