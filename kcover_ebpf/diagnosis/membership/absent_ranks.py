"""The numbers of the ranks that are missing in a job."""

from __future__ import annotations

from collections.abc import Collection

MOST_RANKS = 1 << 16
"""Numbers that are considered: the size of a world is what a program's environment claims."""


def absent(present: Collection[int], size: int, local_size: int | None = None) -> list[int]:
    """The numbers in a world of `size` ranks that `present` lacks; sorted.

    With `local_size` only those of the host with the lowest rank present: most launchers number the ranks of a host in
    one run.
    """
    first = 0 if local_size is None else min(present, default=0) // local_size * local_size
    count = size if local_size is None else local_size
    return sorted(set(range(first, first + min(count, MOST_RANKS))) - set(present))


def lost_before_trace(rank: int, present_count: int, size: int | None, where: str) -> str:
    """Why a rank is missing of a job that only a trace saw; `where`: "on this host", of all ranks that may be there."""
    return (
        f"rank {rank} is missing: {present_count} of {size} ranks run {where}, "
        "and it ended before this trace, or never started"
    )
