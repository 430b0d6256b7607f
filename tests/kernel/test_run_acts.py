"""What `run` does about a fault: nothing, a bundle, the end of the whole job, another start."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kcover_ebpf.archive.incident_archive import unpacked
from kcover_ebpf.host import cgroups, terminate
from kcover_ebpf.host.cgroups import CgroupTarget
from kcover_ebpf.output import archives
from tests.kernel.command import COMMAND, PYTHON, done, is_alive, run
from tests.waiting import until

pytestmark = pytest.mark.needs("cgroup2")

RANK = """\
import os, signal, sys, time
rank = os.environ["RANK"]
open("up-" + rank, "w").close()
if rank == "1":
    time.sleep(1.5)
    while os.path.exists("hold"):
        time.sleep(0.05)
    if not os.path.exists("survive"):
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(0)
signal.signal(signal.SIGTERM, lambda *_: open("asked", "w"))
if os.environ.get("PEER"):
    os.read(int(os.environ["PEER"]), 1)  # returns when rank 2 dies
    open("saw", "w")
time.sleep(float(os.environ.get("REST", "30")))
"""

JOB = """\
import os, subprocess, sys
open("starts", "a").write("x")
mine, theirs = os.pipe()
def rank(number, **more):
    variables = {**os.environ, "RANK": str(number), "WORLD_SIZE": "3", **more}
    return subprocess.Popen([sys.executable, "rank.py"], env=variables,
                            pass_fds=[mine] if "PEER" in more else [theirs])
ranks = [rank(0, PEER=str(mine)), rank(1), rank(2)]
os.close(theirs)
sys.exit(max(abs(each.wait()) for each in ranks))
"""
ENDED = -9, 9
"""The first process of that job is killed, or ends by the ranks that were killed a moment before."""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job of three ranks; rank 1 dies after 1.5 s, rank 0 notices if rank 2 dies before it."""
    (tmp_path / "rank.py").write_text(RANK)
    (tmp_path / "job.py").write_text(JOB)
    return tmp_path


def arguments(act: str, *more: str) -> list[str]:
    return ["--act", act, *more, "-o", "json", "--", PYTHON, "job.py"]


def test_observe_reports_and_does_nothing(job: Path) -> None:
    with run(*arguments("observe", "--for", "6s"), folder=job) as one:
        members = one.await_members(3)
        assert one.finish() == 1
        assert not any(is_alive(pid) for pid in members)
    verdicts = [event for event in one.events() if event["event"] == "verdict"]
    crash = next(event for event in verdicts if event["verdict"] == "CRASHED")
    assert crash["cause"] == "killed"
    assert crash["culprit"]["rank"] == 1
    assert crash["incident"]
    assert not [event for event in one.events() if event["event"] == "action"]
    assert not (job / "kcover-snapshots").exists()
    assert one.events()[-1]["reason"] == "time"


def test_snapshot_writes_a_bundle_and_leaves_the_job_alone(job: Path) -> None:
    with run(*arguments("snapshot", "--snapshot-dir", "kept"), folder=job) as one:
        until((job / "kept").exists, "the bundle")
        until(lambda: list((job / "kept").glob("2*")), "the bundle to be complete")
        time.sleep(0.5)
        assert len(one.members()) >= 2
        one.send(signal.SIGTERM)
        one.finish()
    (bundle,) = (job / "kept").iterdir()
    archive = unpacked(archives.read_files(bundle), "bundle")
    assert archive.missing == ()
    (part,) = archive.parts
    assert part.report is not None
    assert {rank.rank for rank in part.report.ranks} >= {0, 1}
    assert any("process_exit" in line for line in part.facts)
    assert archive.incident is not None
    assert json.loads((bundle / "verdict.json").read_text())["verdict"] == "CRASHED"
    action = next(event for event in one.events() if event["event"] == "action")
    assert action["act"] == "snapshot"
    assert str(bundle) in action["text"]


@pytest.mark.parametrize("act", ["snapshot", "shutdown"])
def test_snapshot_holds_no_argument_no_environment_and_no_variable(job: Path, act: str) -> None:
    """Of real ranks, whose memory, command line and environment were all within reach."""
    secret = "s3cr3t-0451"
    (job / "rank.py").write_text(f"token = {secret!r}\n" + RANK)
    (job / "job.py").write_text(JOB.replace('"rank.py"]', f'"rank.py", "--token={secret}"]'))
    before = "env", f"WANDB_API_KEY={secret}"
    command = ["--act", act, "--snapshot-dir", "kept", "-o", "json", "--", *before, PYTHON]
    with run(*command, "job.py", f"--password={secret}", folder=job) as one:
        until(lambda: list((job / "kept").glob("2*")), "the bundle to be complete")
        one.send(signal.SIGTERM)
        one.finish()
    files = [path for path in (job / "kept").rglob("*") if path.is_file()]
    assert len(files) >= 6
    assert [path for path in files if secret.encode() in path.read_bytes()] == []


def test_shutdown_ends_all_so_that_no_rank_sees_another_die(job: Path) -> None:
    with run(*arguments("shutdown"), folder=job) as one:
        members = one.await_members(4)
        assert one.finish() == 75
        assert not any(is_alive(pid) for pid in members)
        assert not one.group.exists()
    events = one.events()
    assert [event["act"] for event in events if event["event"] == "action"] == [
        "snapshot",
        "shutdown",
    ]
    assert events[-1]["reason"] == "shutdown"
    assert events[-1]["exit_code"] == 75
    assert not (job / "saw").exists()
    assert not (job / "asked").exists()
    # The deaths that we caused are no verdicts.
    verdicts = [event["verdict"] for event in events if event["event"] == "verdict"]
    assert verdicts.count("CRASHED") == 1


def test_a_job_is_restarted_until_its_budget_is_used_up(job: Path) -> None:
    (job / "policy.toml").write_text('backoff = "300ms"\n')
    options = ("--max-restarts", "1", "--policy", "policy.toml")
    with run(*arguments("restart", *options), folder=job) as one:
        assert one.finish() == 75
    assert (job / "starts").read_text() == "xx"
    events = one.events()
    starts = [event for event in events if event["event"] == "start"]
    assert [event["restart"] for event in starts] == [0, 1]
    assert starts[0]["pid"] != starts[1]["pid"]
    ordered = [event["act"] for event in events if event["event"] == "action"]
    assert ordered == ["snapshot", "restart", "snapshot", "shutdown"]
    assert events[-1]["reason"] == "no_more_restarts"
    assert events[-1]["text"] == "not restarted: all 1 restarts are used up"
    assert events[-1]["restart_count"] == 1
    pause_s = starts[1]["time"] - next(e["time"] for e in events if e.get("act") == "restart")
    assert pause_s >= 0.25


def test_restarts_stop_where_there_is_no_progress(job: Path) -> None:
    (job / "policy.toml").write_text('backoff = "100ms"\n')
    options = ("--max-restarts", "9", "--policy", "policy.toml")
    with run(*arguments("restart", *options), folder=job) as one:
        assert one.finish() == 75
    assert (job / "starts").read_text() == "xx"
    assert "no progress since the last restart" in one.events()[-1]["text"]


def test_a_job_that_a_restart_helped_ends_well(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (job / "policy.toml").write_text('backoff = "1s"\n')
    monkeypatch.setenv("REST", "4")
    with run(*arguments("restart", "--policy", "policy.toml"), folder=job) as one:
        until(lambda: list(job.glob("kcover-snapshots/2*")), "the first verdict")
        (job / "survive").touch()
        assert one.finish() == 0
    assert (job / "starts").read_text() == "xx"
    assert one.events()[-1]["reason"] == "exited"
    incidents = {event["incident"] for event in one.events() if event.get("verdict") == "CRASHED"}
    assert len(incidents) == 1


def test_ctrl_c_during_the_back_off_ends_the_run(job: Path) -> None:
    (job / "policy.toml").write_text('backoff = "1h"\nbackoff_max = "1h"\n')
    with run(*arguments("restart", "--policy", "policy.toml"), folder=job) as one:
        until(lambda: list(job.glob("kcover-snapshots/2*")), "the verdict")
        until(lambda: not one.members(), "the end of the job")
        time.sleep(0.3)
        one.send(signal.SIGINT)
        assert one.finish() == 130
    assert (job / "starts").read_text() == "x"


@pytest.fixture
def group() -> Iterator[Path]:
    path = cgroups.make_for_job("kcover-test-job", os.getpid())
    assert path is not None
    yield path
    terminate.kill_whole(CgroupTarget(path, "").pids, None, 5.0)
    until(lambda: cgroups.remove(path), "the group to be empty")


def started(job: Path, group: Path | None = None) -> subprocess.Popen[bytes]:
    def join() -> None:
        if group is not None:
            cgroups.join(group)

    (job / "hold").touch()
    process = subprocess.Popen([PYTHON, "job.py"], cwd=job, preexec_fn=join)  # noqa: PLW1509
    until(lambda: len(list(job.glob("up-*"))) == 3, "all ranks to run")
    return process


def watched(job: Path, *arguments: str, **options: Any) -> tuple[int, list[dict[str, Any]]]:
    """Watch a running job; rank 1 dies once we do."""
    command = [COMMAND, "run", "--act", "shutdown", "-o", "json", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=job, **options) as process:
        assert process.stdout is not None
        # the start, and a first verdict: who dies before that was never seen as a rank
        lines = [process.stdout.readline() for _ in range(2)]
        (job / "hold").unlink()
        lines += process.stdout.readlines()
    return process.returncode, [json.loads(line) for line in lines]


@pytest.mark.alone  # a rank is to be seen training from outside
def test_a_watched_process_tree_is_ended_and_no_other_process(job: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as bystander, started(job) as top:
        code, _ = watched(job, "--pid", str(top.pid))
        assert top.wait(10) in ENDED
        assert bystander.poll() is None
        bystander.kill()
    assert code == 75
    assert not (job / "saw").exists()


def test_a_watched_group_is_ended(job: Path, group: Path) -> None:
    with started(job, group) as top:
        code, _ = watched(job, "--cgroup", str(group))
        assert top.wait(10) in ENDED
    assert code == 75
    assert cgroups.processes(group) == set()
    assert group.exists()
    assert not (job / "saw").exists()


@pytest.mark.alone  # a rank is to be seen training from outside
def test_we_live_in_the_group_that_we_end(job: Path, group: Path) -> None:
    with started(job, group) as top:
        code, events = watched(job, "--cgroup", str(group), preexec_fn=lambda: cgroups.join(group))
        assert top.wait(10) in ENDED
    assert code == 75
    assert events[-1]["reason"] == "shutdown"
    named = {row["comm"] for event in events for row in event.get("waits", ())}
    assert "kcover-ebpf" not in named


def test_watching_ends_with_the_job(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "2"]) as top:
        ended = done("run", "--pid", str(top.pid), "-o", "json", folder=tmp_path)
    assert ended.returncode == 0
    assert json.loads(ended.stdout.splitlines()[-1])["reason"] == "gone"


@pytest.mark.parametrize("act", ["observe", "shutdown"])
def test_a_watched_job_continues_without_us(act: str, tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as top:
        watching = subprocess.Popen(
            [COMMAND, "run", "--act", act, "--pid", str(top.pid)],
            stdout=subprocess.PIPE,
            cwd=tmp_path,
        )
        assert watching.stdout is not None
        watching.stdout.readline()
        watching.terminate()
        watching.stdout.read()
        watching.stdout.close()
        assert watching.wait(10) == 143
        assert top.poll() is None
        top.kill()


def test_without_a_group_of_its_own_the_job_is_our_tree(tmp_path: Path) -> None:
    """As in a container, whose control groups are read-only."""
    hide = (
        'for each in $(findmnt -n -t cgroup2 -o TARGET); do mount -o remount,bind,ro "$each"; done'
    )
    daemon = "sh -c 'sleep 100 & echo $! > daemon' ; sleep 100"
    process = subprocess.Popen(
        [
            *("unshare", "--mount", "sh", "-c", f'{hide}; exec "$@"', "sh"),
            *(COMMAND, "run", "-o", "json", "--", "sh", "-c", daemon),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=tmp_path,
        start_new_session=True,
    )
    until(lambda: (tmp_path / "daemon").exists() and (tmp_path / "daemon").read_text(), "a daemon")
    orphan = int((tmp_path / "daemon").read_text())
    time.sleep(1.5)
    process.terminate()
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 143
    assert json.loads(out.splitlines()[0])["cgroup"] is None
    until(lambda: not is_alive(orphan), "the daemon to end")
