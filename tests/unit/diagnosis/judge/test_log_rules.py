"""What broken rules of a job's policy mean, where nothing else is wrong with it."""

from __future__ import annotations

import pytest

from kcover_ebpf.diagnosis.judge.log_rules import broken_rule
from kcover_ebpf.facts.logs import BrokenLogRule, LogSeen
from kcover_ebpf.model.verdict import Certainty, EvidenceKind, VerdictKind

OBSERVED = BrokenLogRule("rule loss: no such line", 5)
RESTARTS = BrokenLogRule("rule trains: no such line", 9, restarts=True)


def test_broken_rule__none_is() -> None:
    assert broken_rule(LogSeen(10)) is None


@pytest.mark.parametrize(
    ("broken", "since_ns", "kind", "certainty"),
    [
        ((OBSERVED,), 5, EvidenceKind.LOG, Certainty.SUSPECTED),
        ((RESTARTS,), 9, EvidenceKind.EVENT, Certainty.ANNOUNCED),
        ((OBSERVED, RESTARTS), 9, EvidenceKind.EVENT, Certainty.ANNOUNCED),
    ],
)
def test_broken_rule__only_one_that_restarts_is_an_announcement(
    broken: tuple[BrokenLogRule, ...], since_ns: int, kind: EvidenceKind, certainty: Certainty
) -> None:
    finding = broken_rule(LogSeen(10, broken=broken))
    assert finding is not None
    assert (finding.kind, finding.since_ns, finding.certainty) == (
        VerdictKind.HUNG,
        since_ns,
        certainty,
    )
    assert {evidence.kind for evidence in finding.evidence} == {kind}
