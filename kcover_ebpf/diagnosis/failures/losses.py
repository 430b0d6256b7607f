"""Losses that a job cannot continue without: a rank that its launcher ended, a loader that died. Pure.

The loss was announced, and the ranks that need it have stopped since, each for longer than ever while healthy. If they
move again, it was no fault: ranks continue without one that a launcher ended, a rank without its sandbox.
"""

from __future__ import annotations

from collections.abc import Mapping

from kcover_ebpf.diagnosis.evidence import control_group, evidence, wait_chain
from kcover_ebpf.diagnosis.evidence.snapshot import Finding, JobSnapshot
from kcover_ebpf.diagnosis.failures.announcements import Announcements, Loss
from kcover_ebpf.diagnosis.failures.exits import cause_of, crashed, reported
from kcover_ebpf.diagnosis.history import stacks
from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.model.process_state import STOPPED
from kcover_ebpf.model.rank_snapshot import RankSnapshot
from kcover_ebpf.model.verdict import Evidence, EvidenceKind
from kcover_ebpf.tunables.diagnosis import LEARNED_GAPS, LOSS_FLOOR_S


def missed(
    snapshot: JobSnapshot, announcements: Announcements, views: Mapping[Pid, ProcessHistory]
) -> Finding | None:
    """The finding for a loss that is missed; None while the job continues without everything that it lost."""
    if not announcements.losses:
        return None
    snapshot = control_group.compared(snapshot)
    for loss in announcements.losses.values():
        if loss.owner is not None and _misses_loader(snapshot, loss, loss.owner):
            return _finding(snapshot, loss, announcements, views)
    ended = [loss for loss in announcements.losses.values() if loss.owner is None]
    # a launcher that ends several ranks ends the job, or makes it smaller
    if len(ended) != 1 or not _misses_rank(snapshot, ended[0], views):
        return None
    return _finding(snapshot, ended[0], announcements, views)


def _misses_loader(snapshot: JobSnapshot, loss: Loss, owner: Pid) -> bool:
    rank = snapshot.ranks.get(owner)
    if rank is None or not _has_stopped(snapshot, rank, loss):
        return False
    others = [other for other in snapshot.ranks.values() if other.pid != owner]
    # a rank that waits like most others waits for another rank
    apart = stacks.groups(
        {
            rank_snapshot.pid: rank_snapshot.stack
            for rank_snapshot in [rank, *others]
            if rank_snapshot.stack
        }
    )
    return not any(owner in group and 2 * len(group) > len(snapshot.ranks) > 2 for group in apart)


def _misses_rank(snapshot: JobSnapshot, loss: Loss, views: Mapping[Pid, ProcessHistory]) -> bool:
    ranks = snapshot.ranks.values()
    return bool(ranks) and all(
        _has_stopped(snapshot, rank, loss)
        or _has_fallen_silent(snapshot, rank, loss, views[rank.pid])
        for rank in ranks
    )


def _has_fallen_silent(
    snapshot: JobSnapshot, rank: RankSnapshot, loss: Loss, process: ProcessHistory
) -> bool:
    # a rank that lost its connection to the dead one raises an error: it runs for seconds more, and exchanges nothing
    silent_s = rank.received_age_s
    if silent_s is None or _ended_s(snapshot, loss) >= snapshot.policy.act_floor_s:
        # a rank that still runs when the job would be ended for it does something else
        return False
    noticed_s = snapshot.threshold_s(rank.pid)
    if process.healthy_passes >= LEARNED_GAPS:
        # no rank is accused because of its silence, so the floor of a stall need not pass
        quiet_s = snapshot.policy.stall_factor * process.longest_quiet_ns / NS
        noticed_s = min(noticed_s, max(LOSS_FLOOR_S, quiet_s))
    return min(silent_s, _ended_s(snapshot, loss)) >= noticed_s


def _ended_s(snapshot: JobSnapshot, loss: Loss) -> float:
    return (snapshot.now_ns - loss.process_exit.boottime_ns) / NS


def _has_stopped(snapshot: JobSnapshot, rank: RankSnapshot, loss: Loss) -> bool:
    since_s = min(rank.age_s, _ended_s(snapshot, loss))
    is_waiting = rank.state not in STOPPED and not wait_chain.is_effort(snapshot, rank)
    return is_waiting and since_s >= snapshot.threshold_s(rank.pid)


def _finding(
    snapshot: JobSnapshot,
    loss: Loss,
    announcements: Announcements,
    views: Mapping[Pid, ProcessHistory],
) -> Finding:
    process_exit, process = loss.process_exit, views[loss.process_exit.pid]
    found = [Evidence(EvidenceKind.EVENT, reported(process, process_exit, announcements))]
    waiting = list(snapshot.ranks.values())
    if loss.owner is None:
        silent_s = min(max(rank.age_s, rank.received_age_s or 0.0) for rank in waiting)
        text = f"none of the {len(waiting)} other ranks has exchanged anything for {silent_s:.1f} s"
        found.append(Evidence(EvidenceKind.PEERS, text))
    else:
        found += evidence.time(snapshot.ranks[loss.owner])
    victims = tuple(snapshot.ranks)
    return crashed(
        cause_of(process, process_exit, announcements),
        process_exit.boottime_ns,
        process,
        found,
        victims,
    )
