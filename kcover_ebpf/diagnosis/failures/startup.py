"""Absent ranks of a start: one that never appeared, and one that the sampler does not see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from kcover_ebpf.diagnosis.clock.progress import JobProgress
from kcover_ebpf.diagnosis.evidence.snapshot import Finding
from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.diagnosis.membership.members import Members
from kcover_ebpf.diagnosis.membership.rank_numbers import MOST_RANKS, absent
from kcover_ebpf.facts.host import Unreadable
from kcover_ebpf.facts.kernel import TaskState
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.model.silence_summary import StartWait
from kcover_ebpf.model.verdict import Cause, Culprit, Evidence, EvidenceKind, VerdictKind
from kcover_ebpf.settings import Policy
from kcover_ebpf.tunables.diagnosis import (
    ARRIVAL_FACTOR,
    ARRIVAL_FLOOR_S,
    ARRIVED_RANKS,
    PROCESS_SAMPLED_WITHIN_NS,
    TWO_PASSES_NS,
)

WHY_UNREADABLE = "a call into a driver or file system holds its memory lock"


def missing_rank(
    members: Members, progress: JobProgress, now_ns: int, policy: Policy
) -> Finding | None:
    """The lowest rank that never appeared while the present ones only wait; None if none is missing.

    Ranks that their launcher started on another host are not missing. The evidence is time alone, which never ends a
    job: if no launcher says how many ranks are here, a rank may be starting on another host.
    """
    ranks, world_size = members.ranks, members.expected
    if progress.trained or world_size is None or len(members.all_ranks) != len(ranks):
        return None
    members_here = (process.membership for process in ranks.values() if process.membership)
    missing = _missing(
        [membership.rank for membership in members_here if membership.rank is not None], world_size
    )
    waited_s, gaps_s = (now_ns - progress.last_joined_ns) / NS, _gaps_s(members)
    if not missing or waited_s < _grace_s(gaps_s, policy):
        return None
    # ranks that load do not wait for others yet; but one that its launcher did not fork with them is missing all the
    # same
    forked = len(gaps_s) + 1 >= ARRIVED_RANKS
    if not forked and any(_is_at_work(process, now_ns) for process in ranks.values()):
        return None
    text = (
        f"{len(ranks)} of {world_size} ranks are present; "
        f"rank {missing[0]} is missing, {waited_s:.0f} s after the last one appeared"
    )
    return Finding(
        kind=VerdictKind.HUNG,
        cause=Cause.MISSING_RANK,
        since_ns=progress.last_joined_ns,
        culprit=Culprit(missing[0]),
        evidence=(Evidence(EvidenceKind.TIME, text),),
        victims=tuple(ranks),
        doubtful=True,
    )


def _gaps_s(members: Members) -> list[float]:
    """Pauses in seconds between the starts of the ranks, in order; empty if they show nothing.

    If no launcher says how many ranks are here, the others may be starting on other hosts. The starts of ranks that
    existed before they were watched were not observed.
    """
    arrivals = sorted(_started_ns(process) for process in members.ranks.values())
    came = all(
        process.first_seen_ns - _started_ns(process) < TWO_PASSES_NS
        for process in members.ranks.values()
    )
    if members.local_size is None or not came:
        return []
    return [(later - earlier) / NS for earlier, later in pairwise(arrivals)]


def _grace_s(gaps_s: Sequence[float], policy: Policy) -> float:
    """Seconds after the last arrival of a rank within which another one may arrive."""
    if not gaps_s:
        return policy.start_grace_s
    return min(policy.start_grace_s, max(ARRIVAL_FLOOR_S, ARRIVAL_FACTOR * max(gaps_s)))


def _started_ns(process: ProcessHistory) -> int:
    return 0 if process.seen is None else process.seen.start_ns


def _missing(present: Sequence[int], count: int) -> list[int]:
    missing = absent(present, count, count)
    # if a launcher does not number the ranks of a host consecutively, none can be named
    in_one_run = len(missing) + len(set(present)) == min(count, MOST_RANKS)
    return missing if in_one_run and len(present) < count else []


def _is_at_work(process: ProcessHistory, now_ns: int) -> bool:
    lead = process.lead
    burns = lead is not None and lead.burning_since_ns is not None and not lead.waits_busily
    return burns or process.efforts.during(0, now_ns - TWO_PASSES_NS) is not None


def start_wait(members: Members, progress: JobProgress, now_ns: int) -> StartWait | None:
    """The wait of all ranks here for others before the job's first step; None while there is none.

    `now_ns`: boottime. A rank that looks for its peers again and again waits as well. Before `ARRIVAL_FLOOR_S` it is
    the pause of any start, and is not mentioned.
    """
    ranks = list(members.ranks.values())
    if progress.trained or not ranks:
        return None
    came_ns = [at_ns for rank in ranks if (at_ns := _quiet_since_ns(rank)) is not None]
    if len(came_ns) < len(ranks) or now_ns - max(came_ns) < ARRIVAL_FLOOR_S * NS:
        return None
    age_s = round((now_ns - max(came_ns)) / NS, 3)
    return StartWait(age_s, len(ranks), members.world_size)


def _quiet_since_ns(process: ProcessHistory) -> int | None:
    """When a rank last made an effort, boottime; None while it does not sleep.

    Since when a rank polls without sleep is not known, for it may have loaded its libraries in the same burn.
    """
    lead = process.lead
    if lead is None or lead.burning_since_ns or lead.sample.state is not TaskState.SLEEPING:
        return None
    efforts_ns = (to_ns for _, to_ns in process.efforts.latest.values())
    return max(process.first_seen_ns, lead.burnt_until_ns, *efforts_ns)


def awaits_missing_rank(members: Members, progress: JobProgress) -> bool:
    """True while a rank has not arrived yet and the job never trained: the present ranks wait for it."""
    return len(members.all_ranks) < (members.world_size or 0) and not progress.trained


def unsampled_rank(members: Members, now_ns: int) -> Finding | None:
    """UNKNOWN while a rank lives of which no thread was ever sampled: an unobserved rank does not count as healthy."""
    for process in members.ranks.values():
        if process.lead is None and now_ns - process.first_seen_ns > PROCESS_SAMPLED_WITHIN_NS:
            rank = process.rank
            who = (
                f"rank {rank} (pid {process.pid})" if rank is not None else f"process {process.pid}"
            )
            text = f"{who} is running, but the sampler does not see its threads"
            evidence = (Evidence(EvidenceKind.SINK, text),)
            return Finding(
                VerdictKind.UNKNOWN, Cause.UNKNOWN, process.first_seen_ns, evidence=evidence
            )
    return None


def unreadable_process(members: Members, unreadable: Mapping[Pid, Unreadable]) -> Finding | None:
    """UNKNOWN while a process may be a rank but cannot be read."""
    for pid, fact in unreadable.items():
        process = members.views.get(pid)
        if process is not None and process.seen is None and process.exit is None:
            text = f"cannot identify pid {pid}: {WHY_UNREADABLE}"
            evidence = (Evidence(EvidenceKind.SINK, text),)
            return Finding(VerdictKind.UNKNOWN, Cause.UNKNOWN, fact.since_ns, evidence=evidence)
    return None
