"""A job that was really watched is judged alike from its tape."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.command import PYTHON, done, run

pytestmark = pytest.mark.needs("cgroup2")

RANK = """\
import os, signal, time
begin = time.monotonic()
while time.monotonic() - begin < 20:
    end = time.monotonic() + 0.05
    while time.monotonic() < end:
        pass
    time.sleep(0.1)
    if os.environ["RANK"] == "1" and time.monotonic() - begin > 4:
        os.kill(os.getpid(), signal.SIGSTOP)
"""

JOB = """\
import os, subprocess, sys
def rank(number):
    variables = {**os.environ, "RANK": str(number), "WORLD_SIZE": "3"}
    return subprocess.Popen([sys.executable, "secret-rank.py"], env=variables)
sys.exit(max(abs(each.wait()) for each in [rank(number) for number in range(3)]))
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Three ranks; rank 1 stops itself after 4 s."""
    (tmp_path / "secret-rank.py").write_text(RANK)
    (tmp_path / "secret-job.py").write_text(JOB)
    return tmp_path


def verdicts(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What must be the same, each verdict whole: no host is named in a tape, and no program."""
    found = []
    for event in events:
        if event["event"] == "verdict":
            culprit = {**(event["culprit"] or {}), "host": None}
            keys = ("verdict", "cause", "victims", "deadline", "unobserved", "factor")
            same = {key: event[key] for key in keys} | {"culprit": culprit}
            same["since"], same["time"] = round(event["since"], 3), round(event["time"], 3)
            found.append(same)
    return found


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("tape.jsonl", marks=pytest.mark.long),
        pytest.param("tape.jsonl.gz", marks=pytest.mark.alone),
    ],
)
def test_a_replay_gives_the_verdicts_of_the_run(job: Path, name: str) -> None:
    arguments = ["--act", "shutdown", "--record", name, "-o", "json", "--", PYTHON]
    with run(*arguments, "secret-job.py", folder=job) as one:
        assert one.finish() == 75
    found = verdicts(one.events())
    assert found[-1]["verdict"] == "HUNG"
    assert (found[-1]["cause"], found[-1]["culprit"]["rank"]) == ("stopped", 1)
    again = done("replay", name, "-o", "json", folder=job)
    assert (again.returncode, again.stderr) == (0, "")
    events = [json.loads(line) for line in again.stdout.splitlines()]
    assert verdicts(events) == found
    assert [(event["act"], event["reason"]) for event in events if event["event"] == "action"] == [
        (event["act"], event["reason"]) for event in one.events() if event["event"] == "action"
    ]
    kinds = [event["event"] for event in one.events()]
    assert [event["event"] for event in events] == kinds
    assert events[-1]["exit_code"] == 75


def test_a_tape_names_neither_host_nor_program_unless_asked(job: Path) -> None:
    for more, kept in ([], False), (["--record-names"], True):
        arguments = ["--for", "2s", "--record", "tape", *more, "-o", "json", "--", PYTHON]
        with run(*arguments, "secret-job.py", folder=job) as one:
            assert one.finish() == 0
        tape = (job / "tape").read_text()
        assert ("secret" in tape) is kept
        assert f'"{os.uname().nodename}"' not in tape


def test_a_disk_that_is_full_disturbs_no_process(job: Path) -> None:
    with run("--record", "/dev/full", "-o", "json", "--", "sleep", "1", folder=job) as one:
        assert one.finish() == 0
    assert one.err.count("recording stopped: No space left on device; the job continues") == 1
    assert one.events()[-1]["event"] == "end"


def test_names_without_a_tape_are_a_mistake(job: Path) -> None:
    wrong = done("run", "--record-names", "--", "true", folder=job)
    assert wrong.returncode == 2
    assert "--record-names needs --record FILE" in wrong.stderr
