"""Ranks that are not there: one that never appeared, and one that the sampler does not see."""

from __future__ import annotations

from kcover_ebpf.incidents.finding import Finding
from kcover_ebpf.incidents.members import Members
from kcover_ebpf.incidents.phases import Pace
from kcover_ebpf.incidents.processes import NS
from kcover_ebpf.incidents.verdict import Cause, Evidence, EvidenceKind, Kind
from kcover_ebpf.settings import Policy

_MOST_RANKS = 1 << 16
_SAMPLED_WITHIN_NS = 5 * NS


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
    if any(view.latest_effort(now_ns - 5 * NS) for view in ranks.values()):
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


def awaits_somebody(members: Members, pace: Pace) -> bool:
    """True while a rank has not come yet and the job never trained: those who came wait for it."""
    return len(members.all_ranks) < (members.world_size or 0) and not pace.trained


def unsampled_rank(members: Members, now_ns: int) -> Finding | None:
    """UNKNOWN while a rank lives of which no thread was ever sampled: what is not seen is not healthy."""
    for view in members.ranks.values():
        if view.lead is None and now_ns - view.first_seen_ns > _SAMPLED_WITHIN_NS:
            rank = view.member.rank if view.member else None
            text = (
                f"rank {rank} (pid {view.pid}) is there, but the sampler does not see its threads"
            )
            evidence = (Evidence(EvidenceKind.SINK, text),)
            return Finding(
                Kind.UNKNOWN, Cause.UNKNOWN, view.first_seen_ns, None, None, None, evidence
            )
    return None
