"""What only the policy of a job makes a fault: time alone, and what its log lacks or prints."""

from __future__ import annotations

import pytest

from kcover_ebpf.diagnosis.evidence.snapshot import Finding
from kcover_ebpf.diagnosis.judge.policy_rules import at_hard_limit, broken_rule
from kcover_ebpf.facts.logs import BrokenLogRule, LogSeen
from kcover_ebpf.ids import NS
from kcover_ebpf.model.verdict import Cause, Certainty, Culprit, EvidenceKind, VerdictKind
from kcover_ebpf.settings import Policy

NOW_NS = 1_000 * NS
WORKS = Finding(VerdictKind.WORKING, Cause.COMPUTING, NOW_NS)
HANGS = Finding(VerdictKind.HUNG, Cause.BLOCKED_LOCK, NOW_NS, Culprit(1))
OBSERVED = BrokenLogRule("rule loss: no such line", 5)
RESTARTS = BrokenLogRule("rule trains: no such line", 9, restarts=True)


@pytest.mark.parametrize(
    ("found", "silent_s", "limit_s"), [(WORKS, 1e6, None), (WORKS, 29, 30), (HANGS, 1e6, 30)]
)
def test_at_hard_limit__what_was_found_stays(
    found: Finding, silent_s: float, limit_s: float | None
) -> None:
    policy = Policy(hard_limit_s=limit_s)
    assert at_hard_limit(found, silent_s, policy, NOW_NS) is found


def test_at_hard_limit__a_silence_beyond_the_limit_is_a_hang_without_a_culprit() -> None:
    found = at_hard_limit(WORKS, 30, Policy(hard_limit_s=30), NOW_NS)
    assert (found.kind, found.cause, found.rank) == (VerdictKind.HUNG, Cause.UNKNOWN, None)
    assert found.since_ns == NOW_NS - 30 * NS
    assert [evidence.kind for evidence in found.evidence] == [EvidenceKind.TIME]


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
