"""What NCCL Inspector's files say: which rank is late, which group of ranks has a slow link."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from kcover_ebpf.dataclass import dataclass

_MOST_MEMBERS = 8


class SlowKind(Enum):
    """The kinds of slowness that can be found."""

    LATE_RANK = "late_rank"
    """A rank repeatedly arrives last, and the others wait for it."""
    SLOWER_THAN_BEFORE = "slower_than_before"
    """The transfers of a group take longer than at the beginning."""
    SLOW_GROUP = "slow_group"
    """The transfers of a group take longer than those of other groups of the same size."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One rank of a communicator, with what identifies its process."""

    rank: int
    """Rank number within the communicator."""
    host: str
    pid: int
    """Process id in the pid namespace of the process."""
    job_rank: int | None
    """Its number in its largest communicator, usually its rank in the job. None if this is that communicator."""


@dataclass(frozen=True, slots=True)
class SlowCollective:
    """One late rank or slow group, with the times that show it."""

    kind: SlowKind
    communicator: str
    collective: str
    message_bytes: int
    members: tuple[GroupMember, ...]
    """Only the late rank, or all observed ranks of the slow group."""
    rank_count: int
    """Number of ranks in the communicator."""
    count: int
    """Number of operations that support the finding."""
    lasts_s: float
    """Median in seconds of the wait for the late rank, or of one transfer."""
    usual_s: float
    """Median in seconds to compare with: of one transfer, of earlier transfers, or of the other groups."""
    hosts: tuple[str, ...] = ()
    """Hosts shared by all slow groups and used by no other group; empty if there is none."""

    @property
    def text(self) -> str:
        """One line for people; its names are the job's own words."""
        what = f"{self.collective} of {_bytes(self.message_bytes)} over {self.rank_count} ranks"
        lasts, usual = f"{self.lasts_s * 1e3:.1f} ms", f"{self.usual_s * 1e3:.1f} ms"
        members = _members(self.members)
        match self.kind:
            case SlowKind.LATE_RANK:
                waits = f"the others wait {lasts} for it, the transfer takes {usual}"
                text = f"{members} is the last to begin {what}: {waits}"
            case SlowKind.SLOWER_THAN_BEFORE:
                text = f"{what} takes {lasts}, and took {usual} at first: a link between {members} became slow"
            case SlowKind.SLOW_GROUP:
                where = f"; all slow groups are on {', '.join(self.hosts)}" if self.hosts else ""
                text = f"{what} takes {lasts} among {members}, and {usual} in groups like it: a slow link{where}"
        return f"{text} ({self.count} operations, communicator {self.communicator})"


@dataclass(frozen=True, slots=True)
class InspectorSeen:
    """What NCCL Inspector's files say of a job that is slow or has stalled; who wrote them may write anything."""

    boottime_ns: int
    slow: tuple[SlowCollective, ...] = ()
    """The costliest first."""


def _members(members: Sequence[GroupMember]) -> str:
    shown = [
        f"rank {member.rank if member.job_rank is None else member.job_rank} on {member.host}"
        for member in members[:_MOST_MEMBERS]
    ]
    more = len(members) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _bytes(size: int) -> str:
    value = float(size)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} GiB"
