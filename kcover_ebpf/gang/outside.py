"""Which waits of ranks for an address lead out of the gang: what no node knows alone.

A node knows the addresses of its own ranks, and those that it learned from payload. The reports of all nodes together
give the addresses of all ranks. While a node is silent, the addresses of the gang's pods take their place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from kcover_ebpf.api.job_kinds import must_train
from kcover_ebpf.api.pods import Pod
from kcover_ebpf.dataclass import replace
from kcover_ebpf.diagnosis.membership.endpoints import is_loopback
from kcover_ebpf.ids import Endpoint, Pid
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.rank_snapshot import RankSnapshot


def placed(
    processes: Mapping[Pid, RankSnapshot], ranks: Sequence[RankSnapshot]
) -> dict[Pid, RankSnapshot]:
    """The processes with their waits for addresses classified, for a job of which all ranks are known.

    PEERS if a rank has the address, else OUTSIDE.
    """
    held = _held(ranks)
    return {pid: _placed(process, held) for pid, process in processes.items()}


def outside_of_pods(
    processes: Mapping[Pid, RankSnapshot],
    ranks: Sequence[RankSnapshot],
    pods: Sequence[Pod],
    now_s: float,
) -> dict[Pid, RankSnapshot]:
    """The processes, those OUTSIDE that wait for an address that no pod of the gang has; not all ranks are known.

    What a pod of the gang has stays as its node says: a rank may have it, or a service beside a rank. `now_s`: unix
    seconds, by the clock of `Pod.created_s`.
    """
    addresses = _addresses(ranks, pods, now_s)
    if addresses is None:
        return dict(processes)
    return {
        pid: replace(process, state=State.OUTSIDE)
        if process.state is State.PEERS and _leads_out(process, addresses)
        else process
        for pid, process in processes.items()
    }


def _leads_out(rank: RankSnapshot, addresses: Collection[str]) -> bool:
    awaits = rank.awaits
    return (
        awaits is not None and not is_loopback(awaits.address) and awaits.address not in addresses
    )


def _addresses(
    ranks: Sequence[RankSnapshot], pods: Sequence[Pod], now_s: float
) -> frozenset[str] | None:
    """All addresses that a rank of the gang may have; None if it may have others than those of the gang's pods.

    A rank that is not seen may have the address of its node, that of a second network, or that of a pod which is gone.
    Where payload goes to, there may be a rank behind the address of a Service.
    """
    training = [pod for pod in pods if not pod.ended and must_train(pod)]
    if any(pod.on_node_network or not pod.address for pod in training):
        return None
    # the address of a pod that has ended was that of a peer
    addresses = frozenset(pod.address for pod in pods if pod.address)
    own = {end.address for end in _held(ranks) if not is_loopback(end.address)}
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


def _held(ranks: Sequence[RankSnapshot]) -> set[Endpoint]:
    return {Endpoint(*socket.local) for rank in ranks for socket in rank.sockets}


def _placed(rank: RankSnapshot, held: Collection[Endpoint]) -> RankSnapshot:
    """Classifies a wait for an address: PEERS if a rank of any node has that address, else OUTSIDE."""
    if rank.awaits is None or rank.state not in (State.PEERS, State.OUTSIDE) or not held:
        return rank
    if rank.awaits in held:
        return replace(rank, state=State.PEERS)
    if is_loopback(rank.awaits.address):
        return rank
    is_peer = any(rank.awaits.address == end.address for end in held)
    return replace(rank, state=State.PEERS if is_peer else State.OUTSIDE)
