"""The budget of restarts, and the bundle of a snapshot."""

import os
import stat
from pathlib import Path

import pytest

from kcover_ebpf.errors import ActionError
from kcover_ebpf.output.bundles import write_bundle
from kcover_ebpf.run.outcome import refusal
from kcover_ebpf.settings import Policy


def test_refusal__the_first_restart_needs_no_progress_the_second_does() -> None:
    budget = Policy(max_restarts=3).restarts
    assert refusal(budget, 0, made_progress=False) is None
    assert refusal(budget, 1, made_progress=False) == "no progress since the last restart"
    assert refusal(budget, 1, made_progress=True) is None


def test_pause_s__a_run_pauses_before_its_first_restart_and_twice_as_long_each_time() -> None:
    budget = Policy(backoff_s=1.0, backoff_max_s=5.0).restarts
    assert [budget.pause_s(count) for count in range(1, 6)] == [1.0, 2.0, 4.0, 5.0, 5.0]


@pytest.mark.parametrize("maximum", [0, 1, 3])
def test_refusal__the_budget_ends(maximum: int) -> None:
    budget = Policy(max_restarts=maximum).restarts
    for earlier in range(maximum):
        assert refusal(budget, earlier, made_progress=True) is None
    assert refusal(budget, maximum, made_progress=True) == f"all {maximum} restarts are used up"


def test_write_bundle__a_bundle_is_complete_or_not_there(tmp_path: Path) -> None:
    path = write_bundle(tmp_path / "new", "one", {"a.txt": b"A\n", "nodes/b/c.txt": b"C\n"})
    assert path == tmp_path / "new" / "one"
    assert (path / "a.txt").read_text() == "A\n"
    assert (path / "nodes/b/c.txt").read_text() == "C\n"
    assert [other_path.name for other_path in path.parent.iterdir()] == ["one"]


def test_write_bundle__a_bundle_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ActionError, match="cannot write the bundle"):
        write_bundle(tmp_path / "file", "one", {})


def test_write_bundle__a_bundle_is_for_its_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path = write_bundle(tmp_path / "new", "one", {"nodes/b/a.log": b"secret"})
    finally:
        os.umask(before)
    modes = [
        stat.S_IMODE(other_path.stat().st_mode)
        for other_path in (
            path.parent,
            path,
            path / "nodes",
            path / "nodes/b",
            path / "nodes/b/a.log",
        )
    ]
    assert modes == [0o700, 0o700, 0o700, 0o700, 0o600]
