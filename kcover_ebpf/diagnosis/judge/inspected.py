"""A slow or stalled job with the findings of NCCL Inspector's files. Pure.

The job wrote these files, so they are only evidence for people: they name no culprit, and make nothing more certain.
"""

from __future__ import annotations

from dataclasses import replace

from kcover_ebpf.diagnosis.evidence.snapshot import Finding
from kcover_ebpf.facts.inspector import InspectorSeen
from kcover_ebpf.ids import NS
from kcover_ebpf.model.verdict import Evidence, EvidenceKind, VerdictKind
from kcover_ebpf.tunables.collectives import INSPECTOR_FRESH_S, INSPECTOR_SHOWN

_EXPLAINED = frozenset({VerdictKind.SLOW, VerdictKind.HUNG, VerdictKind.UNKNOWN})


def by_inspector(finding: Finding, inspector_seen: InspectorSeen, now_ns: int) -> Finding:
    """The finding with the costliest of the slow collectives as evidence, if the files were read recently."""
    if finding.kind not in _EXPLAINED or not inspector_seen.slow:
        return finding
    if now_ns - inspector_seen.boottime_ns > INSPECTOR_FRESH_S * NS:
        return finding
    found = [
        Evidence(EvidenceKind.EDGE, f"by NCCL Inspector, {slow.text}")
        for slow in inspector_seen.slow[:INSPECTOR_SHOWN]
    ]
    return replace(finding, evidence=(*finding.evidence, *found))
