"""When the moment of a verdict is reported again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.model.verdict import Cause, Verdict, VerdictKind

REPORTED = Verdict(VerdictKind.HUNG, Cause.BLOCKED_LOCK, 1000.0, 990.0, acts_at_s=1100.0)


@pytest.mark.parametrize(
    ("time_s", "acts_at_s", "is_reported"),
    [
        (1001.0, 1100.0, False),
        (1001.0, 1096.0, False),
        (1001.0, 1095.0, True),
        (1001.0, 1300.0, False),
        (1095.0, 1104.0, False),
        (1095.0, 1105.0, True),
        (1001.0, None, True),
    ],
    ids=[
        *("the same", "a little earlier", "earlier", "later, and far off", "a little later"),
        *("later, and near", "never any more"),
    ],
)
def test_acts_otherwise__reported_again_if_a_reader_would_be_misled(
    time_s: float, acts_at_s: float | None, *, is_reported: bool
) -> None:
    assert (
        replace(REPORTED, time_s=time_s, acts_at_s=acts_at_s).acts_otherwise(REPORTED)
        is is_reported
    )


def test_acts_otherwise__nothing_was_reported_before() -> None:
    assert not REPORTED.acts_otherwise(None)
    assert REPORTED.acts_otherwise(replace(REPORTED, acts_at_s=None))
