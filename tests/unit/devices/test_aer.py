"""Names and counts of PCIe errors (advanced error reporting)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.devices.aer import AerCounter, names
from kcover_ebpf.facts.devices import (
    AerSeverity,
    AerTotal,
)

GPU = "0000:5d:00.0"
CORRECTED, NONFATAL, FATAL = AerSeverity.CORRECTED, AerSeverity.NONFATAL, AerSeverity.FATAL


@pytest.mark.parametrize(
    ("severity", "status", "expected"),
    [
        (CORRECTED, 0x1, ("Receiver Error",)),
        (CORRECTED, 0x1000, ("Replay Timer Timeout",)),
        (FATAL, 0x1000, ("Poisoned TLP",)),
        (NONFATAL, 0x104000, ("Completion Timeout", "Unsupported Request")),
        (FATAL, 0x20, ("Surprise Down Error",)),
        (FATAL, 0, ()),
        (CORRECTED, 0x2, ("bit 1",)),
    ],
)
def test_names__error_names(severity, status, expected):
    assert names(severity, status) == expected


@given(st.lists(st.integers(0, 50), max_size=30), st.data())
def test_aer_counter__no_error_is_lost_or_counted_twice(bursts, data):
    """Records are sent now and then, the map may be read any time."""
    counter, total, reported = AerCounter(), 0, 0
    for burst in bursts:
        total += burst
        fact = AerTotal(0, GPU, CORRECTED, 1, total)
        if data.draw(st.booleans()) and total:
            reported += error.count if (error := counter.on_total(fact)) else 0
        if data.draw(st.booleans()):
            reported += sum(error.count for error in counter.on_totals([fact]))
    reported += sum(
        error.count for error in counter.on_totals([AerTotal(0, GPU, CORRECTED, 1, total)])
    )
    assert reported == total


def test_aer_counter__uncounted_errors_are_reported_one_by_one():
    counter = AerCounter()
    fact = AerTotal(0, GPU, FATAL, 0x20, 0)
    for _ in range(2):
        error = counter.on_total(fact)
        assert error is not None
        assert error.count == 1
