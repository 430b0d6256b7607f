"""Faults that only the policy of a job defines: a silence beyond its hard limit, and a log that breaks a rule. Pure."""

from __future__ import annotations

from kcover_ebpf.diagnosis.evidence.snapshot import Finding
from kcover_ebpf.facts.logs import LogSeen
from kcover_ebpf.ids import NS
from kcover_ebpf.model.verdict import Cause, Evidence, EvidenceKind, VerdictKind
from kcover_ebpf.settings import Policy


def at_hard_limit(finding: Finding, silent_s: float, policy: Policy, now_ns: int) -> Finding:
    """The finding, or HUNG in its place once the job was silent for the policy's hard limit.

    No other rule depends on time alone.
    """
    limit_s = policy.hard_limit_s
    if limit_s is None or finding.kind.is_fault or silent_s < limit_s:
        return finding
    if finding.cause is Cause.ENDING:
        # the run is done, even if ranks remain
        return finding
    text = f"no progress for {silent_s:.0f} s: the policy's hard limit"
    return Finding(
        kind=VerdictKind.HUNG,
        cause=Cause.UNKNOWN,
        since_ns=now_ns - int(silent_s * NS),
        evidence=(*finding.evidence, Evidence(EvidenceKind.TIME, text)),
        victims=finding.victims,
    )


def broken_rule(log_seen: LogSeen) -> Finding | None:
    """The finding for broken log rules in a job with no other fault, since the first was broken; None if none is.

    The job's owner wrote a rule that restarts for this purpose: it counts as an announcement. Other rules are only
    observed: no job is ended for them.
    """
    ends = [rule for rule in log_seen.broken if rule.restarts]
    found = ends or log_seen.broken
    if not found:
        return None
    kind = EvidenceKind.EVENT if ends else EvidenceKind.LOG
    return Finding(
        VerdictKind.HUNG,
        Cause.UNKNOWN,
        min(rule.since_ns for rule in found),
        evidence=tuple(Evidence(kind, rule.text) for rule in found),
    )
