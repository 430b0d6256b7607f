"""Jobs of a real Slurm: ended as a whole by a fault of one rank, and queued again, by the scripts in docs/examples."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from testbed.skips import ROOT
from tests.kernel import slurm
from tests.kernel.command import COMMAND, PYTHON

pytestmark = [
    pytest.mark.needs("root", "bpf", "torch", "cgroup2", "slurm"),
    pytest.mark.timeout(300),
    pytest.mark.long,
]
EXAMPLES = ROOT / "docs/examples"
PATIENCE_S = 120.0
TRAIN = f"""#!/bin/sh
export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS STEP_SECONDS=0.3 GLOO_SOCKET_IFNAME=eth0
export RESUME_FOLDER=$PWD/resume
exec {PYTHON} {ROOT}/testbed/cluster/train.py
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the job runs."""
    (tmp_path / "resume").mkdir()
    program = tmp_path / "train.sh"
    program.write_text(TRAIN)
    program.chmod(0o755)
    secret = tmp_path / "join.secret"
    secret.write_text("a secret of all hosts")
    secret.chmod(0o600)
    return tmp_path


def _environ(folder: Path) -> dict[str, str]:
    path = f"{Path(COMMAND).parent}:{os.environ['PATH']}"
    return {"HOME": str(folder), "PATH": path, "MASTER_ADDR": "10.77.0.1"}


def _until(reached: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.2)


def _step(folder: Path) -> int:
    try:
        return int((folder / "resume/step").read_text())
    except (OSError, ValueError):
        return 0


def _rank(number: int) -> int:
    """The process of a rank: only those of this test have both variables."""
    wanted = {f"SLURM_PROCID={number}".encode(), b"SLURM_CLUSTER_NAME=kcover"}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            environ = set((path / "environ").read_bytes().split(b"\0"))
            words = (path / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if wanted <= environ and words[1:2] == [f"{ROOT}/testbed/cluster/train.py".encode()]:
            return int(path.name)
    raise AssertionError(f"rank {number} is not running")


def _hang_and_return(jobs: slurm.Slurm, job: int, folder: Path) -> int:
    """How far the job is, in steps since it hung, when it trains again."""
    _until(lambda: _step(folder) >= 40, "forty steps")
    hung_s = time.time()
    os.kill(_rank(1), signal.SIGSTOP)
    _until(lambda: jobs.field(job, "Restarts") == "1", "the job is queued again")
    queued_s, before = time.time() - hung_s, _step(folder)
    _until(lambda: _step(folder) > before, "it trains again")
    ahead = _step(folder) - before
    taken = {"queued_s": round(queued_s, 1), "trains_s": round(time.time() - hung_s, 1)}
    print(json.dumps(taken))
    return ahead


def test_a_job_of_two_hosts_is_queued_again_by_its_batch_script(folder: Path) -> None:
    with slurm.running(folder) as jobs:
        job = jobs.submit(
            f"--chdir={folder}", str(EXAMPLES / "slurm-job.sh"), environ=_environ(folder)
        )
        assert _hang_and_return(jobs, job, folder) <= 3, "it continues at the step before"
        assert jobs.field(job, "JobState") == "RUNNING"
        jobs.cancel(job)
        _until(lambda: jobs.field(job, "JobState") == "CANCELLED", "it ends")


def test_a_job_is_queued_again_by_what_the_prolog_started(folder: Path) -> None:
    prolog = folder / "prolog.sh"
    settings = {"KCOVER_LOGS": str(folder), "SLURM_CONF": str(folder / "slurm.conf")}
    lines = [f"export {name}={value}" for name, value in settings.items()]
    lines.append(f"export PATH={Path(COMMAND).parent}:$PATH")
    prolog.write_text("\n".join(["#!/bin/sh", *lines, f"exec {EXAMPLES}/slurm-prolog.sh", ""]))
    prolog.chmod(0o755)
    with slurm.running(folder, f"Prolog={prolog}\nPrologFlags=Alloc") as jobs:
        words = [f"--chdir={folder}", "--nodes=1", "--ntasks=2", "--requeue"]
        job = jobs.submit(*words, "--wrap=srun ./train.sh", environ=_environ(folder))
        assert _hang_and_return(jobs, job, folder) <= 3, "it continues at the step before"
        assert jobs.field(job, "JobState") == "RUNNING"
        jobs.cancel(job)
        _until(lambda: jobs.field(job, "JobState") == "CANCELLED", "it ends")
