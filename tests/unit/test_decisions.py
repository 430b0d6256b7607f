"""When a job may be ended: an announced fault, or two kinds of evidence of which one is no reading of the clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.diagnosis.decisions import decide
from kcover_ebpf.diagnosis.verdict import Cause, Evidence, EvidenceKind, Verdict, VerdictKind
from kcover_ebpf.settings import Act

ENDING = (Act.SHUTDOWN, Act.RESTART)
LEVEL = list(Act)
QUIET_KINDS = [VerdictKind.WORKING, VerdictKind.UNKNOWN, VerdictKind.SLOW]
CLOCK = {EvidenceKind.TIME, EvidenceKind.SINK, EvidenceKind.PEERS}


def verdict(kind: VerdictKind, *kinds: EvidenceKind, lasted_s: float = 10_000) -> Verdict:
    reported = tuple(Evidence(each, "text") for each in kinds)
    return Verdict(
        kind, Cause.UNKNOWN, 20_000, 20_000 - lasted_s, "job", "job-1", evidence=reported
    )


VERDICTS = st.builds(
    lambda kind, kinds: verdict(kind, *kinds),
    st.sampled_from(VerdictKind),
    st.lists(st.sampled_from(EvidenceKind), max_size=4),
)


@pytest.mark.parametrize(
    ("kind", "kinds", "ends"),
    [
        (VerdictKind.CRASHED, (), True),
        (VerdictKind.HUNG, (EvidenceKind.EVENT,), True),
        (VerdictKind.HUNG, (EvidenceKind.TIME,), False),
        (VerdictKind.HUNG, (EvidenceKind.SINK,), False),
        (VerdictKind.HUNG, (EvidenceKind.SINK, EvidenceKind.SINK), False),
        (VerdictKind.HUNG, (EvidenceKind.SINK, EvidenceKind.TIME, EvidenceKind.PEERS), False),
        (VerdictKind.HUNG, (EvidenceKind.STATE,), False),
        (VerdictKind.HUNG, (EvidenceKind.STATE, EvidenceKind.TIME), True),
        (VerdictKind.HUNG, (EvidenceKind.EDGE, EvidenceKind.STACK), True),
        (VerdictKind.DEADLOCK, (EvidenceKind.STACK, EvidenceKind.PEERS), True),
        (VerdictKind.LOST_LINK, (EvidenceKind.EDGE, EvidenceKind.TIME), True),
        (VerdictKind.SLOW, (EvidenceKind.SINK, EvidenceKind.EDGE, EvidenceKind.TIME), False),
        (VerdictKind.WORKING, (EvidenceKind.EVENT,), False),
        (VerdictKind.UNKNOWN, (EvidenceKind.EVENT,), False),
    ],
)
def test_decide__what_ends_a_job(
    kind: VerdictKind, kinds: tuple[EvidenceKind, ...], ends: bool
) -> None:
    for allowed in ENDING:
        assert (decide(verdict(kind, *kinds), allowed).act is allowed) == ends


@given(VERDICTS, st.sampled_from(Act), st.none() | st.floats(0, 20_000))
def test_decide__no_decision_goes_further_than_allowed(
    reported: Verdict, allowed: Act, limit_s: float | None
) -> None:
    act = decide(reported, allowed, limit_s).act
    assert LEVEL.index(act) <= LEVEL.index(allowed)
    if reported.kind in QUIET_KINDS:
        assert act is Act.OBSERVE


@given(VERDICTS, st.sampled_from(ENDING))
def test_decide__a_job_is_never_ended_on_time_or_on_one_kind_alone(
    reported: Verdict, allowed: Act
) -> None:
    kinds = {each.kind for each in reported.evidence}
    if decide(reported, allowed).act not in ENDING:
        return
    announced = reported.kind is VerdictKind.CRASHED or EvidenceKind.EVENT in kinds
    assert announced or (len(kinds) >= 2 and kinds - CLOCK)


def test_decide__the_hard_limit_ends_a_job_on_time_alone_and_only_then() -> None:
    reported = verdict(VerdictKind.HUNG, EvidenceKind.TIME, lasted_s=30)
    assert decide(reported, Act.SHUTDOWN, hard_limit_s=30).act is Act.SHUTDOWN
    assert decide(reported, Act.SHUTDOWN, hard_limit_s=31).act is Act.SNAPSHOT
    assert decide(reported, Act.SHUTDOWN).act is Act.SNAPSHOT


def test_decide__the_reason_is_reported() -> None:
    reported = verdict(VerdictKind.HUNG, EvidenceKind.PEERS, EvidenceKind.STACK, EvidenceKind.SINK)
    assert decide(reported, Act.RESTART).reason == "independent evidence: stack and time"
    assert (
        decide(verdict(VerdictKind.CRASHED), Act.RESTART).reason == "fault announced by the kernel"
    )
