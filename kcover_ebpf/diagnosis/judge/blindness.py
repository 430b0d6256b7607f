"""Whether one job can be judged by silence at all, and the finding while it cannot. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from kcover_ebpf.diagnosis.evidence.snapshot import Finding
from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.facts.kernel import CALM_EVERY
from kcover_ebpf.ids import NS
from kcover_ebpf.model.verdict import Cause, Evidence, EvidenceKind, VerdictKind
from kcover_ebpf.tunables.diagnosis import (
    BLINDNESS_REPORTED_NS,
    PROCESS_SAMPLED_WITHIN_NS,
    TWO_PASSES_NS,
)

_MOST_WITHOUT_TOTALS = CALM_EVERY + 2
"""Passes without totals of a process that had some before after which it is not sampled: its turn would have come."""


class Sight:
    """How long, and why, a job could not be observed. Announced facts are certain and do not need this."""

    def __init__(self) -> None:
        self._since_ns = self._until_ns = 0
        self.reason = ""
        """Reason of the last blindness; empty before the first one."""

    def lose(self, reason: str, from_ns: int, now_ns: int) -> None:
        """Note that something which a judgement by silence needs was missed between the two passes."""
        # the first gap is over when it is noticed: a node that was suspended is not blind afterwards
        if from_ns > self._until_ns:
            self._since_ns = now_ns
        self._until_ns, self.reason = now_ns + TWO_PASSES_NS, reason

    def is_blind(self, now_ns: int) -> bool:
        """True while silence means nothing, because facts were missed or are too recent."""
        return now_ns < self._until_ns

    def finding(self, now_ns: int) -> Finding | None:
        """The finding during a blindness: none for a moment, then UNKNOWN with the reason."""
        lasted_ns = now_ns - self._since_ns
        if lasted_ns <= BLINDNESS_REPORTED_NS:
            return None
        text = f"cannot observe for {lasted_ns / NS:.0f} s: {self.reason}"
        evidence = (Evidence(EvidenceKind.SINK, text),)
        return Finding(VerdictKind.UNKNOWN, Cause.UNKNOWN, self._since_ns, evidence=evidence)


def unseen(views: Iterable[ProcessHistory], now_ns: int) -> str:
    """What the sampler misses of these living processes, in words; empty if nothing."""
    for process in views:
        totals = process.totals
        if totals is not None and totals.unseen_count:
            return f"no room to sample {totals.unseen_count} threads of process {process.pid}"
        is_new = totals is None and now_ns - process.first_seen_ns <= PROCESS_SAMPLED_WITHIN_NS
        if not is_new and (totals is None or process.passes_without_totals > _MOST_WITHOUT_TOTALS):
            return f"process {process.pid} is not sampled"
    return ""
