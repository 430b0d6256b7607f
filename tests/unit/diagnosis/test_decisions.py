"""When a job may be ended: at the moment that a verdict's certainty names, and never on a suspicion."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.diagnosis.clock.certainty import certainty_of, completed, put_off
from kcover_ebpf.diagnosis.decisions import decide
from kcover_ebpf.model.silence_summary import SilenceSummary
from kcover_ebpf.model.verdict import (
    CAUSES,
    Cause,
    Certainty,
    Culprit,
    Evidence,
    EvidenceKind,
    Verdict,
    VerdictKind,
)
from kcover_ebpf.settings import Act, Policy
from kcover_ebpf.tunables.certainty import GIVES_UP_MARGIN_S

ENDING = (Act.SHUTDOWN, Act.RESTART)
LEVEL = list(Act)
QUIET_KINDS = [VerdictKind.WORKING, VerdictKind.UNKNOWN, VerdictKind.SLOW]
RANK_2 = Culprit(2)
NOVELTY = {
    EvidenceKind.TIME,
    EvidenceKind.SINK,
    EvidenceKind.PEERS,
    EvidenceKind.STACK,
    EvidenceKind.EDGE,
    EvidenceKind.GPU,
    EvidenceKind.LOG,
    EvidenceKind.OUTLIER,
}
KINDS = st.lists(st.sampled_from(EvidenceKind), max_size=6)


def verdict(
    kind: VerdictKind,
    *kinds: EvidenceKind,
    lasted_s: float = 10_000,
    cause: Cause | None = None,
    culprit: Culprit | None = RANK_2,
    policy: Policy | None = None,
    summary: SilenceSummary | None = None,
) -> Verdict:
    cause = cause or min(CAUSES[kind], key=lambda other_cause: other_cause.value)
    reported = tuple(Evidence(evidence_kind, "text") for evidence_kind in kinds)
    said = Verdict(kind, cause, 20_000, 20_000 - lasted_s, "job", "job-1", culprit, reported)
    policy = policy or Policy()
    return completed(said, policy, (summary or SilenceSummary()).patience(policy))


@pytest.mark.parametrize(("kinds", "is_put_off"), [((), True), ((EvidenceKind.STATE,), False)])
def test_put_off__a_wait_that_was_explained_a_moment_ago_is_given_time_anew(
    kinds: tuple[EvidenceKind, ...], is_put_off: bool
) -> None:
    reported = tuple(Evidence(kind, "text") for kind in kinds)
    said = Verdict(
        VerdictKind.HUNG,
        Cause.BLOCKED_LOCK,
        20_000,
        19_000,
        "job",
        "job-1",
        Culprit(1, 7),
        reported,
    )
    policy = Policy()
    patience = SilenceSummary().patience(policy)
    plain = completed(said, policy, patience)
    late = put_off(plain, 19_999.0, policy)
    assert late.acts_at_s == (19_999.0 + policy.act_floor_s if is_put_off else plain.acts_at_s)
    assert put_off(plain, 19_001.0, policy) == put_off(plain, None, policy) == plain
    limited = Policy(hard_limit_s=60.0)
    at_limit = put_off(completed(said, limited, patience), 19_999.0, limited)
    assert is_put_off is (at_limit.acts_at_s == 19_060.0)


def test_completed__acts_before_the_framework_would_have_given_up() -> None:
    policy, past = Policy(), SilenceSummary(24 * 3600, 1, 400.0, 600.0)
    stopped_s, silent_s = 19_000.0, 19_030.0
    said = Verdict(VerdictKind.HUNG, Cause.BLOCKED_LOCK, 20_000, stopped_s, culprit=RANK_2)
    said = replace(said, deadline_s=stopped_s + 600.0)
    found = completed(said, policy, past.patience(policy), silent_s)
    # the call in which the others wait began when the last of them came
    assert found.deadline_s == silent_s + 600.0
    assert found.acts_at_s == found.deadline_s - GIVES_UP_MARGIN_S


@pytest.mark.parametrize(
    ("kind", "cause", "kinds", "certainty"),
    [
        (VerdictKind.CRASHED, Cause.EXITED, (), Certainty.ANNOUNCED),
        (VerdictKind.HUNG, Cause.LEFT_EARLY, (EvidenceKind.EVENT,), Certainty.ANNOUNCED),
        (VerdictKind.DEVICE_FAULT, Cause.DEVICE, (EvidenceKind.EVENT,), Certainty.ANNOUNCED),
        (VerdictKind.HUNG, Cause.BLOCKED_SLEEP, (EvidenceKind.STATE,), Certainty.PROVEN),
        (VerdictKind.LOST_LINK, Cause.LINK, (EvidenceKind.EDGE,), Certainty.PROVEN),
        # a signal and a port that is down announce states, which others may end
        (VerdictKind.LOST_LINK, Cause.LINK, (EvidenceKind.EVENT,), Certainty.PROVEN),
        (
            VerdictKind.HUNG,
            Cause.STOPPED,
            (EvidenceKind.STATE, EvidenceKind.EVENT),
            Certainty.PROVEN,
        ),
        (
            VerdictKind.DEADLOCK,
            Cause.COLLECTIVE_MISMATCH,
            (EvidenceKind.COLLECTIVE,),
            Certainty.PROVEN,
        ),
        # a rank that is behind has not come yet: a long evaluation shows the same
        (
            VerdictKind.HUNG,
            Cause.NOT_IN_COLLECTIVE,
            (EvidenceKind.COLLECTIVE, EvidenceKind.TIME),
            Certainty.INFERRED,
        ),
        (VerdictKind.DEADLOCK, Cause.COLLECTIVE_MISMATCH, tuple(NOVELTY), Certainty.INFERRED),
        (VerdictKind.UNKNOWN, Cause.COMPUTING, (EvidenceKind.EVENT,), Certainty.SUSPECTED),
        (VerdictKind.WORKING, Cause.TRAINING, (EvidenceKind.EVENT,), None),
        (VerdictKind.SLOW, Cause.SLOW_RANK, (EvidenceKind.PEERS,), None),
    ],
)
def test_certainty_of__what_is_known_beside_that_a_phase_is_new(
    kind: VerdictKind, cause: Cause, kinds: tuple[EvidenceKind, ...], certainty: Certainty | None
) -> None:
    assert verdict(kind, *kinds, cause=cause).certainty is certainty


@given(st.sets(st.sampled_from(sorted(NOVELTY, key=lambda kind: kind.value))))
def test_certainty_of__all_that_one_new_phase_shows_is_one_kind(kinds: set[EvidenceKind]) -> None:
    reported = [Evidence(kind, "text") for kind in kinds]
    for cause in (Cause.BLOCKED_LOCK, Cause.SPINNING, Cause.BLOCKED_READ):
        found = certainty_of(VerdictKind.HUNG, cause, RANK_2, reported)
        assert found is Certainty.INFERRED
    assert certainty_of(VerdictKind.HUNG, Cause.WAIT_CYCLE, None, reported) is Certainty.SUSPECTED


@given(st.sampled_from(VerdictKind), KINDS, st.sampled_from(Act), st.floats(0, 20_000))
def test_decide__no_decision_goes_further_than_allowed(
    kind: VerdictKind, kinds: list[EvidenceKind], allowed: Act, lasted_s: float
) -> None:
    reported = verdict(kind, *kinds, lasted_s=lasted_s)
    act = decide(reported, allowed).act
    assert LEVEL.index(act) <= LEVEL.index(allowed)
    if reported.kind in QUIET_KINDS:
        assert act is Act.OBSERVE


@given(st.sampled_from(VerdictKind), KINDS, st.sampled_from(ENDING), st.floats(0, 20_000))
def test_decide__a_job_is_ended_only_once_its_printed_moment_has_come(
    kind: VerdictKind, kinds: list[EvidenceKind], allowed: Act, lasted_s: float
) -> None:
    reported = verdict(kind, *kinds, lasted_s=lasted_s)
    ends = decide(reported, allowed).act in ENDING
    is_due = reported.acts_at_s is not None and reported.acts_at_s <= reported.time_s
    assert ends == (is_due and reported.kind.is_fault)
    assert not ends or reported.certainty not in (None, Certainty.SUSPECTED)
    assert not ends or reported.acts_why


@pytest.mark.parametrize(
    ("lasted_s", "ends"), [(119.0, False), (120.0, True)], ids=["within its patience", "past it"]
)
def test_decide__an_inferred_fault_of_an_unknown_job_is_given_the_cap(
    lasted_s: float, *, ends: bool
) -> None:
    reported = verdict(
        VerdictKind.HUNG, EvidenceKind.STACK, cause=Cause.BLOCKED_LOCK, lasted_s=lasted_s
    )
    decision = decide(reported, Act.SHUTDOWN)
    assert (decision.act is Act.SHUTDOWN) == ends
    assert decision.reason.startswith("inferred: no silence was seen to end by itself")


def test_decide__the_hard_limit_ends_a_job_on_time_alone_and_only_then() -> None:
    def at(lasted_s: float, policy: Policy) -> Act:
        reported = verdict(
            VerdictKind.HUNG,
            EvidenceKind.TIME,
            cause=Cause.UNKNOWN,
            culprit=None,
            lasted_s=lasted_s,
            policy=policy,
        )
        return decide(reported, Act.SHUTDOWN).act

    assert at(30, Policy(hard_limit_s=30)) is Act.SHUTDOWN
    assert at(30, Policy(hard_limit_s=31)) is Act.SNAPSHOT
    assert at(10_000, Policy()) is Act.SNAPSHOT


def test_decide__stopped_is_ended_by_the_policy_alone() -> None:
    said = verdict(
        VerdictKind.HUNG,
        EvidenceKind.STATE,
        cause=Cause.STOPPED,
        lasted_s=59,
        policy=Policy(stopped_s=60),
    )
    assert decide(said, Act.SHUTDOWN).act is Act.SNAPSHOT
    assert said.acts_at_s is not None
    assert decide(replace(said, time_s=said.acts_at_s), Act.SHUTDOWN).act is Act.SHUTDOWN


def test_decide__the_reason_says_how_certain_it_is_and_when_it_acts() -> None:
    past = SilenceSummary(31 * 3600, 2, 12.0)
    reported = verdict(
        VerdictKind.HUNG, EvidenceKind.STACK, cause=Cause.BLOCKED_LOCK, lasted_s=3, summary=past
    )
    text = decide(reported, Act.RESTART).reason
    assert text.startswith("inferred: 2 times in 31.0 h it continued by itself, after at most 12 s")
    assert "is ended in" in text
