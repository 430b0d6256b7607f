"""Which process of a job has which end of a connection, and which connections carry the training's data.

Only those say how far a rank has come: a store and NCCL's RAS are asked every second, whatever the training does, and
what leads out of the job is none of its links.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Protocol

from kcover_ebpf.diagnosis.history.links import Pair
from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.diagnosis.history.traffic import carried_all_its_life
from kcover_ebpf.facts.kernel import SocketSample
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.model.roles import Role
from kcover_ebpf.tunables.diagnosis import (
    HOST_RARELY_FACTOR,
    PAYLOAD_PASSES,
    RARELY_FACTOR,
    SEND_LEAD_NS,
    STARTER_PASSES,
)

SERVICE_PORTS = 1024
"""Below this are services (HTTPS, NFS, SSH): no rank listens there."""


class Connection(Protocol):
    """A connection by its two ends."""

    @property
    def local(self) -> tuple[str, int]:
        """Address and port of this end."""

    @property
    def remote(self) -> tuple[str, int]:
        """Address and port of the other end."""


class Connected(Protocol):
    """A process with connections: a `ProcessHistory`, or a `RankSnapshot`."""

    @property
    def pid(self) -> Pid:
        """Its number."""

    @property
    def role(self) -> Role | None:
        """What it is for in its job; None while that is not known."""

    @property
    def connections(self) -> Iterable[Connection]:
        """Its sockets, in any order."""


class EndpointIndex:
    """Which process of the job holds which end of a connection."""

    def __init__(self, processes: Iterable[Connected], *, elsewhere: bool | None = False) -> None:
        """`elsewhere`: some ranks of the job are on hosts that are not seen; None where that is not known."""
        self._owner: dict[Pair, Pid] = {}
        self._launchers: set[Pair] = set()
        self._ranks: set[Pid] = set()
        self.elsewhere = elsewhere
        self._payload: dict[Pid, list[int]] = {}
        self._outside: dict[Pid, list[SocketSample]] = {}
        processes = list(processes)
        seen = [connected for connected in processes if isinstance(connected, ProcessHistory)]
        self._views = [view for view in seen if view.role is Role.RANK]
        self._ranks_and_launchers = [
            view for view in seen if view.role in (Role.RANK, Role.LAUNCHER)
        ]
        # a child inherits the connections of its rank: they are the rank's
        for process in sorted(processes, key=lambda connected: connected.role is not Role.RANK):
            if process.role is Role.RANK:
                self._ranks.add(process.pid)
            pairs = _pairs(process)
            if process.role is Role.LAUNCHER:
                self._launchers.update(pairs)
                continue
            for pair in pairs:
                self._owner.setdefault(pair, process.pid)

    def peer(self, connection: Connection) -> Pid | None:
        """The process at the other end; None if it is not on this host, not watched, or a launcher."""
        return self._owner.get((connection.remote, connection.local))

    def joins_ranks(self, pid: Pid, connection: Connection) -> bool:
        """True for a connection of `pid` to another rank: to one that is seen, or maybe to one on another host."""
        peer = self.peer(connection)
        if peer is not None:
            return peer != pid and peer in self._ranks
        ports = connection.local[1], connection.remote[1]
        return (
            self.elsewhere is not False
            and (connection.remote, connection.local) not in self._launchers
            and min(ports) >= SERVICE_PORTS
            and not is_loopback(connection.remote[0])
        )

    def payload_fds(self, process: ProcessHistory) -> list[int]:
        """Descriptors of the connections of a rank to other ranks that carry the training's data.

        Those that did so in healthy passes, at least twice and not ten times more rarely than the busiest. Of a
        process that was never seen healthy what its connections carried since it began decides: to a rank, as far as
        it is known where ranks are.
        """
        if process.pid not in self._payload:
            ours = self._sent_to_ranks(process)
            if not _is_learned(process):
                ours = [sample for sample in ours if not self.leads_outside(process.pid, sample)]
            self._payload[process.pid] = [sample.fd for sample in _busiest(process, ours)]
        return self._payload[process.pid]

    def _sent_to_ranks(self, process: ProcessHistory) -> list[SocketSample]:
        return [sample for sample in _carriers(process) if self.joins_ranks(process.pid, sample)]

    def outside(self, process: ProcessHistory) -> list[SocketSample]:
        """The connections of the process itself that lead outside the job, and that it has begun."""
        if process.pid not in self._outside:
            self._outside[process.pid] = [
                sample
                for sample in process.connections
                if sample.state in ("ESTABLISHED", "SYN_SENT")
                and self._owner.get((sample.local, sample.remote)) == process.pid
                and self.leads_outside(process.pid, sample)
                and not is_accepted(process, sample)
            ]
        return self._outside[process.pid]

    def leads_outside(self, pid: Pid, connection: Connection) -> bool:
        """True where the far end is no process of the job: neither here, nor where ranks elsewhere are known to be.

        While no rank elsewhere is known by its data, each address that may be one's is taken for one.
        """
        pair = connection.remote, connection.local
        if pair in self._owner or pair in self._launchers:
            return False
        hosts = self._far_hosts
        known = not hosts or connection.remote[0] in hosts
        return not (known and self.joins_ranks(pid, connection))

    @cached_property
    def _far_hosts(self) -> frozenset[str]:
        """Addresses at which ranks elsewhere are known to be.

        Those to which ranks here send data of the training, and did while it was healthy, as often as to others. Also
        those whose connections are closed: the others may have left. Who has connected to a rank here, and where the
        job's store is, is a rank as well: a data set may be fetched long before there is a step, and while none of the
        former is among these nothing was learned of ranks. Where no one has met, what was sent decides.
        """
        passes: Counter[str] = sum(
            (process.traffic.payload_hosts for process in self._views), Counter()
        )
        needed = max(PAYLOAD_PASSES, max(passes.values(), default=0) / HOST_RARELY_FACTOR)
        learned = frozenset(host for host, count in passes.items() if count >= needed)
        met = self._met()
        if learned and (not met or learned & met):
            return learned
        return met or self._sent_to()

    def _met(self) -> frozenset[str]:
        """Addresses elsewhere from which a rank or launcher here took a connection, and that of the job's store."""
        return frozenset(
            sample.remote[0]
            for process in self._ranks_and_launchers
            for sample in process.connections
            if (is_accepted(process, sample) or _leads_to_store(process, sample))
            and self.joins_ranks(process.pid, sample)
            and self.peer(sample) is None
        )

    def _sent_to(self) -> frozenset[str]:
        return frozenset(
            sample.remote[0]
            for process in self._views
            for sample in self._sent_to_ranks(process)
            if self.peer(sample) is None
        )


def _pairs(process: Connected) -> Collection[Pair]:
    if isinstance(process, ProcessHistory):
        return process.links.pairs
    return [(connection.local, connection.remote) for connection in process.connections]


def is_accepted(process: ProcessHistory, accepted_sample: SocketSample) -> bool:
    """True where the other end began it: who answers questions, ours of NCCL's RAS as well, asks none."""
    return process.links.listens_on(accepted_sample.local[1])


def _leads_to_store(process: ProcessHistory, sample: SocketSample) -> bool:
    """True for a connection to the port at which the ranks of its job meet (MASTER_PORT of PyTorch)."""
    environ = {} if process.seen is None else process.seen.rank_environ
    return environ.get("MASTER_PORT", "") == str(sample.remote[1])


def is_loopback(address: str) -> bool:
    """True for an address of this host itself."""
    return address.startswith("127.") or address == "::1"


def trains_elsewhere(process: ProcessHistory, sample: SocketSample) -> bool:
    """True for payload to another host, where other ranks of the job may be."""
    return (
        min(sample.local[1], sample.remote[1]) >= SERVICE_PORTS
        and not is_loopback(sample.remote[0])
        and process.traffic.payload_passes(sample) >= STARTER_PASSES
    )


def payload_sockets(process: ProcessHistory, endpoints: EndpointIndex) -> Iterator[SocketSample]:
    """The connections of a rank to other ranks that carry the training's data, as `EndpointIndex.payload_fds` says."""
    return (process.sockets[fd] for fd in endpoints.payload_fds(process))


def _carriers(process: ProcessHistory) -> Sequence[SocketSample]:
    """Its connections that ever carried payload; those that did so all their life, where nothing was learned yet."""
    if _is_learned(process):
        carriers = process.traffic.carriers
        return [sample for sample in process.connections if sample.fd in carriers]
    if process.lead is None:
        return []
    start_ns = process.lead.sample.start_ns
    return [sample for sample in process.connections if carried_all_its_life(sample, start_ns)]


def _busiest(process: ProcessHistory, ours: Sequence[SocketSample]) -> Sequence[SocketSample]:
    if not _is_learned(process):
        return ours
    passes = [process.traffic.payload_passes(sample) for sample in ours]
    needed = max(PAYLOAD_PASSES, max(passes, default=0) / RARELY_FACTOR)
    return [sample for sample, count in zip(ours, passes, strict=True) if count >= needed]


def _is_learned(process: ProcessHistory) -> bool:
    return process.traffic.learned_passes >= PAYLOAD_PASSES


def last_send_ns(process: ProcessHistory, endpoints: EndpointIndex) -> int:
    """When a rank last sent data of the training to another one; 0 if that is not known."""
    times = (
        payload_socket.last_send_ns
        for payload_socket in payload_sockets(process, endpoints)
        if payload_socket.state == "ESTABLISHED"
    )
    return max(times, default=process.sent_ns)


def newest_sender(
    views: Mapping[Pid, ProcessHistory], endpoints: EndpointIndex
) -> tuple[Pid, float] | None:
    """(the rank that sent after all others, lead in seconds); None without a clear lead."""
    times = sorted(
        ((last_send_ns(process, endpoints), pid) for pid, process in views.items()), reverse=True
    )
    if len(times) < 2:
        return None
    lead_ns = times[0][0] - times[1][0]
    return (times[0][1], lead_ns / NS) if lead_ns >= SEND_LEAD_NS else None
