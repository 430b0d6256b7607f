"""Which node of a job asks its NCCL, and when the next one does. Pure.

A collection visits every process of the job, and each process answers for all: one asker is enough. Agents do not talk
to each other, so each knows its turn from the numbers of its own ranks: the node of rank 0 asks immediately; the
next ones do after a pause, for the agent there may be missing, or its ranks may have no RAS.
"""

from __future__ import annotations

from collections.abc import Collection

from kcover_ebpf.tunables.collectives import RAS_TURN_S

_MOST_TURNS = 4
"""Where the first nodes have no RAS, the others have none either."""


def turn_s(numbers: Collection[int | None], world_size: int | None) -> float | None:
    """Seconds from the beginning of a stall until this node asks; None: it leaves that to others.

    `numbers`: of the ranks here. Without numbers, or where all ranks are here, no other node can be relied upon.
    """
    known = [number for number in numbers if number is not None]
    if world_size is None or not known or len(known) >= world_size:
        return 0.0
    # ranks are dealt out to nodes in blocks, by nearly every launcher
    before = -(-min(known) // len(known))
    return before * RAS_TURN_S if before < _MOST_TURNS else None
