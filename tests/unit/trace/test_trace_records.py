"""Records of a trace survive JSON; anything else is refused in one line."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.errors import UsageError
from kcover_ebpf.model.traced import Stack
from kcover_ebpf.output.formatting import SCHEMA, event_line
from kcover_ebpf.trace.describe_call import WaitTarget
from kcover_ebpf.trace.records import EVENTS, TRACE, TracedThread, TraceHeader, parse

NUMBERS = st.integers(0, 2**31)
SPANS = st.none() | st.floats(0, 1e9)
TARGETS = st.builds(
    WaitTarget,
    kind=st.sampled_from(["lock", "tcp", "pipe"]),
    text=st.text(),
    pid=st.none() | NUMBERS,
    tid=st.none() | NUMBERS,
    rank=st.none() | NUMBERS,
    fd=st.none() | NUMBERS,
    address=st.none() | st.text(),
)
ROWS = st.builds(
    TracedThread,
    pid=NUMBERS,
    tid=NUMBERS,
    comm=st.text(),
    rank=st.none() | NUMBERS,
    role=st.text(),
    pod=st.none() | st.text(),
    state=st.text(),
    call=st.text(),
    text=st.text(),
    since_s=SPANS,
    cpu_share=SPANS,
    ends_in_s=SPANS,
    lead=st.booleans(),
    waits_for=st.lists(TARGETS, max_size=3).map(tuple),
)
FRAMES = st.lists(st.text(), max_size=3).map(tuple)
STACKS = st.builds(
    Stack,
    pid=NUMBERS,
    tid=NUMBERS,
    rank=st.none() | NUMBERS,
    python=FRAMES,
    native=FRAMES,
    kernel=FRAMES,
)


@given(st.lists(ROWS, max_size=4))
def test_trace_records__rows_survive(rows: list[TracedThread]) -> None:
    line = parse(event_line("threads", 5.0, {"threads": [TRACE.encode(row) for row in rows]}))
    assert (line.event, line.time_s, line.rows) == ("threads", 5.0, tuple(rows))


@given(st.lists(STACKS, max_size=4), FRAMES)
def test_trace_records__stacks_survive(stacks: list[Stack], blind: tuple[str, ...]) -> None:
    fields = {"stacks": [TRACE.encode(stack) for stack in stacks], "unobserved": list(blind)}
    line = parse(event_line("stacks", 5.0, fields))
    assert (line.stacks, line.blind) == (tuple(stacks), blind)


def test_trace_records__the_first_record_survives() -> None:
    header = TraceHeader("job", "host", ("a", "b"), "node-1", "1.2")
    assert parse(event_line("trace", 1.0, TRACE.encode(header))).header == header


def test_parse__the_exit_code_is_given_by_the_last_record() -> None:
    assert parse(event_line("end", 1.0, {"exit_code": 1})).exit_code == 1


def test_trace_records__fields_of_a_later_version_are_passed_over() -> None:
    row = TRACE.encode(TracedThread(None, 1, 1, "a", "helper")) | {"novel": 5}
    assert parse(event_line("threads", 1.0, {"threads": [row]})).rows == (
        TracedThread(None, 1, 1, "a", "helper"),
    )


BAD = {
    "no JSON": ("hello", "not a JSON line"),
    "another schema": ('{"schema":"x"}', "without schema"),
    "a list": ("[]", "without schema"),
    "another event": (event_line("fact", 1.0, {}), "event 'fact'"),
    "no event": (json.dumps({"schema": SCHEMA}), "event 'None'"),
    "a row without a pid": (event_line("threads", 1.0, {"threads": [{}]}), "damaged"),
    "a time of no year": (event_line("end", 1e20, {"exit_code": 0}), "damaged"),
    "rows that are none": (event_line("threads", 1.0, {"threads": 5}), "damaged"),
    "an end without code": (event_line("end", 1.0, {}), "damaged"),
    "a code that is true": (event_line("end", 1.0, {"exit_code": True}), "damaged"),
    "deep nesting": ("[" * 100_000, "not a JSON line"),
}


@pytest.mark.parametrize("name", BAD)
def test_parse__anything_else_is_refused(name: str) -> None:
    text, said = BAD[name]
    with pytest.raises(UsageError, match=said):
        parse(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)
KEYS = ["threads", "stacks", "unobserved", "headline", "reasons", "edges", "exit_code", "job"]


@given(st.sampled_from(EVENTS), st.dictionaries(st.sampled_from(KEYS), JSON))
def test_parse__any_fields_are_read_or_refused(event: str, fields: dict[str, object]) -> None:
    text = json.dumps({"schema": SCHEMA, "time": 1.0, "event": event} | fields)
    with contextlib.suppress(UsageError):
        assert parse(text).event == event


@pytest.mark.parametrize(
    ("edge", "shown"),
    [
        ({"unread_bytes": 3}, 3),
        ({}, 0),
        ({"unread_bytes": "x"}, None),
        ({"local": 7}, None),
        ("x", None),
    ],
)
def test_parse__an_edge_is_read_with_blanks_or_refused(edge: object, shown: int | None) -> None:
    line = event_line("verdict", 1.0, {"headline": "h", "edges": [edge]})
    if shown is None:
        with pytest.raises(UsageError, match="damaged"):
            parse(line)
        return
    conclusion = parse(line).conclusion
    assert conclusion is not None
    assert (conclusion.edges[0].unread_bytes, conclusion.edges[0].local) == (shown, "")
