"""Conclusions of one run of `trace` about a job that is already stuck and was never seen healthy. Pure.

No cadence was learned, and announcements are past. But the kernel remembers since when each thread waits, and a rank
that is no longer there leaves a gap.
"""

from __future__ import annotations

from dataclasses import replace

from kcover_ebpf.diagnosis import oneshot_waits
from kcover_ebpf.diagnosis.evidence.snapshot import Finding, JobSnapshot
from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.diagnosis.job import Job
from kcover_ebpf.diagnosis.membership.rank_numbers import MOST_RANKS, absent, lost_before_trace
from kcover_ebpf.diagnosis.oneshot_waits import PassHistory
from kcover_ebpf.ids import NS
from kcover_ebpf.model.process_state import WAITING, State
from kcover_ebpf.model.rank_snapshot import RankSnapshot
from kcover_ebpf.model.verdict import Cause, Culprit, Evidence, EvidenceKind, VerdictKind
from kcover_ebpf.tunables.trace import (
    ONESHOT_CONNECTING_S,
    ONESHOT_LONG_WAIT_S,
    ONESHOT_SILENCE_S,
    UNEXPLAINED_S,
)

_NO_WORK = WAITING | {State.SLEEPING, State.MOVING}
_FOR_CHILDREN = (State.CHILDREN, State.CHILD)
_KNOCKING = frozenset({"CLOSE", "SYN_SENT"})
QUIET = (Cause.STARTING, Cause.TRAINING)
"""Causes reported for a job in which nothing is unusual."""


def finding(job: Job, history: PassHistory) -> Finding | None:
    """The finding after these passes; None while the facts are too incomplete."""
    current_finding = job.finding()
    if current_finding is None or current_finding.kind not in (
        VerdictKind.WORKING,
        VerdictKind.SLOW,
    ):
        return current_finding
    snapshot = oneshot_waits.snapshot_of(job, history)
    current_finding = oneshot_waits.judge_again(job, snapshot, current_finding)
    return oneshot_waits.name_who_is_waited_for(job, snapshot, current_finding)


def conclusion(job: Job, history: PassHistory) -> Finding | None:
    """The result of a run of `trace`: its finding, refined by what only the absence of a rank shows."""
    current_finding = finding(job, history)
    if current_finding is None:
        return None
    if current_finding.kind is VerdictKind.WORKING and (lost := lost_before(job)) is not None:
        return lost
    if (
        current_finding.kind is VerdictKind.WORKING
        and (waits := device_waits(job.snapshot(), current_finding)) is not None
    ):
        return waits
    if current_finding.kind is VerdictKind.LOST_LINK:
        named = name_the_lost(job, current_finding)
        return since_the_loss(job, named)
    return stopped_here(job.snapshot(), current_finding, job.members.world_size)


def no_rank_moves(job: Job) -> bool:
    """True if every rank here has waited for others for a moment; False for a job without ranks."""
    ranks = job.snapshot().ranks.values()
    return bool(ranks) and all(_waits(job, rank) for rank in ranks)


def a_rank_waits(job: Job, history: PassHistory) -> bool:
    """True if a rank here has waited for others for longer than most steps last."""
    snapshot = oneshot_waits.snapshot_of(job, history)
    if oneshot_waits.a_rank_polls(job, snapshot, history):
        return True
    waits = [rank for rank in snapshot.ranks.values() if rank.state in WAITING]
    return any(wait.age_s >= ONESHOT_LONG_WAIT_S for wait in waits)


def undecided(job: Job, history: PassHistory) -> bool:
    """True while a rank or its loader burns a CPU and may still turn out to be what the others wait for.

    A rank that waits busily, as MPI's do, must be distinguished from one that computes or loops in place. The kernel
    does not remember when either began: only longer observation shows which it is.
    """
    snapshot = oneshot_waits.snapshot_of(job, history)
    for rank in snapshot.ranks.values():
        views = [job.members.views[rank.pid]]
        views += job.members.children(rank.pid) if rank.state in _FOR_CHILDREN else []
        burns = rank.state in (State.COMPUTING, State.THROTTLED, *_FOR_CHILDREN)
        seldom = any(process.lead is not None and process.lead.seen_too_seldom for process in views)
        if rank.state is State.SPINNING or (burns and seldom):
            return True
    return False


def lost_before(job: Job) -> Finding | None:
    """The rank that was lost before the run, if all others wait for it; None if none is missing here.

    A launcher says how many ranks it started on this host. Without it only a gap in the numbers shows that a rank of
    this host, and not of another one, is missing.
    """
    snapshot = job.snapshot()
    if not no_rank_moves(job) and not _all_quiet(job):
        return None
    missing = _missing_ranks(job)
    if not missing:
        return None
    size = job.members.world_size
    found = [
        Evidence(
            EvidenceKind.SINK,
            lost_before_trace(missing[0], len(snapshot.ranks), size, "on this host"),
        ),
        Evidence(
            EvidenceKind.PEERS,
            f"all {len(snapshot.ranks)} ranks present have waited "
            f"for at least {min(rank.age_s for rank in snapshot.ranks.values()):.1f} s",
        ),
    ]
    return Finding(
        kind=VerdictKind.HUNG,
        cause=Cause.MISSING_RANK,
        since_ns=snapshot.oldest_ns,
        culprit=Culprit(missing[0]),
        evidence=tuple(found),
        victims=tuple(snapshot.ranks),
    )


def device_waits(snapshot: JobSnapshot, current_finding: Finding) -> Finding | None:
    """UNKNOWN if ranks wait for their devices and no rank does anything else; None in all other cases.

    A healthy job in a long step looks the same.
    """
    ranks = snapshot.ranks.values()
    waiting = [rank for rank in ranks if rank.state is State.ON_DEVICE]
    silent_s = min((rank.age_s for rank in ranks), default=0.0)
    nothing_else = all(rank.state in WAITING for rank in ranks)
    if (
        not waiting
        or not nothing_else
        or current_finding.cause not in QUIET
        or silent_s < ONESHOT_SILENCE_S
    ):
        return None
    text = (
        f"{len(waiting)} of {len(ranks)} ranks have waited for their devices for at least {silent_s:.1f} s, "
        "as in a long step"
    )
    return Finding(
        kind=VerdictKind.UNKNOWN,
        cause=Cause.DEVICE_WAIT,
        since_ns=snapshot.oldest_ns,
        evidence=(Evidence(EvidenceKind.TIME, text),),
        victims=tuple(snapshot.ranks),
    )


def name_the_lost(job: Job, current_finding: Finding) -> Finding:
    """A lost link that no rank here explains, with the one missing rank of this host as its end."""
    if current_finding.kind is not VerdictKind.LOST_LINK or current_finding.rank is not None:
        return current_finding
    missing = _missing_ranks(job)
    if len(missing) != 1:
        return current_finding
    text = f"rank {missing[0]} is missing, and the lost connections lead to no process on this host"
    evidence = (*current_finding.evidence, Evidence(EvidenceKind.SINK, text))
    culprit = replace(current_finding.culprit or Culprit(), rank=missing[0])
    return replace(current_finding, culprit=culprit, evidence=evidence)


def since_the_loss(job: Job, current_finding: Finding) -> Finding:
    """A lost link, dated from the last byte that got through: the kernel counts each retransmission as sent."""
    lasts = [
        socket.last_receive_ns
        for process in job.members.ranks.values()
        for socket in process.sockets.values()
        if socket.state == "ESTABLISHED"
    ]
    last_ns = max(lasts, default=0)
    if not 0 < last_ns < current_finding.since_ns:
        return current_finding
    text = f"no byte has reached any rank for {(job.now_ns - last_ns) / NS:.1f} s"
    others = (
        sentence for sentence in current_finding.evidence if sentence.kind is not EvidenceKind.TIME
    )
    evidence = (*others, Evidence(EvidenceKind.TIME, text))
    return replace(current_finding, since_ns=last_ns, evidence=evidence)


def stopped_here(
    snapshot: JobSnapshot, current_finding: Finding, world_size: int | None
) -> Finding:
    """A stopped or frozen part of a job as a fault: only a whole job that is stopped was suspended on purpose."""
    ranks = snapshot.ranks.values()
    # a rank with only its pod's number may not know the world size, but the lower numbers exist
    numbers = (rank.rank for rank in ranks if rank.rank is not None)
    size = world_size or max(numbers, default=0) + 1
    if current_finding.cause is not Cause.SUSPENDED or len(ranks) >= size:
        return current_finding
    first = max(ranks, key=lambda rank: rank.age_s)
    cause = {State.STOPPED: Cause.STOPPED, State.FROZEN: Cause.FROZEN}.get(first.state)
    if cause is None:
        return current_finding
    text = f"all {len(ranks)} traced ranks are stopped, of {size} or more in the job"
    evidence = (Evidence(EvidenceKind.SINK, f"rank {first.rank} is {first.text}; {text}"),)
    culprit = Culprit(first.rank, first.pid, first.tid)
    return Finding(VerdictKind.HUNG, cause, snapshot.since_ns(first), culprit, evidence)


def _missing_ranks(job: Job) -> list[int]:
    members = [process.membership for process in job.members.ranks.values() if process.membership]
    present = {member.rank for member in members if member.rank is not None}
    return _missing(present, job.members.world_size, job.members.local_size)


def _waits(job: Job, rank: RankSnapshot) -> bool:
    silent = rank.age_s >= ONESHOT_SILENCE_S
    return (rank.state in WAITING and silent) or _knocks(job, job.members.views[rank.pid])


def _all_quiet(job: Job) -> bool:
    # the rank that serves the others' store polls it a hundred times a second and sleeps in between
    snapshot = job.snapshot()
    quiet_ns = oneshot_waits.quiet_since_ns(job, snapshot)
    if quiet_ns is None or job.now_ns - quiet_ns < UNEXPLAINED_S * NS:
        return False
    return all(rank.state in _NO_WORK for rank in snapshot.ranks.values())


def _knocks(job: Job, process: ProcessHistory) -> bool:
    # it has long tried to connect and has no connection: ranks start like this while the first rank is missing
    states = {socket.state for socket in process.sockets.values() if socket.remote[1]}
    if process.lead is None or "ESTABLISHED" in states or not states & _KNOCKING:
        return False
    return job.now_ns - process.lead.sample.start_ns >= ONESHOT_CONNECTING_S * NS


def _missing(present: set[int], world_size: int | None, local_size: int | None) -> list[int]:
    if not present or world_size is None or len(present) >= min(world_size, MOST_RANKS):
        return []
    if local_size is not None:
        return absent(present, world_size, local_size)
    # lower and higher ranks may be on other hosts
    return [rank for rank in absent(present, max(present)) if rank > min(present)]
