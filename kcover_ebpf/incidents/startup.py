"""A job that never began because a rank is not there."""

from __future__ import annotations

from kcover_ebpf.incidents.finding import Finding
from kcover_ebpf.incidents.members import Members
from kcover_ebpf.incidents.phases import Pace
from kcover_ebpf.incidents.processes import NS
from kcover_ebpf.incidents.verdict import Cause, Evidence, EvidenceKind, Kind
from kcover_ebpf.settings import Policy

_MOST_RANKS = 1 << 16


def missing_rank(members: Members, pace: Pace, now_ns: int, policy: Policy) -> Finding | None:
    """The lowest rank that never appeared while those that did only wait; None if none is missing.

    The evidence is time alone, which never ends a job: the rank may be starting on another host.
    """
    ranks = members.ranks
    world_size = members.world_size
    if pace.trained or world_size is None or len(members.all_ranks) != len(ranks):
        return None
    present = {view.member.rank for view in ranks.values() if view.member}
    absent = sorted(set(range(min(world_size, _MOST_RANKS))) - present)
    waited_s = (now_ns - pace.last_joined_ns) / NS
    if not absent or waited_s < policy.start_grace_s:
        return None
    if any(view.latest_effort(now_ns, 5 * NS) for view in ranks.values()):
        return None
    text = (
        f"{len(present)} of {world_size} ranks are here; "
        f"rank {absent[0]} is not, {waited_s:.0f} s after the last one came"
    )
    return Finding(
        kind=Kind.HUNG,
        cause=Cause.MISSING_RANK,
        since_ns=pace.last_joined_ns,
        rank=absent[0],
        evidence=(Evidence(EvidenceKind.TIME, text),),
        victims=tuple(ranks),
    )
