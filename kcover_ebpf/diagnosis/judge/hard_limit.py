"""The one rule that goes by time alone, and only where the policy asks for it."""

from __future__ import annotations

from kcover_ebpf.diagnosis.evidence.snapshot import Finding
from kcover_ebpf.ids import NS
from kcover_ebpf.model.verdict import Cause, Evidence, EvidenceKind, VerdictKind
from kcover_ebpf.settings import Policy


def at_hard_limit(finding: Finding, silent_s: float, policy: Policy, now_ns: int) -> Finding:
    """The finding, or HUNG in its place once the job was silent for the policy's hard limit."""
    limit_s = policy.hard_limit_s
    if limit_s is None or finding.kind.is_fault or silent_s < limit_s:
        return finding
    if finding.cause is Cause.ENDING:
        # the run is done, whoever is still there
        return finding
    text = f"no progress for {silent_s:.0f} s: the policy's hard limit"
    return Finding(
        kind=VerdictKind.HUNG,
        cause=Cause.UNKNOWN,
        since_ns=now_ns - int(silent_s * NS),
        evidence=(*finding.evidence, Evidence(EvidenceKind.TIME, text)),
        victims=finding.victims,
    )
