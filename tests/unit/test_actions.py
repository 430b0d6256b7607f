"""The budget of restarts, and the bundle of a snapshot."""

import os
import stat
from pathlib import Path

import pytest

from kcover_ebpf.errors import ActionError
from kcover_ebpf.output.bundles import write_bundle
from kcover_ebpf.run.actions import RestartBudget
from kcover_ebpf.settings import Policy


def test_restart_budget__backoff_doubles_up_to_its_limit() -> None:
    budget = RestartBudget(Policy(backoff_s=1.0, backoff_max_s=5.0, max_restarts=9))
    assert [budget.spend() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_restart_budget__the_first_restart_needs_no_progress_the_second_does() -> None:
    budget = RestartBudget(Policy(max_restarts=3))
    assert budget.refusal(made_progress=False) is None
    budget.spend()
    assert budget.refusal(made_progress=False) == "no progress since the last restart"
    assert budget.refusal(made_progress=True) is None


@pytest.mark.parametrize("maximum", [0, 1, 3])
def test_restart_budget__the_budget_ends(maximum: int) -> None:
    budget = RestartBudget(Policy(max_restarts=maximum))
    for _ in range(maximum):
        assert budget.refusal(made_progress=True) is None
        budget.spend()
    refusal = budget.refusal(made_progress=True)
    assert refusal == f"all {maximum} restarts are used up"


def test_write_bundle__a_bundle_is_complete_or_not_there(tmp_path: Path) -> None:
    path = write_bundle(tmp_path / "new", "one", {"a.txt": "A\n", "b.txt": "\udcff\n"})
    assert path == tmp_path / "new" / "one"
    assert (path / "a.txt").read_text() == "A\n"
    assert (path / "b.txt").read_text() == "\\udcff\n"
    assert [each.name for each in path.parent.iterdir()] == ["one"]


def test_write_bundle__a_bundle_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ActionError, match="cannot write the snapshot"):
        write_bundle(tmp_path / "file", "one", {})


def test_write_bundle__a_bundle_is_for_its_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path = write_bundle(tmp_path / "new", "one", {"a.log": "secret"})
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(each.stat().st_mode) for each in (path.parent, path, path / "a.log")]
    assert modes == [0o700, 0o700, 0o600]
