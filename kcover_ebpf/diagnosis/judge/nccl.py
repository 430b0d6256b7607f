"""Adds the answers of the ranks' own NCCL to the host's finding: a rank never joined, or called another operation.

The host's signals cannot distinguish ranks that all spin in one collective; operation counts can. They overrule a
finding that names no rank or only guesses, never an observed state (stopped, in storage), and they do not clear a rank
that the host names too. A rank that is behind is the end of the chain of waits, and not yet a hang: its work outside
the collective is given the same time as without NCCL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kcover_ebpf.diagnosis.evidence import evidence, wait_chain
from kcover_ebpf.diagnosis.evidence.collective_account import CollectiveAccount, account
from kcover_ebpf.diagnosis.evidence.snapshot import Finding, JobSnapshot
from kcover_ebpf.facts.host import CollectiveRank, CollectiveSide
from kcover_ebpf.ids import Pid
from kcover_ebpf.model.collective_counts import CollectiveCounts
from kcover_ebpf.model.process_state import STOPPED, State
from kcover_ebpf.model.rank_snapshot import RankSnapshot
from kcover_ebpf.model.verdict import Cause, Culprit, Evidence, EvidenceKind, VerdictKind

_GUESSED = frozenset(
    {
        Cause.WAIT_CYCLE,
        Cause.DEVICE_WAIT,
        Cause.COLLECTIVE_MISMATCH,
        Cause.BLOCKED_LOCK,
        Cause.BLOCKED_READ,
        Cause.BLOCKED_UNKNOWN,
        Cause.SPINNING,
    }
)
_BUSY = frozenset({Cause.TRAINING, Cause.COMPUTING})
_SEEN = frozenset(
    {State.LOCK, State.READ, State.SLEEP_LONG, State.CHILD}
    | {State.SPINNING, State.THROTTLED, State.GONE, State.LEFT}
)
"""States in which the host sees that a rank is blocked. `wait_chain.is_effort` is checked before."""
_OF_OTHERS = frozenset({State.PEERS, State.OUTSIDE, State.HELPED, State.OTHER})
"""States of a rank in none of the job's collectives in which it waits for something outside of the job."""
_SHOWN = 4


def refine(snapshot: JobSnapshot, finding: Finding, ranks: Sequence[RankSnapshot]) -> Finding:
    """The host's finding, with the answer of NCCL: another finding, one with better support, or the same.

    The answer is ignored while counts still move, or if NCCL gave none. Otherwise the first of these that applies
    decides:

    1. A communicator failed: its rank is named (COLLECTIVE_FAILED).
    2. Ranks called different operations: the one that differs is named (COLLECTIVE_MISMATCH), and the kind is DEADLOCK.
    3. Ranks are behind or did not answer. If one of them does something that may well end, the job works and the others
    wait for it. Otherwise it is named (NOT_IN_COLLECTIVE).
    4. All ranks launched the same operations: then a circle of waits is excluded, and the device or fabric does not
    complete them (COLLECTIVE_STUCK).

    Ranks are only named if all of them have been silent for long enough, and only if the host's finding is a guess or
    says that the job is busy. If the host names the same rank, its finding stays, with more evidence.
    """
    known_account = account(snapshot)
    if (
        known_account is None
        or known_account.counts.moving
        or known_account.counts.trouble
        or not ranks
    ):
        return finding
    counts = known_account.counts
    if counts.failed:
        said = _said(known_account, counts.failed)
        return _named(snapshot, finding, ranks, counts.failed, Cause.COLLECTIVE_FAILED, said)
    if known_account.is_mismatch:
        said = _said(known_account, counts.odd)
        return _named(snapshot, finding, ranks, counts.odd, Cause.COLLECTIVE_MISMATCH, said)
    if counts.behind or counts.missing:
        named = (*counts.behind, *counts.missing)
        return _behind(snapshot, finding, ranks, named, _said(known_account, named))
    return _all_joined(finding, known_account) if counts.equal or known_account.crossed else finding


def unobserved(counts: CollectiveCounts | None, modules: set[str]) -> list[str]:
    """Which counts are unknown in a job whose ranks have these modules on their stacks; empty if none are."""
    if counts is not None and counts.trouble:
        return [f"{COUNTS}: NCCL gave no answer ({counts.trouble})"]
    if counts is not None and counts.unseen:
        return [f"{COUNTS}, not all of it: {counts.unseen}"]
    if counts is None and any(module.startswith(LIBRARIES) for module in modules):
        return [f"{COUNTS}: NCCL was not queried, or has not answered yet"]
    return []


COUNTS = "how many operations each rank launched"
"""Beginning of each sentence about unknown counts."""
LIBRARIES = ("libnccl", "librccl", "libtorch_cuda", "libtorch_hip")


def _behind(
    snapshot: JobSnapshot,
    finding: Finding,
    ranks: Sequence[RankSnapshot],
    named: Sequence[CollectiveRank],
    reasons: Sequence[Evidence],
) -> Finding:
    pids = _pids(named, snapshot, ranks)
    here = [rank for rank in ranks if rank.pid in pids]
    patience_s = snapshot.policy.storage_patience_s
    if not here and min(rank.age_s for rank in ranks) < patience_s:
        # what that rank does is not observed here
        return finding
    elsewhere = next((rank for rank in here if _may_come(snapshot, rank)), None)
    if elsewhere is None:
        return _named(snapshot, finding, ranks, named, Cause.NOT_IN_COLLECTIVE, reasons)
    # the host has waited long enough for the rank that it names
    agrees = finding.kind is VerdictKind.HUNG and finding.pid in pids
    if agrees or not _overrules(finding):
        return finding
    end = wait_chain.follow(snapshot, elsewhere)
    text = f"{evidence.name(elsewhere)} is {evidence.doing(end)}; the others wait for it"
    said = Evidence(EvidenceKind.SINK, text), *reasons
    cause = finding.cause if finding.kind is VerdictKind.WORKING else Cause.COMPUTING
    return Finding(VerdictKind.WORKING, cause, snapshot.since_ns(elsewhere), evidence=said)


def _may_come(snapshot: JobSnapshot, rank: RankSnapshot) -> bool:
    """True while a rank's activity outside the collective may well end: the same patience as for it alone."""
    if wait_chain.is_effort(snapshot, rank):
        return True
    end = wait_chain.follow(snapshot, rank)
    if end.state in STOPPED or end.proven or end.state in _SEEN:
        return False
    silence_s = min(end.age_s, rank.age_s)
    if end.state is State.FUTEX and (end.sides_read or _is_new_wait(snapshot, end)):
        # all its threads were read, and none is in a wait that ends by itself
        return False
    if end.state in _OF_OTHERS or end.state is State.FUTEX:
        return silence_s < snapshot.policy.storage_patience_s
    # It waits for its device alone, as in an evaluation, or for storage that is not known to be stuck, as in a
    # checkpoint.
    return silence_s < snapshot.policy.quiet_cap_s


def _is_new_wait(snapshot: JobSnapshot, rank: RankSnapshot) -> bool:
    return bool(rank.stack) and snapshot.knows_waits and not rank.known_wait


def _named(
    snapshot: JobSnapshot,
    finding: Finding,
    ranks: Sequence[RankSnapshot],
    named: Sequence[CollectiveRank],
    cause: Cause,
    said: Sequence[Evidence],
) -> Finding:
    """A finding that names the rank which NCCL names, if it is exactly one."""
    pids = _pids(named, snapshot, ranks)
    overrules = _overrules(finding) and _all_silent(snapshot, ranks)
    mismatch = cause is Cause.COLLECTIVE_MISMATCH
    if finding.pid in pids and not (mismatch and overrules):
        return replace(finding, evidence=(*finding.evidence, *said))
    if not overrules:
        return finding
    only = named[0] if len(named) == 1 else None
    here_rank = next((rank for rank in ranks if only is not None and rank.pid in pids), None)
    return Finding(
        VerdictKind.DEADLOCK if mismatch else VerdictKind.HUNG,
        cause,
        snapshot.oldest_ns,
        None if only is None else _culprit(only, here_rank, snapshot),
        (*said, *_context(finding, ranks, pids)),
        tuple(rank.pid for rank in ranks if rank.pid not in pids),
    )


def _culprit(
    named_rank: CollectiveRank, here_rank: RankSnapshot | None, snapshot: JobSnapshot
) -> Culprit | None:
    rank = _global_rank(named_rank, here_rank, snapshot)
    if here_rank is not None:
        return Culprit(rank, here_rank.pid, here_rank.tid)
    return None if rank is None else Culprit(rank, host=named_rank.host or None)


def _overrules(finding: Finding) -> bool:
    if finding.kind is VerdictKind.WORKING:
        # a busy wait and a computation look alike to the host
        return finding.cause in _BUSY
    return finding.cause in _GUESSED and finding.kind is not VerdictKind.LOST_LINK


def _all_silent(snapshot: JobSnapshot, ranks: Sequence[RankSnapshot]) -> bool:
    silent = [rank.age_s for rank in ranks]
    needed = max(snapshot.threshold_s(rank.pid) for rank in ranks)
    return min(silent) >= max(1.0, needed / 2) and max(silent) >= needed


def _context(
    finding: Finding, ranks: Sequence[RankSnapshot], pids: set[Pid]
) -> tuple[Evidence, ...]:
    quiet_s = min(rank_snapshot.age_s for rank_snapshot in ranks)
    texts = [Evidence(EvidenceKind.TIME, f"no rank has made progress for {quiet_s:.1f} s")]
    for rank in ranks:
        if rank.pid in pids:
            text = f"{evidence.name(rank)}: {rank.text}, {evidence.ago(rank)}"
            texts.append(Evidence(EvidenceKind.SINK, text))
    kept = {EvidenceKind.STACK, EvidenceKind.EDGE}
    return (
        *texts,
        *(sentence for sentence in finding.evidence if sentence.kind in kept),
    )


def _all_joined(finding: Finding, known_account: CollectiveAccount) -> Finding:
    # a circle is the conclusion if the host sees only waits; here it is known to be none
    if finding.cause not in (Cause.WAIT_CYCLE, Cause.DEVICE_WAIT):
        return finding
    # even if all ranks are known to wait: a long step, and concurrent calls, look the same
    waits = [
        Evidence(EvidenceKind.PEERS, text)
        for text in (*known_account.texts, *known_account.crossed)
    ]
    if known_account.crossed:
        return replace(finding, evidence=(*finding.evidence, *waits))
    progress = "" if waits else f" and none progressed in {known_account.counts.answers} answers"
    text = (
        f"every rank has launched the same operations{progress}: "
        "a device or the fabric is not completing them"
    )
    joined = Evidence(EvidenceKind.PEERS, text), *waits
    return replace(finding, cause=Cause.COLLECTIVE_STUCK, evidence=(*finding.evidence, *joined))


def _said(known_account: CollectiveAccount, named: Sequence[CollectiveRank]) -> list[Evidence]:
    counts = known_account.counts
    recorded = [Evidence(EvidenceKind.COLLECTIVE, text) for text in known_account.texts]
    if known_account.is_recorded:
        return recorded
    texts = [_sentence(rank, counts) for rank in named[:_SHOWN] if rank not in counts.odd]
    texts += [_side(side) for side in counts.sides[:_SHOWN]]
    if counts.sides:
        texts.append(f"no count changed in {counts.answers} answers over {counts.span_s:.1f} s")
    return [*(Evidence(EvidenceKind.COLLECTIVE, text) for text in texts), *recorded]


def _side(side: CollectiveSide) -> str:
    ranks = ", ".join(map(str, side.ranks)) + (", ..." if side.rank_count > len(side.ranks) else "")
    many = "ranks" if side.rank_count > 1 else "rank"
    return f"{many} {ranks} of the communicator launched {side.operations}"


def _sentence(rank: CollectiveRank, counts: CollectiveCounts) -> str:
    who = f"rank {rank.rank} of {rank.size} (NCCL on {rank.host or 'an unknown host'})"
    if rank in counts.failed:
        return f"{who}: its communicator failed ({rank.trouble or 'no reason given'})"
    if rank in counts.missing:
        return f"{who} did not answer the other ranks"
    return (
        f"{who} launched {rank.launched} operations, others {rank.most_launched}; "
        f"no count changed in {counts.answers} answers over {counts.span_s:.1f} s"
    )


def _pids(
    named: Sequence[CollectiveRank], snapshot: JobSnapshot, ranks: Sequence[RankSnapshot]
) -> set[Pid]:
    return {pid for rank in named if (pid := _pid(rank, snapshot, ranks)) is not None}


def _pid(rank: CollectiveRank, snapshot: JobSnapshot, ranks: Sequence[RankSnapshot]) -> Pid | None:
    if rank.pid is not None:
        return rank.pid if rank.pid in snapshot.ranks else None
    # one communicator contains all ranks of the job, and all are here: its numbers are the job's
    if rank.size != len(ranks):
        return None
    return next((snapshot.pid for snapshot in ranks if snapshot.rank == rank.rank), None)


def _global_rank(
    only_rank: CollectiveRank, here_rank: RankSnapshot | None, snapshot: JobSnapshot
) -> int | None:
    if here_rank is not None:
        return here_rank.rank
    worlds = {rank.world_size for rank in snapshot.ranks.values()}
    return only_rank.rank if worlds == {only_rank.size} else None
