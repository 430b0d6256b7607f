"""A job that continues, but slower than it could: a straggler among its ranks, or a link that loses packets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kcover_ebpf.diagnosis.clock.progress import JobProgress
from kcover_ebpf.diagnosis.evidence.snapshot import Finding
from kcover_ebpf.diagnosis.history.packet_loss import LossWatch, LossyLink, NarrowLink
from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.diagnosis.waits.classify import shares_shortage
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.model.rank_snapshot import RankPace
from kcover_ebpf.model.verdict import Cause, Culprit, Evidence, EvidenceKind, VerdictKind
from kcover_ebpf.tunables.diagnosis import STARVED_SHARE
from kcover_ebpf.tunables.links import LOSS_RATE_PER_S
from kcover_ebpf.tunables.stragglers import (
    LOSS_RATE_AT_FULL_SPEED_PER_S,
    SWAPPING_PER_S,
    THROTTLED_ALONE_NS,
)


def slowness(
    progress: JobProgress,
    loss: LossWatch,
    narrow: NarrowLink,
    ranks: Mapping[Pid, ProcessHistory],
    now_ns: int,
) -> Finding | None:
    """SLOW with its cause; None while the job is as fast as its ranks let it."""
    slowed = progress.slowed
    lossy = loss.lossy(now_ns, slowed)
    if lossy is not None and _costs(lossy, slowed) and not is_starved(ranks, lossy.pid):
        where = f", most of them at rank {_rank(ranks, lossy.pid)}" if lossy.pid else ""
        text = f"{lossy.rate_per_s:.1f} TCP retransmissions a second between ranks{where}"
        return _slow(Cause.LINK, lossy.pid, ranks, Evidence(EvidenceKind.EDGE, text), now_ns)
    if slowed and (pid := narrow.pid) is not None and not is_starved(ranks, pid):
        text = (
            f"bytes from or to rank {_rank(ranks, pid)} wait to be sent all the time, and no others"
        )
        return _slow(Cause.LINK, pid, ranks, Evidence(EvidenceKind.EDGE, text), now_ns)
    slow = progress.straggler()
    if slow is None:
        return _throttled_alone(progress, ranks, now_ns) or _standstill(progress, ranks, now_ns)
    cause = cause_of(ranks[slow.rank])
    if cause is Cause.CPU_THROTTLED and shares_shortage(ranks[slow.rank], ranks.values()):
        return None
    text = f"rank {_rank(ranks, slow.rank)}: {slow.text}"
    if ranks[slow.rank].throttled_since_ns is not None and cause is Cause.CPU_THROTTLED:
        text += "; it is throttled by the CPU quota of its control group"
    elif cause is Cause.SLOW_RANK and _stores_alone(ranks, slow.rank):
        text += "; it reads or writes files, and the others do not"
    finding = _slow(cause, slow.rank, ranks, Evidence(EvidenceKind.PEERS, text), now_ns)
    return replace(finding, factor=slow.factor)


def _costs(lossy_link: LossyLink, slowed: bool) -> bool:
    least = LOSS_RATE_PER_S if slowed else LOSS_RATE_AT_FULL_SPEED_PER_S
    return lossy_link.rate_per_s >= least or (slowed and lossy_link.is_local)


def cause_of(slow_process: ProcessHistory) -> Cause:
    """Why a rank is slower than the others, as far as that is seen."""
    if slow_process.major_fault_rate >= SWAPPING_PER_S:
        return Cause.MEMORY_PRESSURE
    return Cause.CPU_THROTTLED if _lacks_cpu(slow_process) else Cause.SLOW_RANK


def paces(
    progress: JobProgress,
    ranks: Mapping[Pid, ProcessHistory],
    now_ns: int,
    unix_offset_s: float,
) -> list[RankPace]:
    """How much each rank here waits, to be compared with those of other hosts; none while that of one is unknown."""
    known = progress.paces(now_ns, unix_offset_s)
    if known.keys() != ranks.keys():
        return []
    found = []
    for pid, process in ranks.items():
        waits, cause = known[pid], cause_of(process)
        seen_cause = cause if cause is not Cause.SLOW_RANK else None
        found.append(
            RankPace(
                pid,
                waits.waits,
                waits.passes,
                process.rank,
                cause=seen_cause,
                places=waits.places,
                slot=waits.slot,
            )
        )
    return found


def _throttled_alone(
    progress: JobProgress, ranks: Mapping[Pid, ProcessHistory], now_ns: int
) -> Finding | None:
    """SLOW by a quota that only one rank feels.

    Shares of waiting do not show it: a rank that has no CPU is found in its waits as often as in its work.
    """
    throttled = [view for view in ranks.values() if view.throttled_since_ns is not None]
    if len(throttled) != 1 or throttled[0].throttled_since_ns is None:
        return None
    alone, lasts_ns = throttled[0], now_ns - throttled[0].throttled_since_ns
    if lasts_ns < THROTTLED_ALONE_NS or not progress.others_wait(alone.pid):
        return None
    text = (
        f"the CPU quota of its control group has throttled rank {_rank(ranks, alone.pid)} most of the time "
        f"for {lasts_ns / NS:.0f} s, and no other rank"
    )
    evidence = Evidence(EvidenceKind.TIME, text)
    return _slow(Cause.CPU_THROTTLED, alone.pid, ranks, evidence, now_ns)


def _standstill(
    progress: JobProgress, ranks: Mapping[Pid, ProcessHistory], now_ns: int
) -> Finding | None:
    """SLOW of a job whose silences grow little by little, so that none is unusual; who makes them is not known."""
    if (factor := progress.slower) is None:
        return None
    text = f"it moves on {factor:.0f} times more rarely than in the median minute of the last hour"
    return _slow(Cause.SLOW_JOB, None, ranks, Evidence(EvidenceKind.TIME, text), now_ns)


def is_starved(ranks: Mapping[Pid, ProcessHistory], pid: Pid | None) -> bool:
    """True for a rank without a CPU: it answers late, and late answers look like losses."""
    process = ranks.get(pid) if pid is not None else None
    return process is not None and _lacks_cpu(process)


def _lacks_cpu(process: ProcessHistory) -> bool:
    lead, throttled = process.lead, process.throttled_since_ns is not None
    return lead is not None and (throttled or lead.delay_share >= STARVED_SHARE)


def _stores_alone(ranks: Mapping[Pid, ProcessHistory], pid: Pid) -> bool:
    others = (view for other, view in ranks.items() if other != pid)
    return ranks[pid].efforts.stores and not any(view.efforts.stores for view in others)


def _slow(
    cause: Cause,
    pid: Pid | None,
    ranks: Mapping[Pid, ProcessHistory],
    evidence: Evidence,
    now_ns: int,
) -> Finding:
    return Finding(
        kind=VerdictKind.SLOW,
        cause=cause,
        since_ns=now_ns,
        culprit=None if pid is None else Culprit(_rank(ranks, pid), pid),
        evidence=(evidence,),
        victims=tuple(other for other in ranks if other != pid),
    )


def _rank(ranks: Mapping[Pid, ProcessHistory], pid: Pid | None) -> int | None:
    process = ranks.get(pid) if pid is not None else None
    return process.rank if process is not None else None
