"""Classifies the connections of one process by what they carry, payload or heartbeats, and notes when each broke.

A connection carries payload if it moved more than heartbeats in healthy passes while the job trained. A store that is
polled once a second moves some 60 bytes a second, NCCL's RAS about 130 both ways: neither shows progress.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.facts.kernel import SocketSample
from kcover_ebpf.ids import NS, Inode
from kcover_ebpf.tunables.diagnosis import (
    PAYLOAD_PASSES,
    PAYLOAD_RATE,
    START_UP_BYTES,
    STORAGE_RATE,
    STREAM_RATE,
)

_RTO_MIN_S = 0.2
"""Seconds before the first retransmission, at least (kernel: TCP_RTO_MIN); each later one after twice the pause."""
_MOST_REMOTES = 256
"""Addresses remembered; a process with more of them has no useful habits."""


@dataclass(slots=True)
class _Connection:
    inode: Inode
    remote: tuple[str, int]
    talk_passes: int = 0
    """Healthy passes in which any byte moved; counted up to a habit."""
    payload_passes: int = 0
    through_ns: int = 0
    """Last pass in which a byte got through; 0: never."""
    transfer_ns: int = 0
    """Start of the last pass in which it moved at `STORAGE_RATE`; 0: never."""
    broken_ns: int = 0
    """Since when its retransmissions are unanswered; 0 if they are not."""


class Traffic:
    """The connections of one process over time, by descriptor; times are boottime nanoseconds."""

    def __init__(self) -> None:
        self._links: dict[int, _Connection] = {}
        self._moved: dict[int, int] = {}
        self._remotes: Counter[tuple[str, int]] = Counter()
        self._steady: Counter[tuple[str, int]] = Counter()
        self._carriers: dict[int, None] = {}
        self.payload_hosts: Counter[str] = Counter()
        """Address -> healthy passes in which connections to it, also closed ones, carried payload."""
        self.learned_passes = 0
        """Healthy passes of the training that were observed."""

    def observe(self, previous_sample: SocketSample | None, sample: SocketSample) -> int:
        """Take a sample.

        Returns the payload bytes moved since `previous_sample`: 0 for a new connection, and for heartbeats.
        """
        link = self._links.get(sample.fd)
        if link is None or previous_sample is None or link.inode != sample.inode:
            self._carriers.pop(sample.fd, None)
            link = self._links[sample.fd] = _Connection(sample.inode, sample.remote)
            previous_sample = sample
        sent = sample.acked_bytes - previous_sample.acked_bytes
        moved = max(0, sent + sample.received_bytes - previous_sample.received_bytes)
        if moved > 0:
            link.through_ns, link.broken_ns = sample.boottime_ns, 0
            self._moved[sample.fd] = self._moved.get(sample.fd, 0) + moved
        if not (sample.backoff and (sample.unacked_bytes or sample.unsent_bytes)):
            link.broken_ns = 0
        elif not link.broken_ns:
            pauses_ns = int(pauses_s(sample.backoff) * NS)
            link.broken_ns = max(link.through_ns, sample.boottime_ns - pauses_ns)
        # a connection at rest is not sent: its bytes all belong to the last pass, a second or less
        return moved if moved >= PAYLOAD_RATE else 0

    def end_pass(self, now_ns: int, period_ns: int, *, healthy: bool) -> None:
        """End a pass. `healthy`: the job trains and nothing is suspicious, so habits can be learned."""
        began_ns, period_ns = now_ns - period_ns, max(period_ns, NS)
        for fd, moved in self._moved.items():
            link = self._links[fd]
            at_work = moved * NS >= STORAGE_RATE * period_ns
            if at_work:
                link.transfer_ns = began_ns
            is_little = STORAGE_RATE // 4 * period_ns <= moved * NS <= STREAM_RATE * period_ns
            if healthy and is_little and len(self._steady) < _MOST_REMOTES:
                self._steady[link.remote] += 1
            elif at_work and moved * NS > STREAM_RATE * period_ns:
                self._steady.pop(link.remote, None)
            if healthy:
                if moved * NS >= PAYLOAD_RATE * period_ns:
                    link.payload_passes += 1
                    self._carriers[fd] = None
                    self._note_payload(link.remote[0])
                self._note_talk(link)
        self.learned_passes += healthy
        self._moved.clear()

    def _note_payload(self, host: str) -> None:
        if host in self.payload_hosts or len(self.payload_hosts) < _MOST_REMOTES:
            self.payload_hosts[host] += 1

    def _note_talk(self, connection: _Connection) -> None:
        if connection.talk_passes < PAYLOAD_PASSES and len(self._remotes) < _MOST_REMOTES:
            connection.talk_passes += 1
            self._remotes[connection.remote] += 1

    @property
    def carriers(self) -> Collection[int]:
        """Descriptors of connections that carried payload in a healthy pass: few, however many there are."""
        return self._carriers.keys()

    def payload_passes(self, sample: SocketSample) -> int:
        """Healthy passes in which this connection carried payload."""
        link = self._link(sample)
        return link.payload_passes if link is not None else 0

    def broken_ns(self, sample: SocketSample) -> int:
        """Since when retransmissions on this connection are unanswered; 0 if they are not."""
        link = self._link(sample)
        return link.broken_ns if link is not None else 0

    def transfer_ns(self, sample: SocketSample) -> int:
        """Start of the last pass in which this connection was at work; 0 if it never was."""
        link = self._link(sample)
        return link.transfer_ns if link is not None else 0

    def is_habit(self, sample: SocketSample) -> bool:
        """True if the process exchanged bytes with this address all along while it trained: that explains no wait."""
        return self._remotes[sample.remote] >= PAYLOAD_PASSES

    def is_stream(self, sample: SocketSample) -> bool:
        """True if a few bytes move to or from this address all the time: telemetry, which explains no wait."""
        steady = self._steady[sample.remote]
        return steady >= PAYLOAD_PASSES and 2 * steady >= self.learned_passes

    def _link(self, sample: SocketSample) -> _Connection | None:
        link = self._links.get(sample.fd)
        return link if link is not None and link.inode == sample.inode else None


def pauses_s(backoff: int) -> float:
    """Least number of seconds without an answer for a sender that has doubled its time-out `backoff` times."""
    return _RTO_MIN_S * ((1 << min(backoff, 16)) - 1)


def carried_all_its_life(sample: SocketSample, start_ns: int) -> bool:
    """True if a connection carried payload on average since its process began, at the boottime `start_ns`."""
    total = sample.acked_bytes + sample.received_bytes
    age_ns = sample.boottime_ns - start_ns
    return total >= START_UP_BYTES and total * NS >= PAYLOAD_RATE * age_ns
