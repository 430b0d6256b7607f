"""Ranks that are one job: those of a common world, and those that are connected. Pure.

The trials of a sweep run in one pod or under one launcher but are independent: no other trial misses one that fails or
ends, and while one with several ranks hangs, the others continue.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.diagnosis.membership.endpoints import trains_elsewhere
from kcover_ebpf.ids import Pid

_RENDEZVOUS = ("MASTER_ADDR", "MASTER_PORT", "JAX_COORDINATOR_ADDRESS")


def is_apart(process: ProcessHistory, others: Iterable[ProcessHistory]) -> bool:
    """True if there are other ranks, and this one shares neither a world nor a connection with any of them."""
    others = [rank for rank in others if rank.pid != process.pid]
    sockets = (process.sockets[fd] for fd in process.traffic.carriers)
    if not others or any(trains_elsewhere(process, sample) for sample in sockets):
        return False
    return not are_connected([[process], others]) and not any(
        _share_a_world(process, rank) for rank in others
    )


def _share_a_world(process: ProcessHistory, other_process: ProcessHistory) -> bool:
    if process.membership is None or other_process.membership is None:
        return False
    if process.membership.by_pod or other_process.membership.by_pod:
        # the index of a pod in its gang: there is one gang
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


def worlds(ranks: Mapping[Pid, ProcessHistory]) -> Sequence[Mapping[Pid, ProcessHistory]]:
    """The ranks of each world; empty unless there are several worlds, and nothing shows that they are one job.

    Each world has several ranks, and is complete. Their numbers repeat from world to world. They have different
    rendezvous addresses, or were started by different processes. No rank is connected to another world's.
    """
    groups: dict[tuple[object, ...], dict[Pid, ProcessHistory]] = defaultdict(dict)
    for pid, process in ranks.items():
        groups[_world_of(process)][pid] = process
    found = list(groups.values())
    apart = all(map(_is_complete, found)) and all(
        _numbers_repeat(*pair) for pair in combinations(found, 2)
    )
    return found if apart and len(found) > 1 and not are_connected(map(dict.values, found)) else ()


def _world_of(process: ProcessHistory) -> tuple[object, ...]:
    place = _rendezvous(process)
    size = None if process.membership is None else process.membership.world_size
    return (size, *(place if any(place) else (process.ppid,)))


def _is_complete(world: Mapping[Pid, ProcessHistory]) -> bool:
    members = [process.membership for process in world.values() if process.membership]
    sizes = {membership.world_size for membership in members}
    by_pod = any(membership.by_pod for membership in members)
    return len(world) > 1 and not by_pod and sizes <= {None, len(world)}


def _numbers_repeat(
    world: Mapping[Pid, ProcessHistory], other_world: Mapping[Pid, ProcessHistory]
) -> bool:
    """True if both have a rank with the same number, or neither has any number."""
    numbers = ({process.rank for process in group.values()} for group in (world, other_world))
    return bool(set.intersection(*numbers))


def are_connected(groups: Iterable[Iterable[ProcessHistory]]) -> bool:
    """True if a rank of one group has a connection to one of another."""
    ends = [{pair for process in group for pair in process.links.pairs} for group in groups]
    return any(
        (remote, local) in far for near, far in combinations(ends, 2) for local, remote in near
    )


def world_text(world: Mapping[Pid, ProcessHistory]) -> str:
    """Description of a world: its size and its port, or the process that started it."""
    process = next(iter(world.values()))
    place = next((f"port {port}" for port in _rendezvous(process)[1:] if port), "")
    return f"of {len(world)} ranks ({place or f'below process {process.ppid}'})"
