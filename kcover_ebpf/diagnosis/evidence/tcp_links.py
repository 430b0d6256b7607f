"""Evidence from TCP connections between ranks: a rank that does not read, one that does not send, a lost link."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.diagnosis.history.traffic import pauses_s
from kcover_ebpf.diagnosis.membership.endpoints import EndpointIndex
from kcover_ebpf.ids import NS, Endpoint, Pid
from kcover_ebpf.model.rank_snapshot import RankSnapshot, SocketSnapshot
from kcover_ebpf.tunables.diagnosis import SEND_LEAD_NS
from kcover_ebpf.tunables.links import LOST_BACKOFF

_SEND_LEAD_S = SEND_LEAD_NS / NS


@dataclass(frozen=True, slots=True)
class LostLink:
    """A connection whose sender retransmits without an answer."""

    rank: int | None
    pid: Pid
    peer_pid: Pid | None
    """None if the other end is not on this host."""
    peer_rank: int | None
    local: Endpoint
    remote: Endpoint
    backoff: int
    unacked_bytes: int
    age_s: float
    """Seconds since it broke, at least: since its first unanswered retransmission."""

    @property
    def text(self) -> str:
        """Both ends, the unanswered bytes and the back-off, as one line."""
        return (
            f"{_end(self.rank, self.local)} -> {_end(self.peer_rank, self.remote)}: "
            f"{self.unacked_bytes} B unanswered, back-off {self.backoff}"
        )


def _end(rank: int | None, endpoint: Endpoint) -> str:
    return str(endpoint) if rank is None else f"rank {rank} ({endpoint})"


def _payload(rank: RankSnapshot) -> Iterator[SocketSnapshot]:
    return (socket for socket in rank.sockets if socket.payload)


def lost_edges(ranks: Iterable[RankSnapshot], endpoints: EndpointIndex) -> list[LostLink]:
    """Payload connections of the given ranks on which the kernel has backed off at least `LOST_BACKOFF` times."""
    found, ranks = [], list(ranks)
    numbers = {rank_snapshot.pid: rank_snapshot.rank for rank_snapshot in ranks}
    for rank in ranks:
        for socket in _payload(rank):
            if socket.backoff < LOST_BACKOFF or not (socket.unacked or socket.unsent):
                continue
            if window_closed(socket):
                continue
            peer, age_s = endpoints.peer(socket), socket.broken_age_s
            found.append(
                LostLink(
                    rank=rank.rank,
                    pid=rank.pid,
                    peer_pid=peer,
                    peer_rank=None if peer is None else numbers.get(peer),
                    local=socket.local,
                    remote=socket.remote,
                    backoff=socket.backoff,
                    unacked_bytes=socket.unacked or socket.unsent,
                    age_s=pauses_s(socket.backoff) if age_s is None else age_s,
                )
            )
    return found


def window_closed(socket: SocketSnapshot) -> bool:
    """True if a sender probes a full window: the peer answers, but does not read."""
    return socket.unacked == 0 and socket.unsent > socket.window


def closed_reader(
    ranks: Mapping[Pid, RankSnapshot], endpoints: EndpointIndex
) -> tuple[Pid, int] | None:
    """(the rank that does not read, bytes that wait for it); None if no window is closed."""
    waiting: dict[Pid, int] = {}
    for rank in ranks.values():
        for socket in rank.sockets:
            reader = endpoints.peer(socket) if window_closed(socket) else None
            if reader is not None and reader in ranks:
                waiting[reader] = waiting.get(reader, 0) + socket.unsent
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


def both_ends(edges: Iterable[LostLink]) -> tuple[int, int] | None:
    """The two ranks of a single lost link, lower one first: either may be at fault; None if there are more links."""
    ends = {frozenset({edge.rank, edge.peer_rank}) for edge in edges}
    known = sorted(rank for rank in ends.pop() if rank is not None) if len(ends) == 1 else []
    return (known[0], known[1]) if len(known) == 2 else None


def unread(
    rank: RankSnapshot, endpoints: EndpointIndex, ranks: Mapping[Pid, object]
) -> tuple[int, int]:
    """(bytes, connections) of payload that peers sent to this rank and that it did not read."""
    waiting = [
        socket.unread
        for socket in _payload(rank)
        if socket.unread > 0 and endpoints.peer(socket) in ranks
    ]
    return sum(waiting), len(waiting)


def sends_alike(ranks: Mapping[Pid, RankSnapshot]) -> bool | None:
    """Whether these ranks sent at the same time while the job was healthy.

    None if no host knows: with one rank on each, none can compare.
    """
    known = {rank.sends_alike for rank in ranks.values()} - {None}
    return all(known) if known else None


def oldest_sender(
    ranks: Mapping[Pid, RankSnapshot], endpoints: EndpointIndex
) -> tuple[Pid, float] | None:
    """(the rank whose last send was before all others', lead in seconds); None without a clear lead.

    Each rank sends as it enters a ring or an all-to-all; the one that never entered has only received. Source:
    measured, docs/decisions/0003. If ranks did not send at the same time while the job was healthy (a broadcast, a
    pipeline), or some may be on an unobserved host, the order shows nothing. While that is not known it is only a
    reason for suspicion (`sends_alike`).
    """
    if endpoints.elsewhere or sends_alike(ranks) is False:
        return None
    ages = sorted(
        ((rank.sent_age_s, -pid) for pid, rank in ranks.items() if rank.sent_age_s is not None),
        reverse=True,
    )
    if len(ages) < 2 or len(ages) < len(ranks):
        return None
    lead_s = round(ages[0][0] - ages[1][0], 6)
    return (Pid(-ages[0][1]), lead_s) if lead_s >= _SEND_LEAD_S else None
