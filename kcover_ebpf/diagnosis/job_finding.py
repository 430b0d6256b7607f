"""Conclusion from the facts of a job: announcements first, then missing ranks, then waits. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kcover_ebpf.diagnosis.evidence.snapshot import Finding
from kcover_ebpf.diagnosis.failures import exits, gave_up, losses, startup
from kcover_ebpf.diagnosis.judge.inspected import by_inspector
from kcover_ebpf.diagnosis.judge.judge import judge
from kcover_ebpf.diagnosis.judge.policy_rules import at_hard_limit, broken_rule
from kcover_ebpf.diagnosis.judge.rdma_port import at_port, slowed_by_port
from kcover_ebpf.diagnosis.judge.slow_job import slowness
from kcover_ebpf.ids import NS
from kcover_ebpf.model.verdict import Cause, EvidenceKind, VerdictKind
from kcover_ebpf.tunables.diagnosis import FAILURE_SETTLE_NS

if TYPE_CHECKING:
    from kcover_ebpf.diagnosis.history.process import ProcessHistory
    from kcover_ebpf.diagnosis.job import Job


def finding_of(job: Job) -> Finding | None:
    """The finding about the job at the last fact; None while its facts are too incomplete.

    Announcements are certain and are judged even if facts were missed. A broken log rule of the job's policy counts
    only if nothing else is wrong.
    """
    finding = job.sub_jobs.finding() if job.sub_jobs.parts else _found(job)
    if finding is None or finding.kind.is_fault:
        return finding
    return broken_rule(job.logged) or finding


def _found(job: Job) -> Finding | None:
    has_stalled = job.attention.stalled and job.pace.trained
    failed = job.faults.judge(job.members.views, has_stalled) or _failure(job)
    if failed is not None:
        return failed
    if (unsampled := startup.unsampled_rank(job.members, job.now_ns)) is not None:
        return unsampled
    if job.sight.is_blind(job.now_ns):
        return job.sight.finding(job.now_ns)
    if not job.members.ranks:
        return _without_ranks(job)
    missing = None
    if job.whole:
        missing = startup.missing_rank(job.members, job.pace, job.now_ns, job.policy)
    if not job.attention.suspicious:
        return missing or _healthy(job)
    snapshot = job.announced.judged(job.snapshot())
    missed = losses.missed(snapshot, job.announced, job.members.views)
    finding = missed or job.faults.located(judge(snapshot), job.members.ranks)
    finding = _explained(job, finding)
    job.place = finding.cause.value
    if missing is not None and finding.cause not in (Cause.STOPPED, Cause.FROZEN):
        return missing
    if finding.cause is Cause.TRAINING:
        return _healthy(job, judged=True)
    silent_s = job.pace.silence_s(job.members.ranks, job.now_ns)
    return at_hard_limit(finding, silent_s, job.policy, job.now_ns)


def _failure(job: Job) -> Finding | None:
    """The finding for the first failure, once the other ranks were observed after it."""
    failures, members = job.announced.failures, job.members
    waits = bool(members.ranks) or not job.whole
    if not failures or (waits and job.now_ns - failures[0].boottime_ns < FAILURE_SETTLE_NS):
        return None
    first = members.views.get(failures[0].pid)
    launcher = None if first is None else members.started_by(first)
    stacks, longest_s = job.attention.stacks_of(job.waiting), job.pace.longest_s
    survivors = exits.Survivors(stacks, job.senders.are_alike)
    finding = exits.judge_failure(
        job.announced, members.views, survivors, longest_s, launcher, whole=job.whole
    )
    if finding is None:
        return None
    if any(evidence.kind is EvidenceKind.SINK for evidence in finding.evidence):
        began_ns = _mended_since_ns(job, launcher, failures[0].boottime_ns)
        finding = replace(finding, silent_since_ns=began_ns)
    return job.faults.explained(finding)


def _mended_since_ns(job: Job, launcher_process: ProcessHistory | None, failed_ns: int) -> int:
    """When a possible repair of a failure last made progress: a rank moved, or its launcher started a process."""
    times_ns = [failed_ns]
    if job.pace.trained:
        times_ns.append(job.now_ns - round(job.pace.silence_s(job.members.ranks, job.now_ns) * NS))
    if launcher_process is not None:
        views = job.members.views.values()
        times_ns += [
            process.first_seen_ns for process in views if process.ppid == launcher_process.pid
        ]
    return max(times_ns)


def _without_ranks(job: Job) -> Finding:
    unreadable = job.attention.unreadable
    if (hidden := startup.unreadable_process(job.members, unreadable)) is not None:
        return hidden
    ended = any(process.exit is not None for process in job.members.views.values())
    return Finding(VerdictKind.WORKING, Cause.ENDING if ended else Cause.STARTING, job.now_ns)


def _healthy(job: Job, *, judged: bool = False) -> Finding:
    if not judged and gave_up.is_due(job.members.ranks.values(), job.now_ns):
        job.announced.judged(job.snapshot())
    ranks, now_ns = job.members.ranks, job.now_ns
    slow = slowed_by_port(job.faults.ports, ranks, now_ns) if job.pace.slowed else None
    if slow := slow or slowness(job.pace, job.loss, job.narrow, ranks, now_ns):
        return _explained(job, slow)
    cause = Cause.TRAINING if job.pace.trained else Cause.STARTING
    return Finding(VerdictKind.WORKING, cause, job.now_ns)


def _explained(job: Job, finding: Finding) -> Finding:
    """With what ports and the job's own NCCL say of a link, which ends nothing."""
    found = at_port(finding, job.faults.ports, job.members.ranks, job.now_ns)
    return by_inspector(found, job.inspector_seen, job.now_ns)
