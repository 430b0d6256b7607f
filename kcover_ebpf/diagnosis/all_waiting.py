"""All ranks wait and none is at the end of a chain: a rank that left, a closed window, a mismatch, a circle."""

from __future__ import annotations

from collections.abc import Sequence

from kcover_ebpf.diagnosis import device_wait, evidence, stacks, tcp_links
from kcover_ebpf.diagnosis.process_state import State
from kcover_ebpf.diagnosis.rank_snapshot import RankSnapshot
from kcover_ebpf.diagnosis.snapshot import Finding, JobSnapshot, blame
from kcover_ebpf.diagnosis.verdict import Cause, Evidence, EvidenceKind, VerdictKind
from kcover_ebpf.ids import Pid
from kcover_ebpf.tunables.diagnosis import CYCLE_FACTOR, CYCLE_FLOOR_S


def standstill(snapshot: JobSnapshot, ranks: Sequence[RankSnapshot]) -> Finding | None:
    """What holds a job in which every rank waits; None while it has not lasted long enough.

    A start in which ranks are still missing looks like every one of these but the first.
    """
    if not ranks:
        return None
    silent = {each.pid: each.age_s for each in ranks}
    needed = max(snapshot.threshold_s(pid) for pid in silent)
    if min(silent.values()) < max(1.0, needed / 2) or max(silent.values()) < needed:
        return None
    since_ns = snapshot.oldest_ns
    gone = max(snapshot.left.values(), key=lambda each: each.age_s, default=None)
    if gone is not None and gone.state is State.GONE:
        return _ended(snapshot, gone, ranks)
    if gone is not None:
        text = f"{evidence.name(gone)} exited with code 0 while the others still wait for it"
        found = [Evidence(EvidenceKind.EVENT, text), *evidence.time(ranks[0])]
        return blame(snapshot, VerdictKind.HUNG, Cause.LEFT_EARLY, gone, found)
    if snapshot.starting or _may_read_yet(snapshot):
        return None
    if any(each.state is State.ON_DEVICE for each in ranks):
        # what was sent last, and when, shows nothing about which rank waits for a device
        return device_wait.all_wait(snapshot, ranks)
    apart = stacks.groups({each.pid: each.stack for each in ranks if each.stack})
    lag = tcp_links.oldest_sender(snapshot.ranks, snapshot.ends)
    left_unread = [each for each in ranks if evidence.unread(snapshot, each)]
    if len(left_unread) == 1:
        return _does_not_read(snapshot, left_unread[0], ranks)
    if len(apart) > 1 or lag is not None:
        return _mismatch(snapshot, ranks, apart, lag)
    if min(silent.values()) < max(CYCLE_FLOOR_S, CYCLE_FACTOR * needed) or len(ranks) < 2:
        return None
    found = [
        Evidence(EvidenceKind.TIME, f"no rank has made progress for {min(silent.values()):.1f} s"),
        Evidence(EvidenceKind.PEERS, "every rank waits for the others and no data is in flight"),
        *evidence.gpus(ranks),
    ]
    victims = tuple(each.pid for each in ranks)
    return Finding(VerdictKind.HUNG, Cause.WAIT_CYCLE, since_ns, None, tuple(found), victims)


def _may_read_yet(snapshot: JobSnapshot) -> bool:
    # who sends into a closed window sent last long ago, and waits where the others do not: because of its reader
    closed = tcp_links.closed_reader(snapshot.ranks, snapshot.ends)
    if closed is None:
        return False
    reader, _ = closed
    return snapshot.processes[reader].age_s < snapshot.threshold_s(reader)


def _does_not_read(
    snapshot: JobSnapshot, each: RankSnapshot, ranks: Sequence[RankSnapshot]
) -> Finding:
    # what it waits for is there: a thread of it that should read does not
    found = [*evidence.unread(snapshot, each), *evidence.time(each)]
    found += evidence.peers(each, ranks)
    return blame(snapshot, VerdictKind.HUNG, Cause.BLOCKED_READ, each, found)


def _ended(snapshot: JobSnapshot, gone: RankSnapshot, ranks: Sequence[RankSnapshot]) -> Finding:
    # its own launcher ended it, and may well start it again: that is announced only once it took too long
    text = f"{evidence.name(gone)} was ended by its own job and has not been restarted"
    kind = EvidenceKind.SINK
    if gone.age_s >= snapshot.policy.storage_patience_s:
        kind = EvidenceKind.EVENT
    found = [Evidence(kind, f"{text}, {evidence.ago(gone)}")]
    found += [*evidence.time(ranks[0]), *evidence.peers(gone, ranks)]
    return blame(snapshot, VerdictKind.HUNG, Cause.KILLED, gone, found)


def _mismatch(
    snapshot: JobSnapshot,
    ranks: Sequence[RankSnapshot],
    apart: Sequence[list[Pid]],
    lag: tuple[Pid, float] | None,
) -> Finding:
    by_pid = {each.pid: each for each in ranks}
    odd = stacks.minority(apart)
    quiet_s = min(each.age_s for each in ranks)
    found = [Evidence(EvidenceKind.TIME, f"no rank has made progress for {quiet_s:.1f} s")]
    culprit: RankSnapshot | None = None
    if lag is not None:
        text = f"{evidence.name(by_pid[lag[0]])}'s last send was {lag[1]:.2f} s before any other rank's"
        found.append(Evidence(EvidenceKind.EDGE, text))
        culprit = by_pid[lag[0]]
    if len(apart) > 1:
        sides = " | ".join(
            ", ".join(evidence.name(by_pid[pid]) for pid in group) for group in apart
        )
        found.append(
            Evidence(EvidenceKind.STACK, f"the ranks wait in {len(apart)} places: {sides}")
        )
        if len(odd) == 1:
            culprit = by_pid[odd[0]]
    found += [Evidence(EvidenceKind.PEERS, "every rank waits"), *evidence.gpus(ranks, culprit)]
    since_ns = snapshot.oldest_ns
    if len(apart) > 1:
        cause = Cause.COLLECTIVE_MISMATCH
        kind = VerdictKind.DEADLOCK
    else:
        cause, kind = Cause.BLOCKED_UNKNOWN, VerdictKind.HUNG
    if culprit is None:
        victims = tuple(by_pid)
        return Finding(kind, cause, since_ns, None, tuple(found), victims)
    return blame(snapshot, kind, cause, culprit, found)
