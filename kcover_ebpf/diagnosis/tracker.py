"""From findings to verdicts: a lasting finding is reported once, and its end is followed by WORKING.

Times change from the boottime clock to unix seconds here.
"""

from __future__ import annotations

from dataclasses import replace

from kcover_ebpf.diagnosis.clock.certainty import completed, is_explained, put_off
from kcover_ebpf.diagnosis.clock.log_clock import LogClock
from kcover_ebpf.diagnosis.evidence.snapshot import Finding
from kcover_ebpf.diagnosis.job import Job
from kcover_ebpf.diagnosis.job_past import past_of
from kcover_ebpf.diagnosis.wait_table import unobserved, wait_rows
from kcover_ebpf.ids import NS
from kcover_ebpf.model.verdict import Cause, Culprit, EvidenceKind, Verdict, VerdictKind
from kcover_ebpf.tunables.diagnosis import ORDINARY_STABLE_NS, RECOVERY_STABLE_NS, VERDICT_STABLE_NS


class Tracker:
    """The verdict of one job over time."""

    def __init__(self, name: str, host: str) -> None:
        self._name, self._host = name, host
        self._reported_verdict: Verdict | None = None
        self._latest_verdict: Verdict | None = None
        self._candidate_finding: Finding | None = None
        self._candidate_since_ns = 0
        self._explained_ns = 0
        """When the job's wait was last explained (unix seconds); 0 before."""
        self._open_finding: Finding | None = None
        self._incident = ""
        self._count = 0

    @property
    def current(self) -> Verdict | None:
        """The verdict reported last; None before the first."""
        return self._reported_verdict

    @property
    def latest(self) -> Verdict | None:
        """The present fault, with the evidence of the last pass; None while there is none."""
        return self._latest_verdict

    @property
    def suspected(self) -> VerdictKind | None:
        """The kind found by the last pass, whether or not it lasts; None while the job cannot be judged."""
        return None if self._candidate_finding is None else self._candidate_finding.kind

    def update(self, job: Job, unix_offset_s: float) -> Verdict | None:
        """The new verdict if it changed; None otherwise. `unix_offset_s`: unix time minus boottime."""
        finding = job.finding()
        self._latest_verdict = None
        if finding is None:
            self._candidate_finding = None
            return None
        if self._candidate_finding is None or not _alike(self._candidate_finding, finding):
            self._candidate_since_ns = job.now_ns
        self._candidate_finding = finding
        if is_explained(finding.kind, finding.cause):
            self._explained_ns = job.now_ns
        if not self._holds(finding, job.now_ns):
            return None
        reported = self._reported_verdict
        if (
            reported is not None
            and finding.kind is VerdictKind.WORKING
            and reported.cause is finding.cause
        ):
            # nothing new, and nothing to decide: the usual case, which must cost nothing
            return None
        verdict = self._verdict(finding, job, unix_offset_s)
        if finding.kind.is_fault:
            self._latest_verdict = verdict
        is_new = not verdict.same_as(reported) or verdict.explains_more_than(reported)
        if not is_new and not verdict.acts_otherwise(reported):
            return None
        self._reported_verdict = verdict
        return verdict

    def snapshot(self, job: Job, unix_offset_s: float, finding: Finding | None = None) -> Verdict:
        """The verdict of this moment, even if it has not lasted yet; UNKNOWN while the job cannot be judged.

        `finding` replaces that of the job itself.
        """
        current_finding = (
            finding or job.finding() or Finding(VerdictKind.UNKNOWN, Cause.UNKNOWN, job.now_ns)
        )
        return self._verdict(current_finding, job, unix_offset_s)

    def _holds(self, finding: Finding, now_ns: int) -> bool:
        if any(evidence.kind is EvidenceKind.EVENT for evidence in finding.evidence):
            return True
        stable_ns = now_ns - self._candidate_since_ns
        if finding.kind is VerdictKind.SLOW and finding.factor is None:
            return stable_ns >= RECOVERY_STABLE_NS
        if finding.kind is not VerdictKind.WORKING:
            return stable_ns >= VERDICT_STABLE_NS
        if self._reported_verdict is None:
            return True
        # the end of a fault is reported once it is final; a start or an end after a moment
        ordinary = finding.cause in (Cause.TRAINING, Cause.STARTING, Cause.ENDING)
        return stable_ns >= (
            ORDINARY_STABLE_NS if ordinary and self._open_finding is None else RECOVERY_STABLE_NS
        )

    def _verdict(self, finding: Finding, job: Job, unix_offset_s: float) -> Verdict:
        if finding.kind is VerdictKind.WORKING:
            self._open_finding, self._incident = None, ""
        elif self._open_finding is None or not _alike(self._open_finding, finding):
            # a fault keeps its name while its report improves: a hang that ends in a crash is one incident
            if self._open_finding is None:
                self._count += 1
                self._incident = f"{self._name}-{self._count}"
            self._open_finding = finding
        by_pid = {
            pid: process.membership.rank
            for pid, process in job.members.views.items()
            if process.membership
        }
        victims = tuple(rank for pid in finding.victims if (rank := by_pid.get(pid)) is not None)
        since_s = finding.since_ns / NS + unix_offset_s
        silent_ns, past = finding.silent_since_ns, past_of(job)
        silent_s = None if silent_ns is None else silent_ns / NS + unix_offset_s
        gives_up_s = past.time_out_s if finding.kind.is_fault else None
        verdict = Verdict(
            job=self._name,
            incident=self._incident,
            kind=finding.kind,
            cause=finding.cause,
            time_s=job.now_ns / NS + unix_offset_s,
            since_s=since_s,
            culprit=self._culprit(finding),
            evidence=finding.evidence,
            victims=tuple(sorted(set(victims))),
            deadline_s=None if gives_up_s is None else since_s + gives_up_s,
            unobserved=unobserved(job),
            waits=wait_rows(job, finding),
            factor=finding.factor,
            certainty=finding.certainty,
            graph=finding.graph,
        )
        explained_s = self._explained_ns / NS + unix_offset_s if self._explained_ns else None
        patience, log_clock = past.patience(job.policy), _log_clock(job, unix_offset_s)
        verdict = completed(verdict, job.policy, patience, silent_s, log_clock)
        return put_off(verdict, explained_s, job.policy)

    def _culprit(self, finding: Finding) -> Culprit | None:
        culprit = finding.culprit
        return None if culprit is None else replace(culprit, host=culprit.host or self._host)


def _log_clock(job: Job, unix_offset_s: float) -> LogClock:
    moved_ns, until_ns = job.logged.moved_ns, job.logged.phase_until_ns
    return LogClock(
        None if moved_ns is None else moved_ns / NS + unix_offset_s,
        None if until_ns is None else until_ns / NS + unix_offset_s,
    )


def _alike(finding: Finding, other_finding: Finding) -> bool:
    return _said(finding) == _said(other_finding)


def _said(finding: Finding) -> tuple[object, ...]:
    return finding.kind, finding.cause, finding.pid, finding.rank
