"""Compares the recordings of all ranks: the collective in which they meet, and the rank that is not in it.

A rank that waits in a collective waits for each member that has not called it. From rank to rank this is a chain. It
ends at a rank that waits for none: outside all collectives, or in one that all other members have called. Members
without a known recording may wait for anything, so a rank that waits for one of them is not named.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.facts.recorders import (
    RankRecord,
    RecordedCall,
    RecordedGroup,
    RecordersSeen,
)
from kcover_ebpf.ids import NS
from kcover_ebpf.model.collective_counts import Recordings

DEFAULT_GROUP = "default_pg"
"""PyTorch's name of the group of all ranks."""
_ALIKE = frozenset(
    {
        "all_reduce",
        "allreduce",
        "all_reduce_barrier",
        "broadcast",
        "reduce",
        "_allgather_base",
        "_all_gather_base",
        "_reduce_scatter_base",
    }
)
"""Operations whose inputs have the same number of elements on all ranks; for others they may differ."""
_SHOWN_RANKS = 8
_SHOWN_SIDES = 4


def recordings_of(seen: RecordersSeen | None, now_ns: int) -> Recordings | None:
    """The recordings with their age at `now_ns` (CLOCK_BOOTTIME)."""
    if seen is None:
        return None
    return Recordings((now_ns - seen.boottime_ns) / NS, seen.records, seen.unread)


@dataclass(frozen=True, slots=True)
class RecorderComparison:
    """Conclusion from the recordings of all ranks."""

    named: tuple[RankRecord, ...] = ()
    """Ranks that the others wait for, or that called another operation than most."""
    mismatch: bool = False
    """Ranks called different operations under the same sequence number of one group."""
    texts: tuple[str, ...] = ()
    joined: bool = False
    """All ranks are in the same collectives, so none is named."""


@dataclass(frozen=True, slots=True)
class _Meeting:
    """One group and its first collective that has not completed everywhere."""

    name: str
    purpose: str
    sequence: int
    members: frozenset[int] | None
    """Ranks of the job; None if unknown."""
    callers: Mapping[int, RecordedCall]
    """Ranks that are in that collective, each with its call."""
    absent: Mapping[int, RecordedGroup]
    """Members whose recording shows that they have not called it."""

    @property
    def title(self) -> str:
        """Name of the group, with its description if it has one."""
        return f"{self.name} ({self.purpose})" if self.purpose else self.name or "0"


def compare(records: Iterable[RankRecord], world_size: int | None) -> RecorderComparison:
    """The conclusion from these recordings. `world_size`: ranks of the whole job; None if unknown."""
    by_rank = {record.rank: record for record in records}
    if len(by_rank) < 2:
        return RecorderComparison()
    meetings = _meetings(by_rank, world_size)
    for meeting in meetings:
        sides = _sides(meeting)
        if len(sides) > 1:
            return _mismatch(by_rank, meeting, sides)
    awaits, vague = _waits(by_rank, meetings)
    targets = {number for found in awaits.values() for number in found}
    ends = sorted(target for target in targets if target not in awaits and target not in vague)
    if ends:
        texts = [text for rank in ends[:_SHOWN_SIDES] for text in _late(by_rank[rank], meetings)]
        return RecorderComparison(tuple(by_rank[end] for end in ends), texts=tuple(texts))
    if targets and not vague:
        return RecorderComparison(texts=tuple(map(_position, meetings[:_SHOWN_SIDES])))
    whole = world_size is not None and len(by_rank) == world_size
    joined = bool(meetings) and not targets and whole
    return RecorderComparison(
        texts=tuple(map(_position, meetings[:_SHOWN_SIDES])) if joined else (), joined=joined
    )


def _meetings(by_rank: Mapping[int, RankRecord], world_size: int | None) -> list[_Meeting]:
    found: dict[tuple[str, tuple[int, ...]], dict[int, RecordedGroup]] = defaultdict(dict)
    for rank, record in by_rank.items():
        for group in record.groups:
            found[group.name, group.ranks][rank] = group
    meetings = []
    for (name, ranks), positions in found.items():
        waiting = {
            rank: position.pending[0] for rank, position in positions.items() if position.pending
        }
        if not waiting:
            continue
        sequence = min(call.sequence for call in waiting.values())
        purpose = next(
            (position.purpose for position in positions.values() if position.purpose), ""
        )
        members = frozenset(ranks) if ranks else None
        if purpose == DEFAULT_GROUP and world_size is not None:
            members = frozenset(range(world_size))
        meetings.append(
            _Meeting(
                name,
                purpose,
                sequence,
                members,
                {rank: call for rank, call in waiting.items() if call.sequence == sequence},
                {
                    rank: position
                    for rank, position in positions.items()
                    if position.enqueued is not None and position.enqueued < sequence
                },
            )
        )
    return sorted(meetings, key=lambda meeting: (-len(meeting.members or ()), meeting.name))


def _sides(meeting: _Meeting) -> list[list[int]]:
    """Ranks grouped by what they called, the largest group first."""
    sides: dict[object, list[int]] = defaultdict(list)
    for rank, call in sorted(meeting.callers.items()):
        size = call.input_count if call.operation in _ALIKE else None
        sides[call.operation, size].append(rank)
    return sorted(sides.values(), key=len, reverse=True)


def _mismatch(
    by_rank: Mapping[int, RankRecord], meeting: _Meeting, sides: Sequence[Sequence[int]]
) -> RecorderComparison:
    texts = []
    for side in sides[:_SHOWN_SIDES]:
        call = meeting.callers[side[0]]
        text = f"{_ranks(side)} called {_call(call)}{_at(side, meeting)}"
        texts.append(f"collective {meeting.sequence} of group {meeting.title}: {text}")
    # members without a recording might be on the other side
    most = meeting.members is not None and len(sides[0]) * 2 > len(meeting.members)
    odd = [rank for side in sides[1:] for rank in side] if most else []
    return RecorderComparison(
        tuple(by_rank[number] for number in odd), mismatch=True, texts=tuple(texts)
    )


def _waits(
    by_rank: Mapping[int, RankRecord], meetings: Sequence[_Meeting]
) -> tuple[dict[int, set[int]], set[int]]:
    """Rank -> the ranks that it waits for; and the ranks that wait for one without a recording."""
    awaits: dict[int, set[int]] = defaultdict(set)
    vague: set[int] = set()
    for meeting in meetings:
        known = meeting.callers.keys() | meeting.absent.keys() | _past(by_rank, meeting)
        for rank in meeting.callers:
            awaits[rank] |= meeting.absent.keys() - {rank}
            if meeting.members is None or meeting.members - known:
                vague.add(rank)
    for rank, record in by_rank.items():
        for group in record.groups:
            for message in group.messages:
                if message.peer is None or message.peer not in by_rank:
                    vague.add(rank)
                elif not _answers(by_rank[message.peer], rank):
                    awaits[rank].add(message.peer)
    return {rank: found for rank, found in awaits.items() if found}, vague


def _past(by_rank: Mapping[int, RankRecord], meeting: _Meeting) -> set[int]:
    """Members that have called it, whether or not they are still in it."""
    return {
        rank
        for rank, record in by_rank.items()
        for group in record.groups
        if group.name == meeting.name
        and group.enqueued is not None
        and group.enqueued >= meeting.sequence
    }


def _answers(record: RankRecord, rank: int) -> bool:
    """True if it has a send or receive with that rank under way as well, so both have arrived."""
    return any(message.peer == rank for group in record.groups for message in group.messages)


def _late(record: RankRecord, meetings: Sequence[_Meeting]) -> Iterable[str]:
    for meeting in meetings:
        position = meeting.absent.get(record.rank)
        if position is not None and meeting.callers:
            first = meeting.callers[min(meeting.callers)]
            others = sorted(meeting.callers)
            yield (
                f"{_ranks(others)} {'wait' if len(others) > 1 else 'waits'} in collective {meeting.sequence} of group "
                f"{meeting.title}, {_call(first)}{_at(others, meeting)}, which rank {record.rank} has not called"
            )
            break
    last = record.last
    if last is None:
        yield f"rank {record.rank} has called no collective"
        return
    place = f" at {last.place}" if last.place else ""
    yield f"the last call of rank {record.rank} is {_call(last)}, number {last.sequence} of group {last.group}{place}"


def _position(meeting: _Meeting) -> str:
    ranks = sorted(meeting.callers)
    call = meeting.callers[ranks[0]]
    verb = "wait" if len(ranks) > 1 else "waits"
    return (
        f"{_ranks(ranks)} {verb} in collective {meeting.sequence} of group {meeting.title}, "
        f"{_call(call)}{_at(ranks, meeting)}"
    )


def _call(call: RecordedCall) -> str:
    return f"{call.operation} [{call.shape}]" if call.shape else call.operation


def _at(ranks: Sequence[int], meeting: _Meeting) -> str:
    """The place that most of these ranks called it from."""
    places = Counter(text for rank in ranks if (text := meeting.callers[rank].place))
    return f" at {places.most_common(1)[0][0]}" if places else ""


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:_SHOWN_RANKS]))
    more = f" and {len(ranks) - _SHOWN_RANKS} more" if len(ranks) > _SHOWN_RANKS else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{more}"
