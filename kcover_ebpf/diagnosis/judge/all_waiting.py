"""All ranks wait and no chain of waits has an end: a rank left, a window is closed, a mismatch, or a circle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kcover_ebpf.diagnosis.evidence import evidence, tcp_links
from kcover_ebpf.diagnosis.evidence.snapshot import Finding, JobSnapshot, blame
from kcover_ebpf.diagnosis.history import stacks
from kcover_ebpf.diagnosis.judge import device_wait
from kcover_ebpf.diagnosis.judge.run_end import left_at_stall
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.rank_snapshot import RankSnapshot
from kcover_ebpf.model.verdict import Cause, Evidence, EvidenceKind, VerdictKind
from kcover_ebpf.tunables.certainty import KILLED_PATIENCE_S
from kcover_ebpf.tunables.diagnosis import CYCLE_FACTOR, CYCLE_FLOOR_S, LATE_FLOOR_S


def standstill(snapshot: JobSnapshot, ranks: Sequence[RankSnapshot]) -> Finding | None:
    """The reason why a job in which every rank waits makes no progress; None while it has not lasted long enough.

    During a start, while ranks are still missing, all of these look alike, except for a rank that left.
    """
    if not ranks:
        return None
    silent = {rank.pid: rank.age_s for rank in ranks}
    needed = max(snapshot.threshold_s(pid) for pid in silent)
    if min(silent.values()) < max(1.0, needed / 2) or max(silent.values()) < needed:
        return None
    gone = _left_for_it(snapshot, ranks)
    if gone is not None and gone.state is State.GONE:
        return _ended(snapshot, gone, ranks)
    if gone is not None:
        text = f"{evidence.name(gone)} exited with code 0 while the others still wait for it"
        kind = EvidenceKind.EVENT if _is_announced(snapshot, gone, ranks) else EvidenceKind.SINK
        found = [Evidence(kind, text), *evidence.time(ranks[0])]
        return blame(snapshot, VerdictKind.HUNG, Cause.LEFT_EARLY, gone, found)
    if snapshot.starting or _may_read_yet(snapshot):
        return None
    if any(rank.state is State.ON_DEVICE for rank in ranks):
        # the last sends, and their times, do not show which rank waits for a device
        return device_wait.all_wait(snapshot, ranks)
    return _in_waits(snapshot, ranks, needed)


def _in_waits(
    snapshot: JobSnapshot, ranks: Sequence[RankSnapshot], needed_s: float
) -> Finding | None:
    """The rank that waits elsewhere than the others; a circle of waits if there is none."""
    apart = stacks.groups({rank.pid: rank.stack for rank in ranks if rank.stack})
    lag = tcp_links.oldest_sender(snapshot.ranks, snapshot.ends)
    left_unread = [rank for rank in ranks if evidence.unread(snapshot, rank)]
    silent_s = min(rank.age_s for rank in ranks)
    is_late = silent_s >= max(LATE_FLOOR_S, CYCLE_FACTOR * needed_s)
    if len(left_unread) == 1:
        return _does_not_read(snapshot, left_unread[0], ranks, is_late=is_late)
    odd = [snapshot.ranks[pid] for pid in stacks.minority(apart)]
    # a wait that was seen to end, in the input or at a lock, may end again
    new = [rank for rank in odd if not rank.known_wait]
    if new:
        return _apart(snapshot, ranks, apart, new, lag)
    if len(odd) == 1 or lag is not None:
        late = odd[0] if len(odd) == 1 else None
        return _late(snapshot, ranks, late, lag, is_late=is_late)
    if odd:
        return _parted(snapshot, ranks, apart) if is_late else None
    lasts = silent_s >= max(CYCLE_FLOOR_S, CYCLE_FACTOR * needed_s)
    known = is_late or (lasts and len(apart) < 2)
    return _cycle(snapshot, ranks, is_late=is_late) if known else None


def _cycle(
    snapshot: JobSnapshot, ranks: Sequence[RankSnapshot], *, is_late: bool
) -> Finding | None:
    # programs that never exchanged anything do not wait for each other
    if len(ranks) < 2 or not any(rank.joined or rank.rank is not None for rank in ranks):
        return None
    # one that is not seen, or what a rank asks for again and again, may be what all of them wait for
    is_closed = snapshot.whole and all(rank.state is not State.NAPPING for rank in ranks)
    text = "every rank waits for the others and no data is in flight"
    if not is_closed:
        text = "every rank here waits, for others or for what is not seen, and no data is in flight"
    found = [*_silence(ranks), Evidence(EvidenceKind.PEERS, text), *evidence.gpus(ranks)]
    victims = tuple(rank.pid for rank in ranks)
    # nothing but time distinguishes it from one long step
    kind = VerdictKind.HUNG if is_closed and is_late else VerdictKind.UNKNOWN
    return Finding(kind, Cause.WAIT_CYCLE, snapshot.oldest_ns, None, tuple(found), victims)


def _left_for_it(snapshot: JobSnapshot, ranks: Sequence[RankSnapshot]) -> RankSnapshot | None:
    """The rank whose leaving explains that the others wait: it left at most a step before they stopped.

    And they wait where ranks wait for each other: who joins its own uploader at the end waits for none that left.
    """
    if not all(_in_collective(rank) for rank in ranks):
        return None
    recent = left_at_stall(snapshot, ranks)
    return max(recent, key=lambda rank: rank.age_s, default=None)


def _is_announced(
    snapshot: JobSnapshot, left_rank: RankSnapshot, ranks: Sequence[RankSnapshot]
) -> bool:
    """True if a clean exit alone shows that the others will wait for ever.

    A rank has waited since before the exit, so no collective was completed since. The rank that left had sent or
    received until then, so the collective was its own; where that is seen of no rank, it was one like all others. And
    the others had not all stopped long before: then they may wait for something else, for example their own uploads.
    """
    waits_s = [rank.age_s for rank in ranks]
    step_s = max(snapshot.threshold_s(rank.pid) for rank in ranks)
    age_s = _exchange_age_s(left_rank)
    if age_s is None:
        took_part = all(_exchange_age_s(rank) is None for rank in ranks)
    else:
        took_part = age_s <= left_rank.age_s + step_s
    return took_part and min(waits_s) - step_s <= left_rank.age_s <= max(waits_s)


def _exchange_age_s(rank: RankSnapshot) -> float | None:
    ages_s = (rank.sent_age_s, rank.received_age_s)
    return min((age_s for age_s in ages_s if age_s is not None), default=None)


def _in_collective(rank: RankSnapshot) -> bool:
    return rank.state in (State.PEERS, State.ON_DEVICE, State.SPINNING) or rank.known_wait


def _may_read_yet(snapshot: JobSnapshot) -> bool:
    # a rank that sends into a closed window sent last long ago, and waits elsewhere than the others: because of its
    # reader
    closed = tcp_links.closed_reader(snapshot.ranks, snapshot.ends)
    if closed is None:
        return False
    reader, _ = closed
    return snapshot.processes[reader].age_s < snapshot.threshold_s(reader)


def _does_not_read(
    snapshot: JobSnapshot, rank: RankSnapshot, ranks: Sequence[RankSnapshot], *, is_late: bool
) -> Finding:
    # its data has arrived: the thread that should read it does not; or, as often before, not yet; or it first waits for
    # a rank elsewhere
    found = [*evidence.unread(snapshot, rank), *evidence.time(rank)]
    found += evidence.peers(rank, ranks)
    is_stuck = snapshot.whole and (is_late or not rank.known_wait)
    kind = VerdictKind.HUNG if is_stuck else VerdictKind.UNKNOWN
    return blame(snapshot, kind, Cause.BLOCKED_READ, rank, found)


def _ended(
    snapshot: JobSnapshot, lost_rank: RankSnapshot, ranks: Sequence[RankSnapshot]
) -> Finding:
    # its own launcher ended it and may well restart it: announced only once that takes too long
    text = f"{evidence.name(lost_rank)} was ended by its own job and has not been restarted"
    kind = EvidenceKind.SINK
    if snapshot.now_ns - snapshot.silent_since_ns >= KILLED_PATIENCE_S * NS:
        kind = EvidenceKind.EVENT
    found = [Evidence(kind, f"{text}, {evidence.ago(lost_rank)}")]
    found += [*evidence.time(ranks[0]), *evidence.peers(lost_rank, ranks)]
    return blame(snapshot, VerdictKind.HUNG, Cause.KILLED, lost_rank, found)


def _apart(
    snapshot: JobSnapshot,
    ranks: Sequence[RankSnapshot],
    apart: Sequence[list[Pid]],
    odd: Sequence[RankSnapshot],
    lag: tuple[Pid, float] | None,
) -> Finding:
    """The ranks wait in several places, some of them where no healthy rank ever waited."""
    said = f"the ranks wait in {len(apart)} places: {_sides(snapshot, apart)}"
    found = [*_silence(ranks), *_order(snapshot, lag), Evidence(EvidenceKind.STACK, said)]
    culprit = snapshot.ranks[lag[0]] if lag is not None else None
    culprit = odd[0] if len(odd) == 1 else culprit
    found += [Evidence(EvidenceKind.PEERS, "every rank waits"), *evidence.gpus(ranks, culprit)]
    kind, cause = VerdictKind.DEADLOCK, Cause.COLLECTIVE_MISMATCH
    if culprit is not None:
        finding = blame(snapshot, kind, cause, culprit, found)
        return replace(finding, doubtful=len(odd) > 1 and not _order_counts(snapshot))
    victims = tuple(rank.pid for rank in ranks)
    return Finding(kind, cause, snapshot.oldest_ns, None, tuple(found), victims)


def _parted(
    snapshot: JobSnapshot, ranks: Sequence[RankSnapshot], apart: Sequence[list[Pid]]
) -> Finding:
    """Several ranks wait in one place and several in another, as often before: it is unknown which ones are late."""
    said = f"the ranks wait in {len(apart)} places: {_sides(snapshot, apart)}"
    found = [*_silence(ranks), Evidence(EvidenceKind.STACK, said), *evidence.gpus(ranks)]
    victims = tuple(rank.pid for rank in ranks)
    kind, since_ns = VerdictKind.UNKNOWN, snapshot.oldest_ns
    return Finding(kind, Cause.WAIT_CYCLE, since_ns, None, tuple(found), victims)


def _sides(snapshot: JobSnapshot, apart: Sequence[list[Pid]]) -> str:
    return " | ".join(
        ", ".join(evidence.name(snapshot.ranks[pid]) for pid in group) for group in apart
    )


def _late(
    snapshot: JobSnapshot,
    ranks: Sequence[RankSnapshot],
    rank: RankSnapshot | None,
    lag: tuple[Pid, float] | None,
    *,
    is_late: bool,
) -> Finding | None:
    """One rank is elsewhere in a wait that often ends, or sent before all others did: it may well arrive."""
    culprit = snapshot.ranks[lag[0]] if rank is None and lag is not None else rank
    if culprit is None:
        return None
    found = [*_silence(ranks), *_order(snapshot, lag), *evidence.gpus(ranks, culprit)]
    found.append(Evidence(EvidenceKind.PEERS, "every rank waits"))
    kind, cause = VerdictKind.HUNG, Cause.BLOCKED_UNKNOWN
    others = {
        stacks.waits_in(rank_snapshot.stack)
        for rank_snapshot in ranks
        if rank_snapshot.pid != culprit.pid
    }
    if rank is not None and stacks.waits_in(rank.stack) in others - {None}:
        kind, cause = VerdictKind.DEADLOCK, Cause.COLLECTIVE_MISMATCH
    finding = blame(snapshot, kind if is_late else VerdictKind.UNKNOWN, cause, culprit, found)
    return replace(finding, doubtful=rank is None and not _order_counts(snapshot))


def _order_counts(snapshot: JobSnapshot) -> bool:
    return tcp_links.sends_alike(snapshot.ranks) is True


def _silence(ranks: Sequence[RankSnapshot]) -> list[Evidence]:
    quiet_s = min(rank.age_s for rank in ranks)
    return [Evidence(EvidenceKind.TIME, f"no rank has made progress for {quiet_s:.1f} s")]


def _order(snapshot: JobSnapshot, lag: tuple[Pid, float] | None) -> list[Evidence]:
    if lag is None:
        return []
    name = evidence.name(snapshot.ranks[lag[0]])
    text = f"{name}'s last send was {lag[1]:.2f} s before any other rank's"
    if not _order_counts(snapshot):
        text += "; it is unknown whether they send at the same time while they train"
    return [Evidence(EvidenceKind.EDGE, text)]
