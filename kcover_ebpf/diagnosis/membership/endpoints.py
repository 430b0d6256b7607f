"""Owners of the ends of a job's connections, and the connections that carry payload.

Only payload connections show progress: the store and NCCL RAS are polled regardless of training, and connections
leaving the job are not links between ranks.
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
"""Ports below this belong to services (HTTPS, NFS, SSH): no rank listens there."""


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
        """Pid on this host; in a gathered snapshot, the new pid."""

    @property
    def role(self) -> Role | None:
        """Role in its job; None while unknown."""

    @property
    def connections(self) -> Iterable[Connection]:
        """Its connections by their ends, in any order."""


class EndpointIndex:
    """Index of the ends of all connections of a job's processes."""

    def __init__(self, processes: Iterable[Connected], *, elsewhere: bool | None = False) -> None:
        """`elsewhere`: some ranks of the job are on hosts that are not observed; None if that is unknown."""
        self._owner: dict[Pair, Pid] = {}
        self._launchers: set[Pair] = set()
        self._ranks: set[Pid] = set()
        self.elsewhere = elsewhere
        self._payload: dict[Pid, list[int]] = {}
        self._outside: dict[Pid, list[SocketSample]] = {}
        processes = list(processes)
        seen = [connected for connected in processes if isinstance(connected, ProcessHistory)]
        self._views = [history for history in seen if history.role is Role.RANK]
        self._ranks_and_launchers = [
            history for history in seen if history.role in (Role.RANK, Role.LAUNCHER)
        ]
        # a child inherits the connections of its rank, which count as the rank's
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

    def leads_to_launcher(self, connection: Connection) -> bool:
        """True if a launcher here has the other end: torchrun keeps the store of its ranks (PyTorch's TCPStore)."""
        return (connection.remote, connection.local) in self._launchers

    def joins_ranks(self, pid: Pid, connection: Connection) -> bool:
        """True for a connection of `pid` to another rank, either an observed one or possibly one on another host."""
        peer = self.peer(connection)
        if peer is not None:
            return peer != pid and peer in self._ranks
        ports = connection.local[1], connection.remote[1]
        return (
            self.elsewhere is not False
            and not self.leads_to_launcher(connection)
            and min(ports) >= SERVICE_PORTS
            and not is_loopback(connection.remote[0])
        )

    def payload_fds(self, process: ProcessHistory) -> list[int]:
        """Descriptors of a rank's connections to other ranks that carry payload.

        They did so in healthy passes, at least twice and not ten times more rarely than the busiest one. For a process
        that was never seen healthy, the bytes since it began decide: sent to a rank, as far as the ranks' hosts are
        known.
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
        """The connections that the process itself opened and that lead outside the job."""
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
        """True if the far end is no process of the job, neither here nor on a host that is known to have ranks.

        While no rank elsewhere is known by its payload, each address that may be a rank's is taken for one.
        """
        if (connection.remote, connection.local) in self._owner:
            return False
        if self.leads_to_launcher(connection):
            return False
        hosts = self._far_hosts
        known = not hosts or connection.remote[0] in hosts
        return not (known and self.joins_ranks(pid, connection))

    @cached_property
    def _far_hosts(self) -> frozenset[str]:
        """Addresses of hosts that are known to have ranks.

        Ranks here send payload to them, and did so in healthy times as often as to others. Closed connections count
        too, because those ranks may have left. An address that connected to a rank here, or that is the job's store,
        belongs to a rank as well: a data set may be fetched long before there is a step. So while none of these
        addresses is among those with payload, nothing was learned about ranks from payload. If no rank has met another
        one, bytes sent decide.
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
        """Addresses elsewhere from which a rank or launcher here accepted a connection, and that of the job's store."""
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
    """True if the other end opened it: a process that only answers requests, ours to NCCL RAS too, makes none."""
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
    """The connections of a rank to other ranks that carry payload, as `EndpointIndex.payload_fds` selects them."""
    return (process.sockets[fd] for fd in endpoints.payload_fds(process))


def _carriers(process: ProcessHistory) -> Sequence[SocketSample]:
    """Connections that ever carried payload; for an unlearned process, those that did so all their life."""
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
    """When a rank last sent payload to another one, boottime; 0 if unknown."""
    times = (
        payload_socket.last_send_ns
        for payload_socket in payload_sockets(process, endpoints)
        if payload_socket.state == "ESTABLISHED"
    )
    return max(times, default=process.sent_ns)


def newest_sender(
    views: Mapping[Pid, ProcessHistory], endpoints: EndpointIndex
) -> tuple[Pid, float] | None:
    """(the rank that sent after all others, its lead in seconds); None without a clear lead."""
    times = sorted(
        ((last_send_ns(process, endpoints), pid) for pid, process in views.items()), reverse=True
    )
    if len(times) < 2:
        return None
    lead_ns = times[0][0] - times[1][0]
    return (times[0][1], lead_ns / NS) if lead_ns >= SEND_LEAD_NS else None
