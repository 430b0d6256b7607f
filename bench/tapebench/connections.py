"""The TCP connections of a scripted gang: the store, a ring for data, services outside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from bench.tapebench.activities import HTTP_FD, PEER_RING_FD, RING_FD, STORE_FD
from bench.tapebench.gang import Gang, ScriptedProcess
from kcover_ebpf.facts.kernel import SocketSample, TaskState
from kcover_ebpf.ids import NS, Inode, Pid

RATE = 2_000_000_000
"""Bytes a second of the training's data while it flows."""
_HERE, _FAR = "10.0.0.1", "203.0.113.9"
_STORE = (_HERE, 29500)
_QUESTION, _ANSWER = 57, 1
"""Bytes over a connection to the TCP store, once a second."""
_TELEMETRY_FD = 60


class Connection(NamedTuple):
    """One end of a connection as of now."""

    fd: int
    local: tuple[str, int]
    remote: tuple[str, int]
    counts: tuple[int, int]
    """Bytes sent and received."""
    last_ns: int
    """When the last of them went or came."""
    unacked: int = 0
    backoff: int = 0


class Connections:
    """Those of one gang; times are boottime nanoseconds."""

    def __init__(self, gang: Gang, *, rdma: bool) -> None:
        self._gang, self._rdma = gang, rdma
        self._phase = {rank: gang.rng.randrange(NS) for rank in range(gang.world)}
        self._beats: dict[int, int] = {}
        self._reported: dict[tuple[int, int], tuple[int, int]] = {}
        self.sent_ns = 0
        """When data of the training flowed last."""
        self.dead_since_ns: int | None = None
        """Since when the connection of the last rank to its telemetry service is dead."""
        self.outside = False
        """Rank 0 serves requests from outside; loaders fetch from outside."""

    def sample(self, process: ScriptedProcess, *, detail: bool) -> Iterator[SocketSample]:
        """Connections that moved since the pass before; all of them in detail."""
        pid, reported = process.pid, self._reported
        for found in self._of(process):
            key = pid, found.fd
            if detail or found.backoff or reported.get(key) != found.counts:
                reported[key] = found.counts
                yield self._made(pid, found)

    def _of(self, process: ScriptedProcess) -> list[Connection]:
        rank, found = process.rank, []
        if self.outside and rank in (None, 0):
            asked_ns = process.main.since_ns
            ends = (_HERE, 52000 + process.pid), (_FAR, 443)
            total = asked_ns // NS * 400
            found.append(Connection(HTTP_FD, *ends, (total, total), asked_ns))
        if rank is None:
            return found
        if self._gang.of_rank(0) is not None:
            for other in range(1, self._gang.world) if rank == 0 else (rank,):
                client = process if other == rank else self._gang.of_rank(other)
                if client is not None:
                    found.append(self._store(rank, other, client))
        if not self._rdma:
            found += self._ring(rank)
        dead_ns, now_ns = self.dead_since_ns, self._gang.now_ns
        if rank == self._gang.world - 1 and dead_ns is not None and now_ns >= dead_ns:
            backoff = min(15, ((now_ns - dead_ns) // (NS // 5) + 1).bit_length() - 1)
            ends = (_HERE, 51000), (_FAR, 4318)
            found.append(Connection(_TELEMETRY_FD, *ends, (5000, 5000), dead_ns, 1448, backoff))
        return found

    def _ring(self, rank: int) -> tuple[Connection, Connection]:
        world = self._gang.world
        total = 1000 + self._gang.data_ns * RATE // NS // world
        up, down = (rank + 1) % world, (rank - 1) % world
        counts = total, total
        out = (_HERE, 41000 + rank), (_HERE, 42000 + up)
        back = (_HERE, 42000 + rank), (_HERE, 41000 + down)
        return (
            Connection(RING_FD, *out, counts, self.sent_ns),
            Connection(PEER_RING_FD, *back, counts, self.sent_ns),
        )

    def _store(self, rank: int, other: int, client: ScriptedProcess) -> Connection:
        phase_ns = self._phase[other]
        if client.alive and client.main.now.state is not TaskState.STOPPED:
            self._beats[other] = (self._gang.now_ns - phase_ns) // NS
        beats = self._beats.get(other, 0)
        last_ns = beats * NS + phase_ns
        asked = max(0, beats - (client.born_ns - phase_ns) // NS)
        up, down = 1 + asked * _QUESTION, 1 + asked * _ANSWER
        here, store = (_HERE, 30000 + other), _STORE
        if rank:
            return Connection(STORE_FD, here, store, (up, down), last_ns)
        return Connection(STORE_FD + 100 + other, store, here, (down, up), last_ns)

    def _made(self, pid: int, connection: Connection) -> SocketSample:
        return SocketSample(
            boottime_ns=self._gang.now_ns,
            pid=Pid(pid),
            fd=connection.fd,
            inode=Inode(pid * 1000 + connection.fd),
            state="ESTABLISHED",
            local=connection.local,
            remote=connection.remote,
            unread_bytes=0,
            unsent_bytes=0,
            unacked_bytes=connection.unacked,
            acked_bytes=connection.counts[0],
            received_bytes=connection.counts[1],
            backoff=connection.backoff,
            send_window_bytes=65536,
            last_send_ns=connection.last_ns,
            last_receive_ns=connection.last_ns,
        )
