"""Everybody waits and nobody is at the end of a chain: a rank that left, a closed window, a mismatch, a circle."""

from __future__ import annotations

from collections.abc import Sequence

from kcover_ebpf.diagnosis import device_wait, evidence, stacks, tcp_links
from kcover_ebpf.diagnosis.process_state import ProcessState, State
from kcover_ebpf.diagnosis.snapshot import Finding, JobSnapshot, blame
from kcover_ebpf.diagnosis.verdict import Cause, Evidence, EvidenceKind, VerdictKind
from kcover_ebpf.ids import Pid

_CYCLE_FACTOR = 2.0
_CYCLE_FLOOR_S = 6.0


def standstill(picture: JobSnapshot, ranks: Sequence[ProcessState]) -> Finding | None:
    """What holds a job in which every rank waits; None while it has not lasted long enough.

    A start in which ranks are still missing looks like every one of these but the first.
    """
    if not ranks:
        return None
    silent = {each.pid: picture.silence_s(each.pid) for each in ranks}
    needed = max(picture.thresholds_s[pid] for pid in silent)
    if min(silent.values()) < max(1.0, needed / 2) or max(silent.values()) < needed:
        return None
    since_ns = min(each.since_ns for each in ranks)
    gone = min(picture.left.values(), key=lambda each: each.since_ns, default=None)
    if gone is not None and gone.state is State.GONE:
        return _ended(picture, gone, ranks)
    if gone is not None:
        text = f"{evidence.name(gone)} exited with code 0 while the others still wait for it"
        found = [Evidence(EvidenceKind.EVENT, text), *evidence.time(picture, ranks[0])]
        return blame(VerdictKind.HUNG, Cause.LEFT_EARLY, gone, found, ranks)
    if picture.starting:
        return None
    if any(each.state is State.ON_DEVICE for each in ranks):
        # what was sent last, and when, shows nothing about which rank waits for a device
        return device_wait.all_wait(picture, ranks)
    known = ((each.pid, each.inspection.stack) for each in ranks if each.inspection)
    apart = stacks.groups({pid: stack for pid, stack in known if stack})
    lag = tcp_links.oldest_sender(picture.ranks, picture.ends)
    left_unread = [each for each in ranks if evidence.unread(picture, each)]
    if len(left_unread) == 1:
        return _does_not_read(picture, left_unread[0], ranks)
    if len(apart) > 1 or lag is not None:
        return _mismatch(picture, ranks, apart, lag)
    if min(silent.values()) < max(_CYCLE_FLOOR_S, _CYCLE_FACTOR * needed) or len(ranks) < 2:
        return None
    found = [
        Evidence(EvidenceKind.TIME, f"no rank has made progress for {min(silent.values()):.1f} s"),
        Evidence(EvidenceKind.PEERS, "every rank waits for the others and no data is in flight"),
    ]
    victims = tuple(each.pid for each in ranks)
    return Finding(
        VerdictKind.HUNG, Cause.WAIT_CYCLE, since_ns, None, None, None, tuple(found), victims
    )


def _does_not_read(
    picture: JobSnapshot, each: ProcessState, ranks: Sequence[ProcessState]
) -> Finding:
    # what it waits for is there: a thread of it that should read does not
    found = [*evidence.unread(picture, each), *evidence.time(picture, each)]
    found += evidence.peers(picture, each, ranks)
    return blame(VerdictKind.HUNG, Cause.BLOCKED_READ, each, found, ranks)


def _ended(picture: JobSnapshot, gone: ProcessState, ranks: Sequence[ProcessState]) -> Finding:
    # its own launcher ended it, and may well start it again: that is announced only once it took too long
    text = f"{evidence.name(gone)} was ended by its own job and has not been restarted"
    kind = EvidenceKind.SINK
    if picture.silence_s(gone.pid) >= picture.policy.storage_patience_s:
        kind = EvidenceKind.EVENT
    found = [Evidence(kind, f"{text}, {evidence.ago(picture, gone)}")]
    found += [*evidence.time(picture, ranks[0]), *evidence.peers(picture, gone, ranks)]
    return blame(VerdictKind.HUNG, Cause.KILLED, gone, found, ranks)


def _mismatch(
    picture: JobSnapshot,
    ranks: Sequence[ProcessState],
    apart: Sequence[list[Pid]],
    lag: tuple[Pid, float] | None,
) -> Finding:
    by_pid = {each.pid: each for each in ranks}
    odd = stacks.minority(apart)
    quiet_s = min(picture.silence_s(each.pid) for each in ranks)
    found = [Evidence(EvidenceKind.TIME, f"no rank has made progress for {quiet_s:.1f} s")]
    culprit: ProcessState | None = None
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
    found.append(Evidence(EvidenceKind.PEERS, "every rank waits"))
    since_ns = min(each.since_ns for each in ranks)
    if len(apart) > 1:
        cause = Cause.COLLECTIVE_MISMATCH
        kind = VerdictKind.DEADLOCK
    else:
        cause, kind = Cause.BLOCKED_UNKNOWN, VerdictKind.HUNG
    if culprit is None:
        victims = tuple(by_pid)
        return Finding(kind, cause, since_ns, None, None, None, tuple(found), victims)
    return blame(kind, cause, culprit, found, ranks)
