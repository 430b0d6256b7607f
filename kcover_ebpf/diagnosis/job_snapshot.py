"""Builds the snapshot that is judged, reported and streamed from the histories of a job's processes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kcover_ebpf.diagnosis.evidence.recorders import recordings_of
from kcover_ebpf.diagnosis.evidence.snapshot import JobSnapshot
from kcover_ebpf.diagnosis.failures import startup
from kcover_ebpf.diagnosis.history.stacks import KnownWaits
from kcover_ebpf.diagnosis.judge.rank_view import Habits, completed
from kcover_ebpf.diagnosis.membership.endpoints import EndpointIndex
from kcover_ebpf.diagnosis.membership.file_holders import FileHolders
from kcover_ebpf.diagnosis.waits.classify import classify
from kcover_ebpf.diagnosis.waits.classify_context import ClassifyContext
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.model.collective_counts import counts_of
from kcover_ebpf.model.rank_snapshot import RankSnapshot
from kcover_ebpf.tunables.links import LOSSY_SILENCE_S

if TYPE_CHECKING:
    from kcover_ebpf.diagnosis.job import Job


def snapshot_of(job: Job) -> JobSnapshot:
    """Everything that a judgement needs of a job, as of its last fact."""
    members = job.members
    endpoints = EndpointIndex(
        members.views.values(), elsewhere=members.others_elsewhere(whole=job.whole)
    )
    habits = _habits(job, endpoints)
    processes = _processes(job, habits)
    reported = job.attention.collectives
    # a lost link shows retransmissions as well, but nothing gets through; so this needs recent bytes
    ages_s = (processes[pid].age_s for pid in members.ranks)
    silent_s = job.pace.silence_s(members.ranks, job.now_ns) or min(ages_s, default=0.0)
    is_lossy = bool(job.loss.lossy(job.now_ns, job.pace.slowed))
    return JobSnapshot(
        now_ns=job.now_ns,
        policy=job.policy,
        processes=processes,
        ends=endpoints,
        lossy=silent_s < LOSSY_SILENCE_S and is_lossy,
        knows_waits=habits.known.count > 0
        or any(process.naps_while_healthy for process in members.ranks.values()),
        whole=job.all_here,
        cadence_known=job.pace.learned(members.ranks),
        stalls_s={pid: job.pace.stall_s(pid) for pid in members.ranks},
        starting=startup.awaits_missing_rank(members, job.pace),
        collectives=None if reported is None else counts_of(reported, job.now_ns),
        recordings=recordings_of(job.attention.recorders, job.now_ns),
    )


def _habits(job: Job, endpoints: EndpointIndex) -> Habits:
    return Habits(
        now_ns=job.now_ns,
        ends=endpoints,
        known=job.attention.known if job.pace.trained else KnownWaits(),
        thresholds_s={pid: job.pace.threshold_s(pid) for pid in job.members.ranks},
        stop_signals=job.announced.stops,
        world_size=job.members.world_size,
        python=job.attention.python_frames,
        sends_alike=job.senders.are_alike,
    )


def _processes(job: Job, habits: Habits) -> Mapping[Pid, RankSnapshot]:
    context = _context(job, habits.ends)
    # the time before an observation gap cannot be judged
    seen_s = (job.now_ns - job.floor_ns) / NS
    return {
        pid: completed(classify(process, context).capped(seen_s), process, habits)
        for pid, process in job.members.views.items()
        if process.membership is not None and process.membership.owner is not None
    }


def _context(job: Job, endpoints: EndpointIndex) -> ClassifyContext:
    members, files = job.members, FileHolders(job.members, endpoints)
    return ClassifyContext(
        now_ns=job.now_ns,
        policy=job.policy,
        table=job.table,
        children=members.children,
        holders=files.of,
        is_own=files.is_own,
        drained_ns=files.drained_ns,
        readings=job.attention.readings,
        probes=job.attention.probes,
        kind=members.kind,
        ranks=members.ranks.values(),
        ends=endpoints,
        all_here=members.world_size == len(members.all_ranks),
    )
