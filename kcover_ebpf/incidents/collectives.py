"""What the ranks' own NCCL says, beside what the host sees: the rank that never joined, or nobody.

The host's signals cannot tell ranks apart that all spin in one collective; operation counts can.
They overrule a finding that has nobody to name or a guess, never a state that was seen (stopped, in
storage) or a rank at work: who computes for long is behind as well, and rightly so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kcover_ebpf.host_facts import CollectiveRank, CollectivesSeen
from kcover_ebpf.ids import Pid
from kcover_ebpf.incidents import chain, evidence
from kcover_ebpf.incidents.finding import Finding, Picture
from kcover_ebpf.incidents.standing import Standing
from kcover_ebpf.incidents.verdict import Cause, Evidence, EvidenceKind, Kind

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


def refine(picture: Picture, found: Finding, ranks: Sequence[Standing]) -> Finding:
    """The finding with what NCCL says: another one, one that is better supported, or the same."""
    told = picture.collectives
    if told is None or told.moving or told.trouble or not ranks:
        return found
    named = (*told.behind, *told.missing)
    said = [Evidence(EvidenceKind.COLLECTIVE, _sentence(each, told)) for each in named[:4]]
    if not named:
        return _all_joined(found, told)
    pids = {pid for each in named if (pid := _pid(each, picture, ranks)) is not None}
    if found.culprit is not None and found.culprit in pids:
        return replace(found, evidence=(*found.evidence, *said))
    if not _overrules(picture, found, pids) or not _all_silent(picture, ranks):
        return found
    found_evidence = (*said, *_context(picture, found, ranks, pids))
    since_ns = min(each.since_ns for each in ranks)
    victims = tuple(each.pid for each in ranks if each.pid not in pids)
    if len(named) > 1:
        return Finding(
            Kind.HUNG, Cause.NOT_IN_COLLECTIVE, since_ns, evidence=found_evidence, victims=victims
        )
    (only,) = named
    here = next((each for each in ranks if each.pid in pids), None)
    return Finding(
        Kind.HUNG,
        Cause.NOT_IN_COLLECTIVE,
        since_ns,
        None if here is None else here.pid,
        None if here is None else here.tid,
        _global_rank(only, here, picture),
        found_evidence,
        victims,
        host=None if here is not None else only.host or None,
    )


def _overrules(picture: Picture, found: Finding, pids: set[Pid]) -> bool:
    at_work = any(
        chain.is_effort(picture, picture.standings[pid]) for pid in pids if pid in picture.ranks
    )
    if at_work:
        return False
    if found.kind is Kind.WORKING:
        # a busy waiter and a computation look alike from the host; who computes is not behind
        return found.cause in _BUSY
    return found.cause in _GUESSED and found.kind is not Kind.LOST_LINK


def _all_silent(picture: Picture, ranks: Sequence[Standing]) -> bool:
    silent = [picture.silence_s(each.pid) for each in ranks]
    needed = max(picture.thresholds_s[each.pid] for each in ranks)
    return min(silent) >= max(1.0, needed / 2) and max(silent) >= needed


def _context(
    picture: Picture, found: Finding, ranks: Sequence[Standing], pids: set[Pid]
) -> tuple[Evidence, ...]:
    quiet_s = min(picture.silence_s(each.pid) for each in ranks)
    texts = [Evidence(EvidenceKind.TIME, f"no rank has moved for {quiet_s:.1f} s")]
    for each in ranks:
        if each.pid in pids:
            text = f"{evidence.name(each)}: {each.text}, {evidence.ago(picture, each)}"
            texts.append(Evidence(EvidenceKind.SINK, text))
    kept = {EvidenceKind.STACK, EvidenceKind.EDGE}
    return (*texts, *(each for each in found.evidence if each.kind in kept))


def _all_joined(found: Finding, told: CollectivesSeen) -> Finding:
    # a circle is what is left when the host sees nothing but waits; here it is known to be none
    if found.cause not in (Cause.WAIT_CYCLE, Cause.DEVICE_WAIT) or not found.kind.is_fault:
        return found
    text = (
        f"every rank has launched the same operations and none moved in {told.answer_count} answers: "
        "a device or the fabric does not finish them"
    )
    joined = Evidence(EvidenceKind.COLLECTIVE, text)
    return replace(found, cause=Cause.COLLECTIVE_STUCK, evidence=(*found.evidence, joined))


def _sentence(each: CollectiveRank, told: CollectivesSeen) -> str:
    who = f"rank {each.rank} of {each.size} (NCCL on {each.host or 'an unknown host'})"
    if each in told.missing:
        return f"{who} gave no answer to the other ranks"
    span_s = (told.boottime_ns - told.since_ns) / 1e9
    return (
        f"{who} launched {each.launched} operations, others {each.most_launched}; "
        f"no count moved in {told.answer_count} answers over {span_s:.1f} s"
    )


def _pid(each: CollectiveRank, picture: Picture, ranks: Sequence[Standing]) -> Pid | None:
    if each.pid is not None:
        return each.pid if each.pid in picture.ranks else None
    # all ranks of the job in one communicator, and all here: its numbers are the job's
    if each.size != len(ranks):
        return None
    return next((other.pid for other in ranks if other.rank == each.rank), None)


def _global_rank(only: CollectiveRank, here: Standing | None, picture: Picture) -> int | None:
    if here is not None:
        return here.rank
    members = (view.member for view in picture.ranks.values())
    worlds = {member.world_size for member in members if member is not None}
    return only.rank if worlds == {only.size} else None
