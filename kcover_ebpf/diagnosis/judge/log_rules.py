"""What broken rules of a job's policy mean, where nothing else is wrong with it. Pure.

A rule that restarts was written by whoever owns the job: it counts as an announcement. Others are observed: no job is
ended for them.
"""

from __future__ import annotations

from kcover_ebpf.diagnosis.evidence.snapshot import Finding
from kcover_ebpf.facts.logs import LogSeen
from kcover_ebpf.model.verdict import Cause, Evidence, EvidenceKind, VerdictKind


def broken_rule(log_seen: LogSeen) -> Finding | None:
    """The finding, since the first of the rules was broken; None where none is."""
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
