"""Finds late ranks, and groups or hosts with a slow link, from many collectives.

Pure. All ranks leave a collective together, so the rank that arrives last has the shortest duration. The difference
to the others is the time that they waited for it. The shortest duration itself is the transfer time. If it grows,
or if it is longer in one group of ranks than in all other groups of that size, then links are slow and no rank is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

from kcover_ebpf.collectives.inspector.records import CollectiveRun
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.facts.inspector import GroupMember, SlowCollective, SlowKind
from kcover_ebpf.tunables.collectives import (
    LATE_LEAST_S,
    LATE_PART_SHARE,
    LATE_SHARE,
    LEAST_RUNS,
    SLOW_FACTOR,
)


@dataclass(frozen=True, slots=True)
class _Key:
    communicator: str
    kind: str
    message_bytes: int


@dataclass(frozen=True, slots=True)
class _Group:
    """All operations of the same kind and size in one communicator."""

    key: _Key
    operations: tuple[tuple[CollectiveRun, ...], ...]
    """For each operation number, the record of each observed rank, one record per rank."""

    @property
    def rank_count(self) -> int:
        return self.operations[0][0].rank_count

    @property
    def transfers_s(self) -> list[float]:
        """The transfer time of each operation: the duration of the rank that arrived last."""
        return [min(run.duration_s for run in operation) for operation in self.operations]

    @property
    def hosts(self) -> frozenset[str]:
        return frozenset(run.host for operation in self.operations for run in operation)


def slow_in(collected_runs: Iterable[CollectiveRun]) -> tuple[SlowCollective, ...]:
    """The findings, the costliest wait first; empty if nothing is slow or there is too little data.

    Only operations with a record of every rank count, because a missing rank may be the one that arrived last.
    """
    groups, numbers = _groups(collected_runs)
    found = [slow for group in groups if (slow := _late_rank(group, numbers)) is not None]
    late = {slow.communicator for slow in found}
    found += [
        slow
        for group in groups
        if group.key.communicator not in late and (slow := _slower(group, numbers)) is not None
    ]
    found += _slow_groups(groups, numbers)
    return tuple(sorted(found, key=lambda slow: (-slow.count * slow.lasts_s, slow.communicator)))


_Process = tuple[str, int]


def _groups(
    collected_runs: Iterable[CollectiveRun],
) -> tuple[list[_Group], Mapping[_Process, tuple[int, int]]]:
    """Groups with enough operations; and the rank of each process in its largest communicator, with that one's size."""
    seen: defaultdict[_Key, defaultdict[int, dict[int, CollectiveRun]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    numbers: dict[_Process, tuple[int, int]] = {}
    for run in collected_runs:
        key = _Key(run.communicator, run.kind, run.message_bytes)
        seen[key][run.number].setdefault(run.rank, run)
        process = run.host, run.pid
        if run.rank_count > numbers.get(process, (0, 0))[1]:
            numbers[process] = run.rank, run.rank_count
    groups = []
    for key, by_number in sorted(seen.items(), key=lambda pair: _order(pair[0])):
        whole = tuple(
            tuple(ranks[rank] for rank in sorted(ranks))
            for _, ranks in sorted(by_number.items())
            if len(ranks) == next(iter(ranks.values())).rank_count > 1
        )
        if len(whole) >= LEAST_RUNS:
            groups.append(_Group(key, whole))
    return groups, numbers


def _order(key: _Key) -> tuple[str, str, int]:
    return key.communicator, key.kind, key.message_bytes


def _late_rank(group: _Group, numbers: Mapping[_Process, tuple[int, int]]) -> SlowCollective | None:
    last: Counter[int] = Counter()
    waited_s: defaultdict[int, list[float]] = defaultdict(list)
    for operation in group.operations:
        first, *others = sorted(operation, key=lambda run: run.duration_s)
        last[first.rank] += 1
        waited_s[first.rank].append(median(run.duration_s for run in others) - first.duration_s)
    rank, count = last.most_common(1)[0]
    wait_s, transfer_s = median(waited_s[rank]), median(group.transfers_s)
    least_s = max(LATE_LEAST_S, LATE_PART_SHARE * (wait_s + transfer_s))
    if count < LATE_SHARE * len(group.operations) or wait_s < least_s:
        return None
    late = [run for run in group.operations[-1] if run.rank == rank]
    return _slow(SlowKind.LATE_RANK, group, late, numbers, wait_s, transfer_s)


def _slower(group: _Group, numbers: Mapping[_Process, tuple[int, int]]) -> SlowCollective | None:
    """Compares the last third of the operations with the first. A slowness from the beginning is not found."""
    third = len(group.operations) // 3
    if third * 3 < LEAST_RUNS:
        return None
    transfers_s = group.transfers_s
    before_s, now_s = median(transfers_s[:third]), median(transfers_s[-third:])
    if now_s < SLOW_FACTOR * before_s:
        return None
    kind = SlowKind.SLOWER_THAN_BEFORE
    return _slow(kind, group, group.operations[-1], numbers, now_s, before_s)


def _slow_groups(
    groups: Sequence[_Group], numbers: Mapping[_Process, tuple[int, int]]
) -> Iterator[SlowCollective]:
    """Compares groups of equal size that do the same, such as the replicas of a data-parallel job."""
    alike: defaultdict[tuple[str, int, int], list[_Group]] = defaultdict(list)
    for group in groups:
        alike[group.key.kind, group.key.message_bytes, group.rank_count].append(group)
    for peers in alike.values():
        times = [(median(group.transfers_s), group) for group in peers]
        usual_s = median(time_s for time_s, _ in times)
        slow = [(time_s, group) for time_s, group in times if time_s >= SLOW_FACTOR * usual_s]
        if len(peers) < 3 or len(slow) * 2 >= len(peers):
            continue
        healthy = [group.hosts for _, group in times if group not in [one for _, one in slow]]
        shared = frozenset.intersection(*(group.hosts for _, group in slow))
        hosts = tuple(sorted(shared.difference(*healthy)))
        for time_s, group in slow:
            kind = SlowKind.SLOW_GROUP
            yield _slow(kind, group, group.operations[-1], numbers, time_s, usual_s, hosts)


def _slow(  # noqa: PLR0913, PLR0917 - one part of the finding each
    kind: SlowKind,
    group: _Group,
    of_ranks: Sequence[CollectiveRun],
    numbers: Mapping[_Process, tuple[int, int]],
    lasts_s: float,
    usual_s: float,
    hosts: tuple[str, ...] = (),
) -> SlowCollective:
    return SlowCollective(
        kind,
        group.key.communicator,
        group.key.kind,
        group.key.message_bytes,
        tuple(_member(run, numbers) for run in of_ranks),
        group.rank_count,
        len(group.operations),
        lasts_s,
        usual_s,
        hosts,
    )


def _member(run: CollectiveRun, numbers: Mapping[_Process, tuple[int, int]]) -> GroupMember:
    job_rank, world_size = numbers[run.host, run.pid]
    return GroupMember(
        run.rank, run.host, run.pid, None if world_size == run.rank_count else job_rank
    )
