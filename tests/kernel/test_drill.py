"""A rank that a drill stops runs again: after its time, and whatever becomes of the drill."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcover_ebpf.agent.drill import RECORD, Drill, finish_left
from kcover_ebpf.agent.drill_means import quota_file
from kcover_ebpf.api.drill import DrillEnd, DrillFault
from kcover_ebpf.errors import CannotObserve, UsageError
from kcover_ebpf.host import cgroups

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
            pytest.raises(UsageError, match="another drill is in progress"),
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


# ---- what is done to containers


@pytest.fixture
def group(pod: PodOfProcesses) -> Iterator[Path]:
    """A control group with the processes of the pod; in version 1, too, where that limits CPU time."""
    made = cgroups.make_for_job("kcover-drill-test", os.getpid())
    if made is None:
        pytest.skip("no control group of version 2 can be made")
    twin = Path("/sys/fs/cgroup/cpu") / made.relative_to(made.parent)
    groups = [made, twin] if twin.parent.exists() else [made]
    for path in groups:
        path.mkdir(exist_ok=True)
        for pid in pod.pids():
            (path / "cgroup.procs").write_text(str(pid))
    yield made
    pod.end()
    wait_until(lambda: not cgroups.processes(made))
    for path in groups:
        cgroups.remove(path)


def limit(group: Path) -> str:
    return quota_file(group).read_text().strip()


def test_a_slow_rank_gets_its_cpu_time_back(
    pod: PodOfProcesses, group: Path, tmp_path: Path
) -> None:
    before = limit(group)
    with Drill(pod.pids, tmp_path, 1.0, lambda: [group]) as drill:
        drill.inject(DrillFault.SLOW)
        quota_us = int(limit(group).split()[0])
        assert 1_000 <= quota_us <= 50_000, "a third of what a loop uses, of 100,000 us"
        assert drill.wait().end is DrillEnd.RESUMED
        assert limit(group) == before
    assert not (tmp_path / RECORD).exists()


def slowing(pod: PodOfProcesses, group: Path, folder: Path) -> int:
    pids = pod.pids()
    before = limit(group)
    pid = os.fork()
    if pid == 0:
        try:
            with Drill(lambda: pids, folder, 100.0, lambda: [group]) as drill:
                drill.inject(DrillFault.SLOW)
                while True:
                    signal.pause()
        finally:
            os._exit(1)
    wait_until(lambda: limit(group) != before)
    return pid


def test_a_slow_rank_gets_its_cpu_time_back_when_the_drill_is_killed(
    pod: PodOfProcesses, group: Path, tmp_path: Path
) -> None:
    before = limit(group)
    ended(slowing(pod, group, tmp_path))
    wait_until(lambda: limit(group) == before)
    assert finish_left(tmp_path) is None


def test_the_next_agent_gives_cpu_time_back_when_the_whole_container_was_killed(
    pod: PodOfProcesses, group: Path, tmp_path: Path
) -> None:
    before, pid = limit(group), slowing(pod, group, tmp_path)
    for child in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        os.kill(child, signal.SIGKILL)
    ended(pid)
    assert limit(group) != before
    assert finish_left(tmp_path) == pod.rank.pid
    assert limit(group) == before
    assert finish_left(tmp_path) is None


_ECHO = """
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("10.251.7.2", 4711))
while True:
    s.sendto(*s.recvfrom(100))
"""
_ASK = """
import os, socket, sys
open(sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
def asked(address):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(0.3)
    try:
        s.sendto(b"x", address)
        return s.recvfrom(100)[0] == b"x"
    except OSError:
        return False
own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
own.bind(("127.0.0.1", 4712))
def within():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.sendto(b"x", ("127.0.0.1", 4712))
    own.settimeout(0.3)
    try:
        return own.recvfrom(100)[0] == b"x"
    except OSError:
        return False
for line in sys.stdin:
    print(asked(("10.251.7.2", 4711)), within(), flush=True)
"""


@pytest.fixture
def far() -> Iterator[None]:
    """A server beyond a link, in another network namespace."""
    ip, name = "ip", f"kdrill{os.getpid()}"
    commands = [
        [ip, "netns", "add", name],
        [ip, "link", "add", "kdrill0", "type", "veth", "peer", "name", "kdrill1", "netns", name],
        [ip, "addr", "add", "10.251.7.1/30", "dev", "kdrill0"],
        [ip, "link", "set", "kdrill0", "up"],
        [ip, "-n", name, "addr", "add", "10.251.7.2/30", "dev", "kdrill1"],
        [ip, "-n", name, "link", "set", "kdrill1", "up"],
    ]
    try:
        for command in commands:
            subprocess.run(command, check=True, capture_output=True)
        with subprocess.Popen([ip, "netns", "exec", name, sys.executable, "-c", _ECHO]) as server:
            yield
            server.kill()
    finally:
        subprocess.run([ip, "netns", "del", name], check=False, capture_output=True)


@pytest.mark.needs("bpf")
@pytest.mark.usefixtures("far")
def test_a_partition_drops_what_leaves_the_pod_and_ends_with_the_drill(
    pod: PodOfProcesses, group: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", _ASK, str(group)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as client:
        assert client.stdin is not None
        assert client.stdout is not None

        def answers() -> str:
            assert client.stdin is not None
            assert client.stdout is not None
            print(file=client.stdin, flush=True)
            assert select.select([client.stdout], [], [], 5.0)[0]
            return client.stdout.readline().strip()

        wait_until(lambda: answers() == "True True")
        with Drill(pod.pids, tmp_path, 1.0, lambda: [group]) as drill:
            drill.inject(DrillFault.PARTITION)
            assert answers() == "False True", "the pod still reaches itself"
            assert drill.wait().end is DrillEnd.RESUMED
            assert answers() == "True True"
        pid = os.fork()
        if pid == 0:
            try:
                with Drill(lambda: {1}, tmp_path, 100.0, lambda: [group]) as drill:
                    drill.inject(DrillFault.PARTITION)
                    while True:
                        signal.pause()
            finally:
                os._exit(1)
        wait_until(lambda: answers() == "False True")
        ended(pid)
        wait_until(lambda: answers() == "True True")
        client.kill()


# ---- what is said in a log


def test_the_line_of_an_error_is_written_to_the_log_of_the_rank_before_it_is_killed(
    tmp_path: Path,
) -> None:
    with subprocess.Popen([sys.executable, "-c", _REST], stderr=subprocess.PIPE) as rank:
        assert rank.stderr is not None
        with Drill(lambda: {rank.pid}, tmp_path, 60.0) as drill:
            drill.inject(DrillFault.LOG)
            assert drill.wait().end is DrillEnd.GONE
        assert rank.wait() == -signal.SIGKILL
        assert b"uncorrectable ECC error encountered (printed by a drill" in rank.stderr.read()


def test_a_log_that_may_not_be_written_is_not_opened_anew(tmp_path: Path) -> None:
    file = tmp_path / "mine"
    file.write_text("kept")
    with (
        file.open() as readable,
        subprocess.Popen([sys.executable, "-c", _REST], stderr=readable) as rank,
    ):
        with (
            Drill(lambda: {rank.pid}, tmp_path, 60.0) as drill,
            pytest.raises(CannotObserve, match="cannot be written"),
        ):
            drill.inject(DrillFault.LOG)
        assert rank.poll() is None, "nothing was done to it"
        rank.kill()
    assert file.read_text() == "kept"
