"""The tour without a cluster: its training hangs, the sensor names the rank, and the job trains again."""

import signal
from pathlib import Path

import pytest
import yaml

from tests.kernel.command import PYTHON, run

pytestmark = [pytest.mark.needs("cgroup2"), pytest.mark.long]

FOLDER = Path(__file__).resolve().parents[2] / "contrib/tour"


def test_tour__the_deadlocked_rank_is_named_and_the_job_is_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compose = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    _, *command = compose["services"]["training"]["command"]
    where = command.index("0.0.0.0:9465")
    command[where] = "127.0.0.1:0"
    arguments = [
        {"/tour/train.py": str(FOLDER / "train.py"), "python3": PYTHON}.get(w, w) for w in command
    ]
    monkeypatch.setenv("HANG_AT_STEP", "40")
    monkeypatch.setenv("MARK", str(tmp_path / "mark"))
    with run("-o", "json", *arguments, folder=tmp_path) as one:
        one.await_restart(1)
        one.await_verdict("training")
        one.send(signal.SIGTERM)
        one.reap()
    hung = [event for event in one.events() if event.get("verdict") == "HUNG"]
    assert {event["culprit"]["rank"] for event in hung} == {2}
