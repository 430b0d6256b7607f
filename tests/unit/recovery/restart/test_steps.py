"""The steps of a restart: one table of what follows what, and what an incident remembers as text."""

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.api.fault_policy import FaultPolicy
from kcover_ebpf.api.incident import Phase, RestartAction, RestartMethod, Status
from kcover_ebpf.recovery.restart import advance, steps
from kcover_ebpf.recovery.restart.context import RestartInput
from kcover_ebpf.recovery.restart.machine import RestartContext
from kcover_ebpf.recovery.restart.steps import TRANSITIONS, RestartDetail, Step, step_of

ENDS = {Step.DONE, Step.FAILED}


def reached() -> set[Step]:
    """Every step that an incident can come to."""
    found: set[Step] = set()
    left: list[Step | None] = [None]
    while left:
        new = set(TRANSITIONS.get(left.pop(), {})) - found
        found |= new
        left += new
    return found


def ends_from(step: Step) -> set[Step]:
    """The ends that a step can come to."""
    found, left = {step}, [step]
    while left:
        new = set(TRANSITIONS.get(left.pop(), {})) - found
        found |= new
        left += new
    return found & ENDS


def test_transitions__every_step_is_reached() -> None:
    assert reached() == set(Step)


@pytest.mark.parametrize("step", Step)
def test_transitions__every_step_comes_to_an_end(step: Step) -> None:
    assert Step.FAILED in ends_from(step) or step is Step.DONE


def test_transitions__each_has_a_reason() -> None:
    assert all(reason for row in TRANSITIONS.values() for reason in row.values())


def test_transitions__every_step_that_is_no_end_has_a_row_and_something_that_does_it() -> None:
    rows = {step for step in TRANSITIONS if step is not None}
    assert rows == set(Step) - ENDS
    assert set(advance.HANDLERS) == rows - {Step.PROGRESS}, "PROGRESS is the phase Recovering"


def at(step: str | None) -> RestartContext:
    action = (
        RestartAction(RestartMethod.REPLACE, step, 1, 0.0, "hung") if step is not None else None
    )
    status = Status(Phase.SHUTTING_DOWN, action=action)
    return RestartContext(status, RestartInput(0.0, None, ()), FaultPolicy(), "inc", "ns/inc")


def test_word_of__a_step_that_may_come_next() -> None:
    assert at("Gone").word_of(Step.STUCK) == "Stuck"
    assert at(None).word_of(Step.SUSPEND) == "Suspend"
    assert at("Fly").word_of(Step.FAILED) == "Failed", "left by another version"


@pytest.mark.parametrize(
    ("step", "after"),
    [("Gone", Step.PROGRESS), ("Done", Step.SUSPEND), (None, Step.GONE), ("Fly", Step.GONE)],
)
def test_word_of__a_step_that_may_not_come_next(step: str | None, after: Step) -> None:
    with pytest.raises(AssertionError, match=str(after)):
        at(step).word_of(after)


def test_step_of__a_word_of_another_version() -> None:
    assert step_of("FinalStop") is Step.FINAL_STOP
    assert step_of("Fly") is None


_TIMES = st.floats(0, 4e9).map(lambda value: round(value, 6))
_SHORT = st.integers(0, 10_000).map(float)


@given(
    st.builds(
        RestartDetail,
        pods=st.integers(0, 10_000),
        before_s=st.none() | _TIMES,
        grace_s=_SHORT,
        pause_s=_SHORT,
        version=st.integers(0, 1 << 31),
        returned_s=_TIMES,
        crashed_s=_TIMES,
        renewed=st.integers(0, 100),
        is_slow=st.booleans(),
        why=st.text(max_size=20),
        restarts=st.text(max_size=20),
        elsewhere=st.text(max_size=20),
        refused_s=_TIMES,
    )
)
def test_detail__is_read_as_it_was_written(detail: RestartDetail) -> None:
    words = detail.words()
    assert all(isinstance(word, str) for word in words.values())
    assert RestartDetail.read(words) == detail


def test_detail__every_field_has_a_key_of_its_own() -> None:
    names = [field.name for field in fields(RestartDetail)]
    assert list(steps.FORMS) == names
    assert len({form.key for form in steps.FORMS.values()}) == len(names)


def test_detail__keys_of_other_versions_are_passed_over() -> None:
    assert RestartDetail.read({"pods": "4", "wings": "2"}) == RestartDetail(pods=4)
