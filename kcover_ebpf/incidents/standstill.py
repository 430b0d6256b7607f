"""Everybody waits and nobody is at the end of a chain: a rank that left, a closed window, a mismatch, a circle."""

from __future__ import annotations

from collections.abc import Sequence

from kcover_ebpf.ids import Pid
from kcover_ebpf.incidents import device, evidence, links, stacks
from kcover_ebpf.incidents.finding import Finding, Picture, blame
from kcover_ebpf.incidents.standing import Standing, State
from kcover_ebpf.incidents.verdict import Cause, Evidence, EvidenceKind, Kind

_CYCLE_FACTOR = 2.0
_CYCLE_FLOOR_S = 6.0


def standstill(picture: Picture, ranks: Sequence[Standing]) -> Finding | None:
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
        text = f"{evidence.name(gone)} left with exit code 0 while the others still wait for it"
        found = [Evidence(EvidenceKind.EVENT, text), *evidence.time(picture, ranks[0])]
        return blame(Kind.HUNG, Cause.LEFT_EARLY, gone, found, ranks)
    if picture.starting:
        return None
    if any(each.state is State.ON_DEVICE for each in ranks):
        # what was sent last, and when, tells nothing about who waits for a device
        return device.all_wait(picture, ranks)
    known = ((each.pid, each.inspection.stack) for each in ranks if each.inspection)
    apart = stacks.groups({pid: stack for pid, stack in known if stack})
    lag = links.oldest_sender(picture.ranks, picture.ends)
    left_unread = [each for each in ranks if evidence.unread(picture, each)]
    if len(left_unread) == 1:
        return _does_not_read(picture, left_unread[0], ranks)
    if len(apart) > 1 or lag is not None:
        return _mismatch(picture, ranks, apart, lag)
    if min(silent.values()) < max(_CYCLE_FLOOR_S, _CYCLE_FACTOR * needed) or len(ranks) < 2:
        return None
    found = [
        Evidence(EvidenceKind.TIME, f"no rank has moved for {min(silent.values()):.1f} s"),
        Evidence(EvidenceKind.PEERS, "every rank waits for the others and no byte is on its way"),
    ]
    victims = tuple(each.pid for each in ranks)
    return Finding(Kind.HUNG, Cause.WAIT_CYCLE, since_ns, None, None, None, tuple(found), victims)


def _does_not_read(picture: Picture, each: Standing, ranks: Sequence[Standing]) -> Finding:
    # what it waits for is there: a thread of it that should read does not
    found = [*evidence.unread(picture, each), *evidence.time(picture, each)]
    found += evidence.peers(picture, each, ranks)
    return blame(Kind.HUNG, Cause.BLOCKED_READ, each, found, ranks)


def _ended(picture: Picture, gone: Standing, ranks: Sequence[Standing]) -> Finding:
    # its own launcher ended it, and may well start it again: that is announced only once it took too long
    text = f"{evidence.name(gone)} was ended by its own job and has not come back"
    kind = EvidenceKind.SINK
    if picture.silence_s(gone.pid) >= picture.policy.storage_patience_s:
        kind = EvidenceKind.EVENT
    found = [Evidence(kind, f"{text}, {evidence.ago(picture, gone)}")]
    found += [*evidence.time(picture, ranks[0]), *evidence.peers(picture, gone, ranks)]
    return blame(Kind.HUNG, Cause.KILLED, gone, found, ranks)


def _mismatch(
    picture: Picture,
    ranks: Sequence[Standing],
    apart: Sequence[list[Pid]],
    lag: tuple[Pid, float] | None,
) -> Finding:
    by_pid = {each.pid: each for each in ranks}
    odd = stacks.minority(apart)
    quiet_s = min(picture.silence_s(each.pid) for each in ranks)
    found = [Evidence(EvidenceKind.TIME, f"no rank has moved for {quiet_s:.1f} s")]
    culprit: Standing | None = None
    if lag is not None:
        text = f"{evidence.name(by_pid[lag[0]])} sent last {lag[1]:.2f} s before all others"
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
        kind = Kind.DEADLOCK
    else:
        cause, kind = Cause.BLOCKED_UNKNOWN, Kind.HUNG
    if culprit is None:
        victims = tuple(by_pid)
        return Finding(kind, cause, since_ns, None, None, None, tuple(found), victims)
    return blame(kind, cause, culprit, found, ranks)
