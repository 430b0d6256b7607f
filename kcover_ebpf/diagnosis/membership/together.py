"""Which ranks are one job: those of a common world, and those that are connected. Pure.

The trials of a sweep run in one pod or under one launcher and have nothing to do with each other: one that fails, or
ends, is missed by none.
"""

from __future__ import annotations

from collections.abc import Iterable

from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.diagnosis.membership.endpoints import SERVICE_PORTS, is_loopback
from kcover_ebpf.tunables.diagnosis import STARTER_PASSES

_RENDEZVOUS = ("MASTER_ADDR", "MASTER_PORT", "JAX_COORDINATOR_ADDRESS")


def is_apart(process: ProcessHistory, others: Iterable[ProcessHistory]) -> bool:
    """True if a rank shares neither a world nor a connection with any of the other ones, of which there are some."""
    others = [other for other in others if other.pid != process.pid]
    if not others or _may_train_elsewhere(process):
        return False
    return not any(
        _share_a_world(process, other) or _are_connected(process, other) for other in others
    )


def _may_train_elsewhere(process: ProcessHistory) -> bool:
    """True for payload to another host, where other ranks of one job may be."""
    carriers = (process.sockets[fd] for fd in process.traffic.carriers)
    return any(
        not is_loopback(sample.remote[0])
        and min(sample.local[1], sample.remote[1]) >= SERVICE_PORTS
        and process.traffic.payload_passes(sample) >= STARTER_PASSES
        for sample in carriers
    )


def _share_a_world(process: ProcessHistory, other_process: ProcessHistory) -> bool:
    if process.membership is None or other_process.membership is None:
        return False
    if process.membership.by_pod or other_process.membership.by_pod:
        # the number of a pod in its gang: there is one gang
        return True
    if process.membership.joined and other_process.membership.joined:
        return True
    if process.rank is None or other_process.rank is None:
        return False
    is_one_size = process.membership.world_size == other_process.membership.world_size
    return is_one_size and _rendezvous(process) == _rendezvous(other_process)


def _rendezvous(process: ProcessHistory) -> tuple[str | None, ...]:
    environ = {} if process.seen is None else process.seen.rank_environ
    return tuple(environ.get(name) for name in _RENDEZVOUS)


def _are_connected(process: ProcessHistory, other_process: ProcessHistory) -> bool:
    ends = process.links.pairs
    return any((remote, local) in ends for local, remote in other_process.links.pairs)
