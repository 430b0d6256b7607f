"""The sentences that support a finding; each is there only if it is true."""

from __future__ import annotations

from collections.abc import Sequence

from kcover_ebpf.diagnosis import stacks, tcp_links
from kcover_ebpf.diagnosis.process import ProcessHistory
from kcover_ebpf.diagnosis.process_state import EFFORT, State
from kcover_ebpf.diagnosis.rank_snapshot import RankSnapshot
from kcover_ebpf.diagnosis.snapshot import JobSnapshot
from kcover_ebpf.diagnosis.verdict import Evidence, EvidenceKind
from kcover_ebpf.facts.devices import GpuUse

_ENDLESS = {
    State.STOPPED: "only an external signal can resume it",
    State.FROZEN: "only its control group's freezer can resume it",
    State.SLEEP_LONG: "its sleep lasts another ten minutes or more",
}
_PROVEN = {
    State.STORAGE: "the storage does not answer any process",
    State.READ: "no process has the other end open",
    State.FUTEX: "it has no thread left that could wake it",
}
_INSIDE = frozenset(
    {State.PEERS, State.FUTEX, State.READ, State.CHILD, State.SPINNING, State.OTHER}
)
"""Waits that only the job itself can end, so that a rank that is alone in one is odd. A rank in storage, a driver, a
page fault or a call to a service is alone there in every healthy checkpoint and evaluation, too."""


def time(each: RankSnapshot) -> list[Evidence]:
    """Its silence, if it is longer than this rank ever was silent while healthy."""
    threshold = each.threshold_s
    if threshold is None or each.age_s < threshold:
        return []
    text = (
        f"{name(each)} has made no progress for {each.age_s:.1f} s "
        f"(learned stall threshold {threshold:.1f} s)"
    )
    return [Evidence(EvidenceKind.TIME, text)]


def peers(culprit: RankSnapshot, ranks: Sequence[RankSnapshot]) -> list[Evidence]:
    """The others, if every one of them waits."""
    others = [each for each in ranks if each.pid != culprit.pid]
    if not others or any(each.state in EFFORT for each in others):
        return []
    shortest = min(each.age_s for each in others)
    text = f"all {len(others)} other ranks have waited for at least {shortest:.1f} s"
    return [Evidence(EvidenceKind.PEERS, text)]


def unread(snapshot: JobSnapshot, each: RankSnapshot) -> list[Evidence]:
    """What its peers sent and it did not read."""
    if each.pid not in snapshot.ranks:
        return []
    size, count = tcp_links.unread(each, snapshot.ends, snapshot.ranks)
    if not count:
        return []
    text = f"{name(each)} left {size} B from {count} peer connections unread"
    return [Evidence(EvidenceKind.EDGE, text)]


def sender(snapshot: JobSnapshot, each: RankSnapshot) -> list[Evidence]:
    """Its last sending, if that was before those of all other ranks."""
    lag = tcp_links.oldest_sender(snapshot.ranks, snapshot.ends)
    if lag is None or lag[0] != each.pid:
        return []
    return [
        Evidence(
            EvidenceKind.EDGE,
            f"{name(each)}'s last send was {lag[1]:.2f} s before any other rank's",
        )
    ]


def endless(first: RankSnapshot, end: RankSnapshot) -> list[Evidence]:
    """The state at the end of its chain, if no process of the job can end that."""
    why = _ENDLESS.get(end.state) or (_PROVEN.get(end.state) if end.proven else None)
    if why is None and first.state is State.LOCK and end.pid != first.pid and _waits(end):
        why = f"it owns the lock that {name(first)} waits for, and is itself waiting"
    return [] if why is None else [Evidence(EvidenceKind.STATE, f"{name(end)}: {why}")]


def is_inside(first: RankSnapshot, end: RankSnapshot) -> bool:
    """True if what `first` waits for lies within the job, so that to be elsewhere than its peers is a fault.

    What a loader, a lock's holder or a program it started waits for is not known well enough to say so.
    """
    if end.pid != first.pid or end.state not in _INSIDE:
        return False
    return end.state is not State.READ or bool(end.waits_for)


def place(
    snapshot: JobSnapshot, each: RankSnapshot, ranks: Sequence[RankSnapshot]
) -> list[Evidence]:
    """Its place in the code, if it is a loop, one apart from its peers', or one where none waited while healthy."""
    if each.state is State.SPINNING:
        text = f"the registers of {name(each)} keep returning to a few values: a tight loop"
        return [Evidence(EvidenceKind.STACK, text)]
    if not each.stack:
        return []
    others = [other for other in ranks if other.pid != each.pid]
    if each.state is State.FUTEX and others and all(_asks(other) for other in others):
        text = f"{name(each)} sleeps on a lock, while the {len(others)} others keep polling for their peers"
        return [Evidence(EvidenceKind.STACK, text)]
    if snapshot.knows_waits and not each.known_wait:
        text = f"{name(each)} waits where no rank of this job waited while it was healthy"
        return [Evidence(EvidenceKind.STACK, text)]
    by_pid = {other.pid: other.stack for other in ranks if other.stack}
    if each.pid not in stacks.minority(stacks.groups(by_pid)):
        return []
    text = f"{name(each)} waits at a different place from the {len(by_pid) - 1} other ranks"
    return [Evidence(EvidenceKind.STACK, text)]


def _asks(each: RankSnapshot) -> bool:
    # a rank that burns a CPU is not read, so it has no stack
    return each.state in (State.PEERS, State.SPINNING) and not each.thread_read


def _waits(each: RankSnapshot) -> bool:
    return each.state in (State.PEERS, State.FUTEX, State.LOCK)


_SHOWN_S = 5.0
"""NVML's averages are over a second, readings two seconds apart."""
_USES = {
    GpuUse.IDLE: "idle",
    GpuUse.MEMORY_HELD: "idle with memory in use",
    GpuUse.LOW_POWER: "busy at low power",
}


def gpus(ranks: Sequence[RankSnapshot], culprit: RankSnapshot | None = None) -> list[Evidence]:
    """What the GPUs of the ranks are used for, if they do no work; the culprit's apart from the others'."""
    seen = {each.pid: each.gpu for each in ranks if each.gpu and each.gpu.use_age_s >= _SHOWN_S}
    texts = []
    own = seen.pop(culprit.pid, None) if culprit is not None else None
    if own is not None and culprit is not None and own.use in _USES:
        power = "" if own.power_w is None else f" ({own.power_w:.0f} W)"
        devices = ", ".join(own.devices)
        texts.append(
            f"GPU {devices} of {name(culprit)} has been {_USES[own.use]} for {own.use_age_s:.1f} s{power}"
        )
    for use, text in _USES.items():
        if count := sum(each.use is use for each in seen.values()):
            others = "other ranks" if culprit is not None else "ranks"
            texts.append(f"the GPUs of {count} of {len(seen)} {others} are {text}")
    return [Evidence(EvidenceKind.GPU, "; ".join(texts))] if texts else []


def name(each: RankSnapshot | ProcessHistory) -> str:
    """The rank for people; the process where it has no number."""
    return f"rank {each.rank}" if each.rank is not None else f"process {each.pid}"


def ago(each: RankSnapshot) -> str:
    """Since when it is in its state, for people."""
    return f"for {each.age_s:.1f} s"
