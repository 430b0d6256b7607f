"""A job that continues, but slower than it could."""

from __future__ import annotations

from kcover_ebpf.ids import NS
from kcover_ebpf.model.verdict import VerdictKind
from tests.unit.support.scripted_job import trained
from tests.unit.support.seen_verdicts import not_working


def test_slow_job__a_straggler_is_reported_as_soon_as_it_is_known() -> None:
    stage = trained()
    stage.become(stage.rank(2), "run")
    known_ns = 0
    while not not_working(stage):
        stage.rank(2).sent += 100_000
        stage.one_pass(NS)
        finding = stage.job.finding()
        if not known_ns and finding is not None and finding.kind is VerdictKind.SLOW:
            known_ns = stage.now_ns
    assert stage.now_ns - known_ns <= NS
