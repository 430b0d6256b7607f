"""What is remembered of one gang between two judgements."""

from __future__ import annotations

import pytest

from kcover_ebpf.controller.context_builder import GangMemo
from kcover_ebpf.gang.gang_input import GangVerdict
from kcover_ebpf.model.verdict import Cause, Certainty, Verdict, VerdictKind
from kcover_ebpf.settings import Policy

NOW_S = 1_700_000_000.0
POLICY = Policy()


def said(kind: VerdictKind, cause: Cause, acts_at_s: float | None = None) -> GangVerdict:
    certainty = Certainty.INFERRED if acts_at_s else None
    return GangVerdict(
        Verdict(kind, cause, NOW_S, NOW_S - 300.0, certainty=certainty, acts_at_s=acts_at_s)
    )


HUNG = said(VerdictKind.HUNG, Cause.BLOCKED_LOCK, NOW_S - 180.0)


@pytest.mark.parametrize(
    ("cause", "acts_at_s"),
    [(Cause.SLEEPING, NOW_S + POLICY.act_floor_s), (Cause.TRAINING, NOW_S - 180.0)],
)
def test_gang_memo__what_follows_on_an_explained_wait_is_put_off(
    cause: Cause, acts_at_s: float
) -> None:
    memo = GangMemo()
    memo.remember(said(VerdictKind.WORKING, cause), NOW_S, POLICY)
    judged = memo.remember(HUNG, NOW_S + 1.0, POLICY)
    assert judged is not None
    assert judged.verdict.acts_at_s == acts_at_s
    assert memo.since_s == NOW_S + 1.0


def test_gang_memo__without_a_verdict_there_is_nothing_to_put_off() -> None:
    memo = GangMemo()
    memo.remember(HUNG, NOW_S, POLICY)
    assert memo.remember(None, NOW_S + 1.0, POLICY) is None
    assert memo.signature == ()
