"""The clock that a job's own log is: it puts off what is counted from a silence, and hastens nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.diagnosis.clock.certainty import completed
from kcover_ebpf.diagnosis.clock.log_clock import LogClock
from kcover_ebpf.model.silence_summary import Patience
from kcover_ebpf.model.verdict import Cause, Culprit, Evidence, EvidenceKind, Verdict, VerdictKind
from kcover_ebpf.settings import Policy

NOW_S = 1000.0
PATIENCE = Patience(60.0, "the patience of a test")
INFERRED = Verdict(
    VerdictKind.HUNG,
    Cause.UNKNOWN,
    NOW_S,
    NOW_S - 50.0,
    culprit=Culprit(rank=1),
    evidence=(Evidence(EvidenceKind.SINK, "all wait for it"),),
)
SUSPECTED = replace(INFERRED, culprit=None)
ANNOUNCED = replace(INFERRED, evidence=(Evidence(EvidenceKind.EVENT, "the kernel said so"),))
PROVEN = replace(INFERRED, evidence=(Evidence(EvidenceKind.STATE, "a state that does not end"),))
LIMITED = Policy(hard_limit_s=300.0)
TIMES = st.one_of(st.none(), st.floats(0.0, 3000.0))


def acts_at_s(verdict: Verdict, log_clock: LogClock, policy: Policy = LIMITED) -> float | None:
    return completed(verdict, policy, PATIENCE, NOW_S - 40.0, log_clock).acts_at_s


CASES = {
    "nothing is known": (LogClock(), 1020.0),
    "a step before the silence": (LogClock(moved_s=900.0), 1020.0),
    "a step in the silence": (LogClock(moved_s=990.0), 1050.0),
    "a step later than now": (LogClock(moved_s=5000.0), 1060.0),
    "an announced phase": (LogClock(phase_until_s=1500.0), 1500.0),
    "a phase that is over before": (LogClock(phase_until_s=1010.0), 1020.0),
    "both": (LogClock(moved_s=990.0, phase_until_s=1055.0), 1055.0),
}


@pytest.mark.parametrize(("log_clock", "ends_s"), CASES.values(), ids=CASES)
def test_completed__an_inference_waits_for_the_log(log_clock: LogClock, ends_s: float) -> None:
    assert acts_at_s(INFERRED, log_clock) == ends_s


def test_completed__says_that_it_waits_for_a_phase() -> None:
    found = completed(INFERRED, LIMITED, PATIENCE, NOW_S - 40.0, LogClock(phase_until_s=1500.0))
    assert found.acts_why == "its program announced a phase that may take until then"


@given(moved_s=TIMES, until_s=TIMES)
@pytest.mark.parametrize("verdict", [ANNOUNCED, PROVEN])
def test_completed__what_is_certain_waits_for_no_log(
    verdict: Verdict, moved_s: float | None, until_s: float | None
) -> None:
    assert acts_at_s(verdict, LogClock(moved_s, until_s)) == acts_at_s(verdict, LogClock())


@given(moved_s=TIMES, until_s=TIMES, limit_s=st.sampled_from([None, 10.0, 300.0]))
@pytest.mark.parametrize("verdict", [INFERRED, SUSPECTED])
def test_completed__a_log_never_ends_a_job_sooner(
    verdict: Verdict, moved_s: float | None, until_s: float | None, limit_s: float | None
) -> None:
    policy = Policy(hard_limit_s=limit_s)
    without_s = acts_at_s(verdict, LogClock(), policy)
    with_s = acts_at_s(verdict, LogClock(moved_s, until_s), policy)
    assert (with_s is None) == (without_s is None)
    assert with_s is None or without_s is None or with_s >= without_s
