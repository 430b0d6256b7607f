"""The wait of started ranks for those that have not started: a fact of one node, before the first step of a job."""

from __future__ import annotations

from kcover_ebpf.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class StartWait:
    """All ranks of a node wait for others, and their job has not made a step."""

    age_s: float
    """Seconds since the last of them began to wait; at least `ARRIVAL_FLOOR_S`."""
    ranks: int
    """Number of these ranks."""
    world_size: int | None = None
    """Number of ranks in the whole job, as their own environment says; None if unknown."""
