"""A checkpoint that is being written, by what trainers print."""

from __future__ import annotations

import pytest

from kcover_ebpf.logs.progress_watch import ProgressWatch

NOW_S = 1_000.0


def saving_age_s(*lines: str) -> float | None:
    """As the log shows it three seconds after its last line; a second lies between two lines."""
    watch = ProgressWatch(3600.0)
    watch.begin()
    for number, line in enumerate(lines):
        watch.feed(f"{line}\n".encode(), NOW_S + number)
    progress = watch.progress(NOW_S + len(lines) + 2)
    return None if progress is None else progress.saving_age_s


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        pytest.param(["step 7", "Saving checkpoint at step 7"], 3.0, id="begun"),
        pytest.param(["step 7", "Saving checkpoint", "step 8"], 4.0, id="steps continue meanwhile"),
        pytest.param(
            ["step 7", "Saving checkpoint", "saved checkpoint of step 7"], None, id="complete"
        ),
        pytest.param(
            ["step 7", "Saving checkpoint", "kcover: checkpoint 7 is complete"],
            None,
            id="complete, as the program announces it",
        ),
        pytest.param(
            ["step 7", "saved checkpoint of step 7", "Saving checkpoint"], 3.0, id="another"
        ),
        pytest.param(["step 7"], None, id="none"),
    ],
)
def test_progress_watch__a_checkpoint_that_was_begun_is_being_written_until_it_is_complete(
    lines: list[str], wanted: float | None
) -> None:
    assert saving_age_s(*lines) == wanted
