"""What the ranks' own NCCL says, beside what the host sees: which rank never joined, or called something else, or none.

The host's signals cannot distinguish ranks that all spin in one collective; operation counts can.
They overrule a finding that has no rank to name or a guess, never a state that was seen (stopped, in
storage), and spare no rank that the host names too. A rank that is behind is where the chain of waits
ends, and not yet a hang: what it does there is judged with the patience that it would have without NCCL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kcover_ebpf.diagnosis import evidence, wait_chain
from kcover_ebpf.diagnosis.collective_account import CollectiveAccount, account
from kcover_ebpf.diagnosis.collective_counts import CollectiveCounts
from kcover_ebpf.diagnosis.process_state import STOPPED, State
from kcover_ebpf.diagnosis.rank_snapshot import RankSnapshot
from kcover_ebpf.diagnosis.snapshot import Finding, JobSnapshot
from kcover_ebpf.diagnosis.verdict import Cause, Culprit, Evidence, EvidenceKind, VerdictKind
from kcover_ebpf.facts.host import CollectiveRank, CollectiveSide
from kcover_ebpf.ids import Pid

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
"""What the host sees a rank blocked by; `wait_chain.is_effort` has had its say before."""
_OF_OTHERS = frozenset({State.PEERS, State.OUTSIDE, State.HELPED, State.OTHER})
"""Who is in none of the job's collectives and waits so waits for something else."""
_SHOWN = 4


def refine(snapshot: JobSnapshot, found: Finding, ranks: Sequence[RankSnapshot]) -> Finding:
    """The finding with what NCCL says: another one, one that is better supported, or the same."""
    known = account(snapshot)
    if known is None or known.counts.moving or known.counts.trouble or not ranks:
        return found
    counts = known.counts
    if counts.failed:
        said = _said(known, counts.failed)
        return _named(snapshot, found, ranks, counts.failed, Cause.COLLECTIVE_FAILED, said)
    if known.is_mismatch:
        said = _said(known, counts.odd)
        return _named(snapshot, found, ranks, counts.odd, Cause.COLLECTIVE_MISMATCH, said)
    if counts.behind or counts.missing:
        named = (*counts.behind, *counts.missing)
        return _behind(snapshot, found, ranks, named, _said(known, named))
    return _all_joined(found, known) if counts.equal or known.crossed else found


def unobserved(answer: CollectiveCounts | None, modules: set[str]) -> list[str]:
    """What is not known of the counts of a job whose ranks have these modules on their stacks."""
    if answer is not None and answer.trouble:
        return [f"{COUNTS}: NCCL gave no answer ({answer.trouble})"]
    if answer is not None and answer.unseen:
        return [f"{COUNTS}, not all of it: {answer.unseen}"]
    if answer is None and any(each.startswith(LIBRARIES) for each in modules):
        return [f"{COUNTS}: NCCL was not queried, or has not answered yet"]
    return []


COUNTS = "how many operations each rank launched"
"""How each sentence about counts that are not known begins."""
LIBRARIES = ("libnccl", "librccl", "libtorch_cuda", "libtorch_hip")


def _behind(
    snapshot: JobSnapshot,
    found: Finding,
    ranks: Sequence[RankSnapshot],
    named: Sequence[CollectiveRank],
    reasons: Sequence[Evidence],
) -> Finding:
    pids = _pids(named, snapshot, ranks)
    here = [each for each in ranks if each.pid in pids]
    patience_s = snapshot.policy.storage_patience_s
    if not here and min(each.age_s for each in ranks) < patience_s:
        # what it does is not seen here
        return found
    elsewhere = next((each for each in here if _may_come(snapshot, each)), None)
    if elsewhere is None:
        return _named(snapshot, found, ranks, named, Cause.NOT_IN_COLLECTIVE, reasons)
    # the host has waited long enough for the rank that it names
    agrees = found.kind is VerdictKind.HUNG and found.pid in pids
    if agrees or not _overrules(found):
        return found
    end = wait_chain.follow(snapshot, elsewhere)
    what = f"{end.state.text}: {end.text}, {evidence.ago(end)}"
    text = f"{evidence.name(elsewhere)} is {what}; the others wait for it"
    said = Evidence(EvidenceKind.SINK, text), *reasons
    cause = found.cause if found.kind is VerdictKind.WORKING else Cause.COMPUTING
    return Finding(VerdictKind.WORKING, cause, snapshot.since_ns(elsewhere), evidence=said)


def _may_come(snapshot: JobSnapshot, each: RankSnapshot) -> bool:
    """True while what a rank does outside the collective may well end: as long as it would be believed by itself."""
    if wait_chain.is_effort(snapshot, each):
        return True
    end = wait_chain.follow(snapshot, each)
    if end.state in STOPPED or end.proven or end.state in _SEEN:
        return False
    silence_s = min(end.age_s, each.age_s)
    if end.state is State.FUTEX and _is_new_wait(snapshot, end):
        return False
    if end.state in _OF_OTHERS or end.state is State.FUTEX:
        return silence_s < snapshot.policy.storage_patience_s
    # it waits for its device, which the others do not need: an evaluation is like that; or for storage that
    # nothing proves stuck: a checkpoint does
    return silence_s < snapshot.policy.quiet_cap_s


def _is_new_wait(snapshot: JobSnapshot, each: RankSnapshot) -> bool:
    return bool(each.stack) and snapshot.knows_waits and not each.known_wait


def _named(
    snapshot: JobSnapshot,
    found: Finding,
    ranks: Sequence[RankSnapshot],
    named: Sequence[CollectiveRank],
    cause: Cause,
    said: Sequence[Evidence],
) -> Finding:
    """A finding that names who NCCL names, if that is one rank."""
    pids = _pids(named, snapshot, ranks)
    overrules = _overrules(found) and _all_silent(snapshot, ranks)
    mismatch = cause is Cause.COLLECTIVE_MISMATCH
    if found.pid in pids and not (mismatch and overrules):
        return replace(found, evidence=(*found.evidence, *said))
    if not overrules:
        return found
    only = named[0] if len(named) == 1 else None
    here = next((each for each in ranks if only is not None and each.pid in pids), None)
    return Finding(
        VerdictKind.DEADLOCK if mismatch else VerdictKind.HUNG,
        cause,
        snapshot.oldest_ns,
        None if only is None else _culprit(only, here, snapshot),
        (*said, *_context(found, ranks, pids)),
        tuple(each.pid for each in ranks if each.pid not in pids),
    )


def _culprit(
    named: CollectiveRank, here: RankSnapshot | None, snapshot: JobSnapshot
) -> Culprit | None:
    rank = _global_rank(named, here, snapshot)
    if here is not None:
        return Culprit(rank, here.pid, here.tid)
    return None if rank is None else Culprit(rank, host=named.host or None)


def _overrules(found: Finding) -> bool:
    if found.kind is VerdictKind.WORKING:
        # a busy waiter and a computation look alike from the host
        return found.cause in _BUSY
    return found.cause in _GUESSED and found.kind is not VerdictKind.LOST_LINK


def _all_silent(snapshot: JobSnapshot, ranks: Sequence[RankSnapshot]) -> bool:
    silent = [each.age_s for each in ranks]
    needed = max(snapshot.threshold_s(each.pid) for each in ranks)
    return min(silent) >= max(1.0, needed / 2) and max(silent) >= needed


def _context(found: Finding, ranks: Sequence[RankSnapshot], pids: set[Pid]) -> tuple[Evidence, ...]:
    quiet_s = min(each.age_s for each in ranks)
    texts = [Evidence(EvidenceKind.TIME, f"no rank has made progress for {quiet_s:.1f} s")]
    for each in ranks:
        if each.pid in pids:
            text = f"{evidence.name(each)}: {each.text}, {evidence.ago(each)}"
            texts.append(Evidence(EvidenceKind.SINK, text))
    kept = {EvidenceKind.STACK, EvidenceKind.EDGE}
    return (*texts, *(each for each in found.evidence if each.kind in kept))


def _all_joined(found: Finding, known: CollectiveAccount) -> Finding:
    # a circle is what is left when the host sees nothing but waits; here it is known to be none
    if found.cause not in (Cause.WAIT_CYCLE, Cause.DEVICE_WAIT) or not found.kind.is_fault:
        return found
    # where all wait is known already: a long step, and calls that run beside each other, look the same
    waits = [Evidence(EvidenceKind.PEERS, text) for text in (*known.texts, *known.crossed)]
    if known.crossed:
        return replace(found, evidence=(*found.evidence, *waits))
    progress = "" if waits else f" and none progressed in {known.counts.answers} answers"
    text = (
        f"every rank has launched the same operations{progress}: "
        "a device or the fabric is not completing them"
    )
    joined = Evidence(EvidenceKind.PEERS, text), *waits
    return replace(found, cause=Cause.COLLECTIVE_STUCK, evidence=(*found.evidence, *joined))


def _said(known: CollectiveAccount, named: Sequence[CollectiveRank]) -> list[Evidence]:
    counts = known.counts
    recorded = [Evidence(EvidenceKind.COLLECTIVE, text) for text in known.texts]
    if known.is_recorded:
        return recorded
    texts = [_sentence(each, counts) for each in named[:_SHOWN] if each not in counts.odd]
    texts += [_side(each) for each in counts.sides[:_SHOWN]]
    if counts.sides:
        texts.append(f"no count changed in {counts.answers} answers over {counts.span_s:.1f} s")
    return [*(Evidence(EvidenceKind.COLLECTIVE, text) for text in texts), *recorded]


def _side(side: CollectiveSide) -> str:
    ranks = ", ".join(map(str, side.ranks)) + (", ..." if side.rank_count > len(side.ranks) else "")
    many = "ranks" if side.rank_count > 1 else "rank"
    return f"{many} {ranks} of the communicator launched {side.operations}"


def _sentence(each: CollectiveRank, answer: CollectiveCounts) -> str:
    who = f"rank {each.rank} of {each.size} (NCCL on {each.host or 'an unknown host'})"
    if each in answer.failed:
        return f"{who}: its communicator failed ({each.trouble or 'no reason given'})"
    if each in answer.missing:
        return f"{who} did not answer the other ranks"
    return (
        f"{who} launched {each.launched} operations, others {each.most_launched}; "
        f"no count changed in {answer.answers} answers over {answer.span_s:.1f} s"
    )


def _pids(
    named: Sequence[CollectiveRank], snapshot: JobSnapshot, ranks: Sequence[RankSnapshot]
) -> set[Pid]:
    return {pid for each in named if (pid := _pid(each, snapshot, ranks)) is not None}


def _pid(each: CollectiveRank, snapshot: JobSnapshot, ranks: Sequence[RankSnapshot]) -> Pid | None:
    if each.pid is not None:
        return each.pid if each.pid in snapshot.ranks else None
    # all ranks of the job in one communicator, and all here: its numbers are the job's
    if each.size != len(ranks):
        return None
    return next((other.pid for other in ranks if other.rank == each.rank), None)


def _global_rank(
    only: CollectiveRank, here: RankSnapshot | None, snapshot: JobSnapshot
) -> int | None:
    if here is not None:
        return here.rank
    worlds = {each.world_size for each in snapshot.ranks.values()}
    return only.rank if worlds == {only.size} else None
