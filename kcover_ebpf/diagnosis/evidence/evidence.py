"""The sentences that support a finding. Each function returns evidence only if its sentence is true."""

from __future__ import annotations

from collections.abc import Sequence

from kcover_ebpf.diagnosis.evidence import tcp_links
from kcover_ebpf.diagnosis.evidence.snapshot import JobSnapshot
from kcover_ebpf.diagnosis.history import stacks
from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.facts.devices import GpuUse
from kcover_ebpf.model.process_state import EFFORT, State
from kcover_ebpf.model.rank_snapshot import RankSnapshot
from kcover_ebpf.model.verdict import Evidence, EvidenceKind

_ENDLESS = {
    State.STOPPED: "only an external signal can resume it",
    State.FROZEN: "only its control group's freezer can resume it",
    State.SLEEP_LONG: "its sleep lasts another ten minutes or more",
}
_PROVEN = {
    State.STORAGE: "the storage does not answer any process",
    State.FUTEX: "it has no thread left that could wake it",
}
_INSIDE = frozenset({State.PEERS, State.FUTEX, State.READ, State.CHILD, State.SPINNING})
"""Waits that only the job itself can end, so that a rank that is alone in one is odd. A rank in storage, a driver, a
page fault or a call to a service is alone there in every healthy checkpoint and evaluation, too; and who ends a wait of
unknown kind is not known."""


def time(rank: RankSnapshot) -> list[Evidence]:
    """Its silence, if it exceeds the rank's stall threshold."""
    threshold = rank.threshold_s
    if threshold is None or rank.age_s < threshold:
        return []
    text = (
        f"{name(rank)} has made no progress for {rank.age_s:.1f} s "
        f"(learned stall threshold {threshold:.1f} s)"
    )
    return [Evidence(EvidenceKind.TIME, text)]


def peers(culprit_rank: RankSnapshot, ranks: Sequence[RankSnapshot]) -> list[Evidence]:
    """The waits of all other ranks; empty if one of them makes an effort."""
    others = [rank for rank in ranks if rank.pid != culprit_rank.pid]
    if not others or any(rank.state in EFFORT for rank in others):
        return []
    shortest = min(rank.age_s for rank in others)
    text = f"all {len(others)} other ranks have waited for at least {shortest:.1f} s"
    return [Evidence(EvidenceKind.PEERS, text)]


def unread(snapshot: JobSnapshot, rank: RankSnapshot) -> list[Evidence]:
    """Bytes that its peers sent and it did not read."""
    if rank.pid not in snapshot.ranks:
        return []
    size, count = tcp_links.unread(rank, snapshot.ends, snapshot.ranks)
    if not count:
        return []
    text = f"{name(rank)} left {size} B from {count} peer connections unread"
    return [Evidence(EvidenceKind.EDGE, text)]


def sender(snapshot: JobSnapshot, rank: RankSnapshot) -> list[Evidence]:
    """Its last send, if that was before those of all other ranks."""
    lag = tcp_links.oldest_sender(snapshot.ranks, snapshot.ends)
    if lag is None or lag[0] != rank.pid:
        return []
    return [
        Evidence(
            EvidenceKind.EDGE,
            f"{name(rank)}'s last send was {lag[1]:.2f} s before any other rank's",
        )
    ]


def endless(first_rank: RankSnapshot, end_rank: RankSnapshot) -> list[Evidence]:
    """The state at the end of its chain, if no process of the job can end that."""
    why = _ENDLESS.get(end_rank.state) or (_PROVEN.get(end_rank.state) if end_rank.proven else None)
    if end_rank.state is State.SLEEP_LONG and not end_rank.timed:
        # it waits for a signal, which any process may send
        why = None
    if (
        why is None
        and first_rank.state is State.LOCK
        and end_rank.pid != first_rank.pid
        and _waits(end_rank)
    ):
        why = f"it owns the lock that {name(first_rank)} waits for, and is itself waiting"
    return [] if why is None else [Evidence(EvidenceKind.STATE, f"{name(end_rank)}: {why}")]


def is_inside(first_rank: RankSnapshot, end_rank: RankSnapshot) -> bool:
    """True if `first_rank` waits for something within the job, so that a position apart from its peers is a fault.

    What a loader, a lock's owner or a program that it started waits for is not known well enough.
    """
    if end_rank.pid != first_rank.pid or end_rank.state not in _INSIDE:
        return False
    return end_rank.state is not State.READ or bool(end_rank.waits_for)


def place(
    snapshot: JobSnapshot, rank: RankSnapshot, ranks: Sequence[RankSnapshot]
) -> list[Evidence]:
    """Its place in the code, if that is a loop, apart from its peers', or one where no rank waited while healthy."""
    if rank.state is State.SPINNING:
        text = f"the registers of {name(rank)} keep returning to a few values: a tight loop"
        return [Evidence(EvidenceKind.STACK, text)]
    if not rank.stack:
        return []
    others = [other for other in ranks if other.pid != rank.pid]
    if rank.state is State.FUTEX and others and all(_asks(other) for other in others):
        text = f"{name(rank)} sleeps on a lock, while the {len(others)} others keep polling for their peers"
        return [Evidence(EvidenceKind.STACK, text)]
    if snapshot.knows_waits and not rank.known_wait:
        text = f"{name(rank)} waits where no rank of this job waited while it was healthy"
        return [Evidence(EvidenceKind.STACK, text)]
    by_pid = {other.pid: other.stack for other in ranks if other.stack}
    if rank.pid not in stacks.minority(stacks.groups(by_pid)):
        return []
    text = f"{name(rank)} waits at a different place from the {len(by_pid) - 1} other ranks"
    return [Evidence(EvidenceKind.STACK, text)]


def _asks(rank: RankSnapshot) -> bool:
    # a rank that burns a CPU is not read, so it has no stack
    return rank.state in (State.PEERS, State.SPINNING) and not rank.thread_read


def _waits(rank: RankSnapshot) -> bool:
    return rank.state in (State.PEERS, State.FUTEX, State.LOCK)


_SHOWN_S = 5.0
"""Seconds of one use before it is shown: NVML's averages are over a second, readings two seconds apart."""
_USES = {
    GpuUse.IDLE: "idle",
    GpuUse.MEMORY_HELD: "idle with memory in use",
    GpuUse.LOW_POWER: "busy at low power",
}


def gpus(ranks: Sequence[RankSnapshot], culprit_rank: RankSnapshot | None = None) -> list[Evidence]:
    """Use of the ranks' GPUs, if they do no work; the culprit's separately from the others'."""
    seen = {rank.pid: rank.gpu for rank in ranks if rank.gpu and rank.gpu.use_age_s >= _SHOWN_S}
    texts = []
    own = seen.pop(culprit_rank.pid, None) if culprit_rank is not None else None
    if own is not None and culprit_rank is not None and own.use in _USES:
        power = "" if own.power_w is None else f" ({own.power_w:.0f} W)"
        devices = ", ".join(own.devices)
        texts.append(
            f"GPU {devices} of {name(culprit_rank)} has been {_USES[own.use]} for {own.use_age_s:.1f} s{power}"
        )
    for use, text in _USES.items():
        if count := sum(gpu.use is use for gpu in seen.values()):
            others = "other ranks" if culprit_rank is not None else "ranks"
            texts.append(f"the GPUs of {count} of {len(seen)} {others} are {text}")
    return [Evidence(EvidenceKind.GPU, "; ".join(texts))] if texts else []


def name(process: RankSnapshot | ProcessHistory) -> str:
    """Name in a sentence: the rank, or the process if it has no number."""
    return f"rank {process.rank}" if process.rank is not None else f"process {process.pid}"


def sent_by(sender_pid: int, sender: str | None, *, outside: bool) -> str:
    """Sender of a signal, in words. `outside`: it is in another container than the process, or on the host."""
    where = ", from outside of its container" if outside else ""
    return f"{sender or '?'} ({sender_pid}){where}" if sender_pid else "the kernel"


def doing(rank: RankSnapshot) -> str:
    """Activity of a rank, or of the end of its chain: state, call and duration."""
    helpers = f" ({' or '.join(rank.beside)})" if rank.state is State.HELPED else ""
    return f"{rank.state.text}{helpers}: {rank.text}, {ago(rank)}"


def ago(rank: RankSnapshot) -> str:
    """Time in its state, in words."""
    return f"for {rank.age_s:.1f} s"
