"""A rank that a drill stops runs again: after its time, and whatever becomes of the drill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcover_ebpf.agent.drill import RECORD, Drill, finish_left
from kcover_ebpf.api.drill import DrillEnd, DrillFault
from kcover_ebpf.errors import UsageError

from .helpers import state_of
from .order_bench import wait_until

pytestmark = pytest.mark.needs("root")
_BURN = "while True: pass"
_REST = "import time; time.sleep(600)"


class PodOfProcesses:
    """A rank that computes a little, and a helper that computes more."""

    def __init__(self) -> None:
        helper = subprocess.Popen([sys.executable, "-c", _BURN])
        self.rank = subprocess.Popen([sys.executable, "-c", _REST], env=os.environ | {"RANK": "3"})
        self.processes = [helper, self.rank]

    def pids(self) -> set[int]:
        return {process.pid for process in self.processes if process.poll() is None}

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def pod() -> Iterator[PodOfProcesses]:
    made = PodOfProcesses()
    wait_until(lambda: b"RANK" in Path(f"/proc/{made.rank.pid}/environ").read_bytes())
    yield made
    made.end()


def is_stopped(pod: PodOfProcesses) -> bool:
    return state_of(pod.rank.pid) == "T"


def drilling(pod: PodOfProcesses, folder: Path) -> int:
    """A process that stops the rank, and then does nothing more."""
    # they are no children of the fork
    pids = pod.pids()
    pid = os.fork()
    if pid == 0:
        try:
            with Drill(lambda: pids, folder, 100.0) as drill:
                drill.inject(DrillFault.STOP)
                while True:
                    signal.pause()
        finally:
            os._exit(1)
    wait_until(lambda: is_stopped(pod))
    return pid


def ended(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_the_rank_is_stopped_and_runs_again_after_its_time(
    pod: PodOfProcesses, tmp_path: Path
) -> None:
    with Drill(pod.pids, tmp_path, 1.0) as drill:
        injected = drill.inject(DrillFault.STOP)
        wait_until(lambda: is_stopped(pod))
        assert (injected.pid, injected.rank) == (pod.rank.pid, 3), "the helper has used more CPU"
        assert (tmp_path / RECORD).exists()
        with (
            Drill(pod.pids, tmp_path, 1.0) as second,
            pytest.raises(UsageError, match="under way"),
        ):
            second.inject(DrillFault.STOP)
        assert is_stopped(pod), "another drill that is refused takes nothing back"
        over = drill.wait()
    assert over.end is DrillEnd.RESUMED
    assert over.time_s - injected.time_s >= 1.0
    wait_until(lambda: not is_stopped(pod))
    assert not (tmp_path / RECORD).exists()


def test_a_rank_that_is_killed_is_gone(pod: PodOfProcesses, tmp_path: Path) -> None:
    with Drill(pod.pids, tmp_path, 60.0) as drill:
        assert drill.inject(DrillFault.KILL).rank == 3
        assert drill.wait().end is DrillEnd.GONE
    assert pod.rank.wait() == -signal.SIGKILL


def test_a_restart_of_the_job_ends_the_drill(pod: PodOfProcesses, tmp_path: Path) -> None:
    with Drill(pod.pids, tmp_path, 60.0) as drill:
        drill.inject(DrillFault.STOP)
        pod.rank.kill()
        assert drill.wait().end is DrillEnd.GONE
    assert not (tmp_path / RECORD).exists()


def test_the_rank_runs_again_when_the_drill_is_killed(pod: PodOfProcesses, tmp_path: Path) -> None:
    ended(drilling(pod, tmp_path))
    wait_until(lambda: not is_stopped(pod))
    assert finish_left(tmp_path) is None, "it was let go of already"
    assert not (tmp_path / RECORD).exists()


def test_the_next_agent_lets_go_of_the_rank_when_the_whole_container_was_killed(
    pod: PodOfProcesses, tmp_path: Path
) -> None:
    pid = drilling(pod, tmp_path)
    (resumer,) = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    os.kill(resumer, signal.SIGKILL)
    ended(pid)
    time.sleep(0.3)
    assert is_stopped(pod)
    assert finish_left(tmp_path) == pod.rank.pid
    wait_until(lambda: not is_stopped(pod))
    assert finish_left(tmp_path) is None


def test_a_pod_without_a_process_is_refused(tmp_path: Path) -> None:
    with Drill(set, tmp_path, 1.0) as drill, pytest.raises(UsageError, match="no process runs"):
        drill.inject(DrillFault.STOP)
