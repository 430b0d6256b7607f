"""Ranks that only wait are the control group: what they do as well neither explains nor accuses another rank. Pure.

A rank belongs to it if its lead thread is in the wait that most share, or in one that ended by itself while the job was
healthy, whatever else its process does. Background threads, log lines, telemetry and children that always move are
found in the control group too, and so are naps in which a library polls for messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from kcover_ebpf.diagnosis.evidence.snapshot import JobSnapshot
from kcover_ebpf.diagnosis.history import stacks
from kcover_ebpf.ids import Pid
from kcover_ebpf.model.process_state import Effort, State
from kcover_ebpf.model.rank_snapshot import RankSnapshot
from kcover_ebpf.tunables.certainty import EFFORT_FACTOR

_ASKING = frozenset({State.PEERS, State.ON_DEVICE})


def compared(snapshot: JobSnapshot) -> JobSnapshot:
    """The snapshot in which each rank makes only those efforts that its control group does not make.

    An effort counts if it clearly exceeds the median of the control group: by `EFFORT_FACTOR`, and by an effort. If
    there is no majority of waiting ranks there is nothing to compare with: an effort of all is a checkpoint of all.
    """
    ranks = [rank for rank in snapshot.ranks.values() if not rank.rests]
    victims = _victims(ranks)
    odd = [rank for rank in ranks if rank.pid not in victims]
    if not odd or len(victims) <= len(odd):
        # if all are alike there is nothing to compare with: an effort of all is a checkpoint of all
        changed = {rank.pid: _as_odd(rank) for rank in odd if rank.state is State.NAPPING}
        changed |= _without_helpers(ranks)
        if not changed:
            return snapshot
        return replace(snapshot, processes={**snapshot.processes, **changed})
    control = [rank for rank in ranks if rank.pid in victims]
    changed = {rank.pid: _as_victim(rank) for rank in control}
    for rank in odd:
        changed[rank.pid] = _against(rank, control)
    return replace(snapshot, processes={**snapshot.processes, **changed})


def _without_helpers(ranks: Sequence[RankSnapshot]) -> dict[Pid, RankSnapshot]:
    """A rank that waits where most wait is kept there by the others and not by its own threads, unless all have one."""
    helped = {rank.pid: rank for rank in ranks if rank.state is State.HELPED}
    if len(helped) == len(ranks):
        return {}
    return {pid: _as_victim(helped[pid]) for pid in _most_alike(ranks) if pid in helped}


def _most_alike(ranks: Sequence[RankSnapshot]) -> list[Pid]:
    """The ranks at a lock in one place, if these are more than half of all ranks."""
    first = next(iter(stacks.groups(_locked(ranks))), [])
    return first if 2 * len(first) > len(ranks) else []


def _locked(ranks: Sequence[RankSnapshot]) -> dict[Pid, stacks.Stack]:
    locked = (State.FUTEX, State.HELPED)
    return {rank.pid: rank.stack for rank in ranks if _wait(rank) in locked and rank.stack}


def _victims(ranks: Sequence[RankSnapshot]) -> set[Pid]:
    found = {rank.pid for rank in ranks if _wait(rank) in _ASKING}
    locked = _locked(ranks)
    found |= {rank.pid for rank in ranks if rank.pid in locked and rank.known_wait}
    found |= set(_most_alike(ranks))
    napping = {rank.pid for rank in ranks if rank.state is State.NAPPING}
    found |= {rank.pid for rank in ranks if rank.pid in napping and rank.known_wait}
    return found | napping if 2 * len(napping) > len(ranks) else found


def _wait(rank: RankSnapshot) -> State:
    return rank.wait or rank.state


def _as_victim(rank: RankSnapshot) -> RankSnapshot:
    plain = rank if rank.wait is None else _without_effort(rank)
    # a rank that waits where all others wait is not kept there by one of its threads
    return replace(plain, state=State.FUTEX) if plain.state is State.HELPED else plain


def _without_effort(rank: RankSnapshot) -> RankSnapshot:
    return replace(rank, state=_wait(rank), wait=None, effort=None, effort_rate=0.0)


def _as_odd(rank: RankSnapshot) -> RankSnapshot:
    # it polls for something that no other rank polls for, and that none polled for while the job was healthy
    if rank.state is not State.NAPPING:
        return rank
    return replace(rank, state=State.SLEEPING, retries=True)


def _against(rank: RankSnapshot, control: Sequence[RankSnapshot]) -> RankSnapshot:
    rank = _as_odd(rank)
    if rank.effort is not None and rank.wait is not None:
        theirs = median(_rate(rank.effort, control_rank) for control_rank in control)
        mine = max(rank.effort_rate, _rate(rank.effort, rank))
        # rates are in units of the smallest effort that counts
        if mine >= EFFORT_FACTOR * theirs + 1.0:
            return rank
        rank = _without_effort(rank)
    if rank.state is State.HELPED and all(_is_common(word, control) for word in rank.beside):
        return replace(rank, state=State.FUTEX)
    return rank


def _rate(effort: Effort, rank: RankSnapshot) -> float:
    # its last effort may be of another kind, or too small to count
    if rank.effort_rates is not None:
        return rank.effort_rates.of(effort)
    return rank.effort_rate if rank.effort is effort else 0.0


def _is_common(word: str, control: Sequence[RankSnapshot]) -> bool:
    return 2 * sum(word in rank.beside for rank in control) > len(control)
