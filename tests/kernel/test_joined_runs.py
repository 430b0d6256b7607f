"""One job on two hosts, each a network namespace with a host name: their runs decide together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kcover_ebpf.host import cgroups
from testbed.skips import ROOT
from testbed.workloads import network
from tests.kernel.command import COMMAND, PYTHON, own_group
from tests.waiting import until

pytestmark = [pytest.mark.needs("root", "bpf", "torch", "cgroup2"), pytest.mark.timeout(240)]
PREFIX = "kcjoin"
SECRET = "a secret of all hosts"
PROGRAM = ROOT / "testbed/cluster/train.py"
NAMED = 'hostname "$0"; exec "$@"'


@pytest.fixture
def hosts() -> Iterator[list[list[str]]]:
    """How a command is started on each of two hosts that share this machine."""
    network.remove(PREFIX)
    network.create(PREFIX, 2)
    try:
        yield [
            [
                *("nsenter", f"--net=/run/netns/{network.name(PREFIX, rank)}"),
                *("unshare", "--uts", "sh", "-c", NAMED, f"host{rank}"),
                *("env", f"RANK={rank}", "WORLD_SIZE=2", "STEP_SECONDS=0.3"),
                *("GLOO_SOCKET_IFNAME=eth0", f"MASTER_ADDR={network.address(0)}"),
            ]
            for rank in range(2)
        ]
    finally:
        network.remove(PREFIX)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(SECRET)
    path.chmod(0o600)
    return path


def started(hosts: list[list[str]], secret: Path, folder: Path, *options: str) -> list[JoinedRun]:
    """A run on each host, the coordinator's last."""
    join = ["--join", network.address(0), "--join-hosts=2", f"--join-secret={secret}"]
    runs: dict[int, JoinedRun] = {}
    for rank in (1, 0):
        own = folder / f"host{rank}"
        own.mkdir()
        command = [*options, *join, "-o", "json", "--", PYTHON, str(PROGRAM)]
        with open(own / "out", "wb") as out, open(own / "err", "wb") as err:
            runs[rank] = JoinedRun(*command, folder=own, prefix=hosts[rank], out=out, err=err)
    return [runs[0], runs[1]]


class JoinedRun:
    """A run whose output goes to files, which can be read while it runs."""

    def __init__(
        self, *arguments: str, folder: Path, prefix: list[str], out: Any, err: Any
    ) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            ["env", "--default-signal=HUP", *prefix, COMMAND, "run", *arguments],
            stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=folder, start_new_session=True,
        )  # fmt: skip
        self.pid = self.process.pid
        self.group = own_group(self.pid)

    def lines(self, event: str) -> list[dict[str, Any]]:
        found = [json.loads(text) for text in (self.folder / "out").read_text().splitlines()]
        return [line for line in found if line["event"] == event]

    def steps(self) -> int:
        return (self.folder / "err").read_text().count(" step ")

    def code(self, within_s: float) -> int:
        """Its exit code, once it has ended."""
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            texts = [(self.folder / name).read_text() for name in ("out", "err")]
            raise AssertionError("\n".join(texts)) from None

    def rank(self) -> int:
        """The process that trains."""
        return max(
            cgroups.processes(self.group),
            key=lambda pid: Path(f"/proc/{pid}/cmdline").read_bytes().count(b"train.py"),
        )


def trained(runs: list[JoinedRun], steps: int = 40) -> None:
    deadline = time.monotonic() + 120
    while min(run.steps() for run in runs) < steps:
        assert time.monotonic() < deadline, [(run.folder / "err").read_text() for run in runs]
        assert all(run.process.poll() is None for run in runs)
        time.sleep(0.3)


def faults(run: JoinedRun) -> list[dict[str, Any]]:
    return [line for line in run.lines("verdict") if line["verdict"] == "HUNG"]


def test_a_stopped_rank_of_one_host_ends_the_job_on_both(
    hosts: list[list[str]], secret: Path, tmp_path: Path
) -> None:
    runs = started(hosts, secret, tmp_path, "--act=shutdown")
    try:
        trained(runs)
        hung_s = time.time()
        os.kill(runs[1].rank(), signal.SIGSTOP)
        codes = [run.code(60) for run in runs]
    finally:
        end(runs)
    assert codes == [75, 75]
    for run in runs:
        (fault, *_) = faults(run)
        assert (fault["culprit"]["rank"], fault["culprit"]["host"]) == (1, "host1")
        assert fault["cause"] == "stopped"
        (last,) = run.lines("end")
        assert last["reason"] == "shutdown"
    after_s = [faults(run)[0]["time"] - hung_s for run in runs]
    print(json.dumps({"named_after_s": [round(value, 1) for value in after_s]}))


def test_a_job_is_restarted_on_both_hosts_at_once_and_trains_again(
    hosts: list[list[str]], secret: Path, tmp_path: Path
) -> None:
    runs = started(hosts, secret, tmp_path, "--act=restart", "--max-restarts=1")
    try:
        trained(runs)
        os.kill(runs[0].rank(), signal.SIGSTOP)
        until(lambda: all(len(run.lines("start")) == 2 for run in runs), "both are started again")
        before = [run.steps() for run in runs]
        trained(runs, max(before) + 5)
    finally:
        end(runs)


def test_a_job_that_ends_by_itself_ends_all_runs_with_its_own_code(
    hosts: list[list[str]], secret: Path, tmp_path: Path
) -> None:
    ends = [[*host, "STEPS=20"] for host in hosts]
    runs = started(ends, secret, tmp_path, "--act=shutdown")
    try:
        codes = [run.code(90) for run in runs]
    finally:
        end(runs)
    assert codes == [0, 0]
    assert [faults(run) for run in runs] == [[], []]


def test_a_run_with_another_secret_is_not_admitted(
    hosts: list[list[str]], secret: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.write_text("another secret of a guest")
    other.chmod(0o600)
    join = ["--join", network.address(0), "--join-hosts=2"]
    runs = []
    try:
        for rank, known in enumerate((secret, other)):
            own = tmp_path / f"host{rank}"
            own.mkdir()
            command = [*join, f"--join-secret={known}", "-o", "json", "--", "sleep", "60"]
            with open(own / "out", "wb") as out, open(own / "err", "wb") as err:
                made = JoinedRun(*command, folder=own, prefix=hosts[rank], out=out, err=err)
            runs.append(made)
        until(lambda: any("closed" in line["reason"] for line in runs[1].lines("blind")), "refused")
        time.sleep(2)
        verdicts = runs[0].lines("verdict")
        assert all("1 of 2 hosts have not joined" in line["unobserved"] for line in verdicts)
        assert SECRET not in (tmp_path / "host0/out").read_text()
    finally:
        end(runs)


def end(runs: list[JoinedRun]) -> None:
    for run in runs:
        if run.process.poll() is None:
            os.killpg(run.pid, signal.SIGTERM)
    for run in runs:
        run.process.wait(60)
