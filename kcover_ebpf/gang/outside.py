"""Which waits of ranks for an address lead out of the gang: what no node knows alone.

A node knows the addresses of its own ranks, and those that it learned from payload. The reports of all nodes together
give the addresses of all ranks. While a node is silent, the addresses of the gang's pods take their place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field

from kcover_ebpf.api.fault_report import FaultReport
from kcover_ebpf.api.job_kinds import must_train
from kcover_ebpf.api.pods import Pod
from kcover_ebpf.dataclass import dataclass, replace
from kcover_ebpf.diagnosis.membership.endpoints import is_loopback
from kcover_ebpf.ids import Endpoint, Pid
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.rank_snapshot import RankSnapshot
from kcover_ebpf.tunables.sampling import SOCKETS_REPORTED


@dataclass(frozen=True, slots=True)
class GangEnds:
    """What is known of the far ends at which ranks of a gang may wait; times by the controller's clock."""

    ranks: Sequence[RankSnapshot]
    """All ranks that reports contain, also those that have ended; with the pids of their snapshot."""
    pods: Sequence[Pod] = ()
    """All pods of the gang; empty if they are not known."""
    ports: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Uid of a pod -> the ports on which processes of the job listen in it."""

    @property
    def held(self) -> set[Endpoint]:
        """The ends of connections that ranks have."""
        return {Endpoint(*socket.local) for rank in self.ranks for socket in rank.sockets}

    @property
    def services_at(self) -> Mapping[str, frozenset[int]]:
        """Address of a pod -> the only ports in it that belong to the job: all others are those of services.

        Left out is a pod that shares its address, and one of which not all ranks live or show all their connections:
        theirs may be the one that is not seen.
        """
        shared = Counter(pod.address for pod in self.pods if not pod.ended)
        unsure = {
            rank.pod_uid
            for rank in self.ranks
            if rank.exit is not None or len(rank.sockets) >= SOCKETS_REPORTED
        }
        return {
            pod.address: self.ports[pod.uid]
            for pod in self.pods
            if pod.address
            and pod.uid in self.ports
            and pod.uid not in unsure
            and not pod.on_node_network
            and shared[pod.address] == 1
        }


def ends_of(
    ranks: Sequence[RankSnapshot], seen: Sequence[FaultReport], pods: Sequence[Pod]
) -> GangEnds:
    """The far ends of a gang; the ports in each pod are those that the agent on its node reports."""
    nodes = {pod.uid: pod.node for pod in pods}
    ports = {
        entry.pod_uid: frozenset(entry.ports)
        for report in seen
        for entry in report.listens
        if nodes.get(entry.pod_uid) == report.node
    }
    return GangEnds(ranks, pods, ports)


def placed(
    processes: Mapping[Pid, RankSnapshot], ends: GangEnds, now_s: float, *, complete: bool
) -> dict[Pid, RankSnapshot]:
    """The processes with their waits for addresses classified: PEERS for those of the gang, else OUTSIDE.

    `complete`: all ranks of the job are among those of `ends`. If not, a wait is OUTSIDE only if no rank that is not
    seen can be what it is for; all others stay as their node says. `now_s`: unix seconds, as `Pod.created_s`.
    """
    held, services_at = ends.held, ends.services_at
    addresses = None if complete else _addresses(ends, now_s)
    found = {}
    for pid, process in processes.items():
        if not _waits(process):
            found[pid] = process
            continue
        leads_out = addresses is not None and _leads_out(process, addresses)
        is_outside = leads_out or _is_service(process, ends, held, services_at)
        if is_outside:
            found[pid] = replace(process, state=State.OUTSIDE)
        else:
            found[pid] = _placed(process, held) if complete else process
    return found


def _waits(rank: RankSnapshot) -> bool:
    return rank.awaits is not None and rank.state in (State.PEERS, State.OUTSIDE)


def _is_service(
    rank: RankSnapshot,
    ends: GangEnds,
    held: Collection[Endpoint],
    services_at: Mapping[str, frozenset[int]],
) -> bool:
    """True if it waits on a connection that it opened to a port of a pod on which no process of the job listens."""
    awaits = rank.awaits
    if awaits is None or awaits in held or awaits.address not in services_at:
        return False
    own = ends.ports.get(rank.pod_uid)
    opened = [socket for socket in rank.sockets if socket.remote == awaits]
    if own is None or not opened or any(socket.local.port in own for socket in opened):
        return False
    return awaits.port not in services_at[awaits.address]


def _leads_out(rank: RankSnapshot, addresses: Collection[str]) -> bool:
    awaits = rank.awaits
    return (
        awaits is not None and not is_loopback(awaits.address) and awaits.address not in addresses
    )


def _addresses(ends: GangEnds, now_s: float) -> frozenset[str] | None:
    """All addresses that a rank of the gang may have; None if it may have others than those of the gang's pods.

    A rank that is not seen may have the address of its node, that of a second network, or that of a pod which is gone.
    Where payload goes to, there may be a rank behind the address of a Service.
    """
    ranks, pods = ends.ranks, ends.pods
    training = [pod for pod in pods if not pod.ended and must_train(pod)]
    if any(pod.on_node_network or not pod.address for pod in training):
        return None
    # the address of a pod that has ended was that of a peer
    addresses = frozenset(pod.address for pod in pods if pod.address)
    own = {end.address for end in ends.held if not is_loopback(end.address)}
    if not own or not own <= addresses or not _has_all(training, ranks):
        return None
    waited_s = max((rank.age_s for rank in ranks if rank.exit is None), default=0.0)
    is_replaced = any(pod.created_s > now_s - waited_s for pod in training)
    return None if is_replaced else addresses | _paid(ranks)


def _paid(ranks: Sequence[RankSnapshot]) -> set[str]:
    return {socket.remote.address for rank in ranks for socket in rank.sockets if socket.payload}


def _has_all(pods: Sequence[Pod], ranks: Sequence[RankSnapshot]) -> bool:
    """True if the pods have room for all ranks, where each pod has as many as those that are seen."""
    counts = Counter(rank.pod_uid for rank in ranks if rank.exit is None)
    size = max((rank.world_size or 0 for rank in ranks), default=0)
    each = set(counts.values())
    return len(each) == 1 and 0 < size <= each.pop() * len(pods)


def _placed(rank: RankSnapshot, held: Collection[Endpoint]) -> RankSnapshot:
    """Classifies a wait for an address: PEERS if a rank of any node has that address, else OUTSIDE."""
    if rank.awaits is None or not held:
        return rank
    if rank.awaits in held:
        return replace(rank, state=State.PEERS)
    if is_loopback(rank.awaits.address):
        return rank
    is_peer = any(rank.awaits.address == end.address for end in held)
    return replace(rank, state=State.PEERS if is_peer else State.OUTSIDE)
