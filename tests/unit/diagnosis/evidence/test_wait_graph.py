"""Who waits for whom, as people are shown it."""

from __future__ import annotations

import pytest

from tests.unit.support.scripted_job import LOCK, all_wait, trained
from tests.unit.support.seen_verdicts import not_working


@pytest.mark.parametrize(
    ("timed", "end"), [(False, "a signal"), (True, "a timer of ten minutes or more")]
)
def test_wait_graph__a_wait_for_a_signal_is_not_shown_as_one_for_a_timer(
    end: str, *, timed: bool
) -> None:
    stage = trained()
    if timed:
        ends_ns = stage.now_ns + 10**14
        stage.become(stage.rank(1), "sleep_long", timed=True, deadline_ns=ends_ns)
    else:
        stage.become(stage.rank(1), "pause", stack=LOCK)
    all_wait(stage, 1)
    stage.run(20)
    assert not_working(stage)[-1].graph[0].endswith(f"rank 1 -> {end}")
