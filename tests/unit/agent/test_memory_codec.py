"""What is remembered of a job, written down and read again."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.agent.memory_codec import memory_of, words_of
from kcover_ebpf.diagnosis.clock.job_memory import JobMemory

LENGTHS = st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 5000)), max_size=200)


@given(LENGTHS, st.floats(0, 1e6))
def test_memory_of__reads_what_words_of_wrote(past: list[tuple[str, float]], hours: float) -> None:
    found = JobMemory(start_s=4.25, step_s=0.5)
    found.silences.observe(hours * 3600)
    for place, length_s in past:
        found.silences.learn(place, length_s)
    again = memory_of(json.loads(json.dumps(words_of(found))))
    summary = again.silences.summary
    assert summary == pytest.approx(found.silences.summary) or summary == found.silences.summary
    assert (again.start_s, again.step_s) == (found.start_s, found.step_s)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
        max_leaves=12,
    )
)
def test_memory_of__a_damaged_record_teaches_nothing_and_raises_nothing(words: object) -> None:
    for damaged in ({"observedS": words, "silences": words}, {"silences": [words]}):
        found = memory_of(damaged).silences
        assert found.observed_s >= 0
        assert all(silence.length_s > 0 for silence in found.kept)
