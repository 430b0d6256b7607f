"""Which ranks are one job: those of a common world, and those that are connected. Pure.

The trials of a sweep run in one pod or under one launcher and have nothing to do with each other: one that fails, or
ends, is missed by none.
"""

from __future__ import annotations

from collections.abc import Iterable

from kcover_ebpf.diagnosis.endpoints import SERVICE_PORTS, is_loopback
from kcover_ebpf.diagnosis.process import ProcessHistory
from kcover_ebpf.tunables.diagnosis import STARTER_PASSES

_RENDEZVOUS = ("MASTER_ADDR", "MASTER_PORT", "JAX_COORDINATOR_ADDRESS")


def is_apart(rank: ProcessHistory, others: Iterable[ProcessHistory]) -> bool:
    """True if a rank shares neither a world nor a connection with any of the other ones, of which there are some."""
    others = [other for other in others if other.pid != rank.pid]
    if not others or _may_train_elsewhere(rank):
        return False
    return not any(_share_a_world(rank, other) or _are_connected(rank, other) for other in others)


def _may_train_elsewhere(rank: ProcessHistory) -> bool:
    """True for payload to another host, where other ranks of one job may be."""
    return any(
        not is_loopback(sample.remote[0])
        and min(sample.local[1], sample.remote[1]) >= SERVICE_PORTS
        and rank.traffic.payload_passes(sample) >= STARTER_PASSES
        for sample in rank.connections
    )


def _share_a_world(one: ProcessHistory, other: ProcessHistory) -> bool:
    if one.member is None or other.member is None:
        return False
    if one.member.by_pod or other.member.by_pod:
        # the number of a pod in its gang: there is one gang
        return True
    if one.member.joined and other.member.joined:
        return True
    if one.rank is None or other.rank is None:
        return False
    is_one_size = one.member.world_size == other.member.world_size
    return is_one_size and _rendezvous(one) == _rendezvous(other)


def _rendezvous(rank: ProcessHistory) -> tuple[str | None, ...]:
    environ = {} if rank.seen is None else rank.seen.rank_environ
    return tuple(environ.get(name) for name in _RENDEZVOUS)


def _are_connected(one: ProcessHistory, other: ProcessHistory) -> bool:
    ends = {(sample.local, sample.remote) for sample in one.connections}
    return any((sample.remote, sample.local) in ends for sample in other.connections)
