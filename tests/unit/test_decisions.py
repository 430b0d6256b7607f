"""When a job may be ended: an announced fault, or two kinds of evidence of which one is no reading of the clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.decisions import decide
from kcover_ebpf.incidents.verdict import Cause, Evidence, EvidenceKind, Kind, Verdict
from kcover_ebpf.settings import Act

ENDING = (Act.SHUTDOWN, Act.RESTART)
LEVEL = list(Act)
QUIET_KINDS = [Kind.WORKING, Kind.UNKNOWN, Kind.SLOW]
CLOCK = {EvidenceKind.TIME, EvidenceKind.SINK, EvidenceKind.PEERS}


def verdict(kind: Kind, *kinds: EvidenceKind, lasted_s: float = 10_000) -> Verdict:
    told = tuple(Evidence(each, "text") for each in kinds)
    return Verdict("job", "job-1", kind, Cause.UNKNOWN, 20_000, 20_000 - lasted_s, evidence=told)


VERDICTS = st.builds(
    lambda kind, kinds: verdict(kind, *kinds),
    st.sampled_from(Kind),
    st.lists(st.sampled_from(EvidenceKind), max_size=4),
)


@pytest.mark.parametrize(
    ("kind", "kinds", "ends"),
    [
        (Kind.CRASHED, (), True),
        (Kind.HUNG, (EvidenceKind.EVENT,), True),
        (Kind.HUNG, (EvidenceKind.TIME,), False),
        (Kind.HUNG, (EvidenceKind.SINK,), False),
        (Kind.HUNG, (EvidenceKind.SINK, EvidenceKind.SINK), False),
        (Kind.HUNG, (EvidenceKind.SINK, EvidenceKind.TIME, EvidenceKind.PEERS), False),
        (Kind.HUNG, (EvidenceKind.STATE,), False),
        (Kind.HUNG, (EvidenceKind.STATE, EvidenceKind.TIME), True),
        (Kind.HUNG, (EvidenceKind.EDGE, EvidenceKind.STACK), True),
        (Kind.DEADLOCK, (EvidenceKind.STACK, EvidenceKind.PEERS), True),
        (Kind.LOST_LINK, (EvidenceKind.EDGE, EvidenceKind.TIME), True),
        (Kind.SLOW, (EvidenceKind.SINK, EvidenceKind.EDGE, EvidenceKind.TIME), False),
        (Kind.WORKING, (EvidenceKind.EVENT,), False),
        (Kind.UNKNOWN, (EvidenceKind.EVENT,), False),
    ],
)
def test_what_ends_a_job(kind: Kind, kinds: tuple[EvidenceKind, ...], ends: bool) -> None:
    for allowed in ENDING:
        assert (decide(verdict(kind, *kinds), allowed).act is allowed) == ends


@given(VERDICTS, st.sampled_from(Act), st.none() | st.floats(0, 20_000))
def test_no_decision_goes_further_than_allowed(
    told: Verdict, allowed: Act, limit_s: float | None
) -> None:
    act = decide(told, allowed, limit_s).act
    assert LEVEL.index(act) <= LEVEL.index(allowed)
    if told.kind in QUIET_KINDS:
        assert act is Act.OBSERVE


@given(VERDICTS, st.sampled_from(ENDING))
def test_a_job_is_never_ended_on_time_or_on_one_kind_alone(told: Verdict, allowed: Act) -> None:
    kinds = {each.kind for each in told.evidence}
    if decide(told, allowed).act not in ENDING:
        return
    announced = told.kind is Kind.CRASHED or EvidenceKind.EVENT in kinds
    assert announced or (len(kinds) >= 2 and kinds - CLOCK)


def test_the_hard_limit_ends_a_job_on_time_alone_and_only_then() -> None:
    told = verdict(Kind.HUNG, EvidenceKind.TIME, lasted_s=30)
    assert decide(told, Act.SHUTDOWN, hard_limit_s=30).act is Act.SHUTDOWN
    assert decide(told, Act.SHUTDOWN, hard_limit_s=31).act is Act.SNAPSHOT
    assert decide(told, Act.SHUTDOWN).act is Act.SNAPSHOT


def test_the_reason_is_told() -> None:
    told = verdict(Kind.HUNG, EvidenceKind.PEERS, EvidenceKind.STACK, EvidenceKind.SINK)
    assert decide(told, Act.RESTART).reason == "independent evidence: stack and time"
    assert decide(verdict(Kind.CRASHED), Act.RESTART).reason == "announced fault"
