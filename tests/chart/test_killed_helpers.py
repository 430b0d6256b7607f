"""The processes of an agent are killed at random while jobs train, break and are replaced: no job notices.

KCOVER_CHAOS_MINUTES says for how long; on nodes with kubelets `bench/chaos/run --helpers` does the same.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from kcover_ebpf.host import procfs
from testbed.driver.control_plane import ControlPlane
from tests.chart.played_cluster import HOME, PROGRAM, installed, plane, played
from tests.chart.played_job import INCIDENTS, JOB, JOBS, NODE, PODS, PlayedJob, replaced, until
from tests.chart.release import FULLNAME, Installed, make_pod

__all__ = ["installed", "plane", "played"]
MINUTES = float(os.environ.get("KCOVER_CHAOS_MINUTES", "1"))
CALM_S, STARTED_S = 15.0, 20.0
MOST_HELPERS, MOST_DESCRIPTORS = 8, 256
pytestmark = [
    pytest.mark.needs("root", "bpf", "cgroup2"),
    pytest.mark.long,
    pytest.mark.timeout(MINUTES * 60 + 900, func_only=True),
]


class KeptAgent:
    """A real agent that is started again whenever it ends, as a kubelet does, and a thread that kills."""

    def __init__(self, plane: ControlPlane, folder: Path, chance: random.Random) -> None:
        account = f"{FULLNAME}-agent"
        token = plane.token(HOME, account, make_pod(plane, HOME, NODE, account))
        self._command = [
            *(str(PROGRAM), "agent", f"--kubeconfig={plane.kubeconfig_of('agent', token)}"),
            *(f"--namespace={HOME}", f"--node={NODE}", f"--state-dir={folder / 's'}"),
        ]
        self._log, self._chance = folder / "agent.log", chance
        self._ended, self._steady = threading.Event(), threading.Event()
        self._started_s = 0.0
        self.process = self._start()
        self.kills = {"helper": 0, "agent": 0}
        self._thread = threading.Thread(target=self._kill, daemon=True)
        self._thread.start()

    def _start(self) -> subprocess.Popen[bytes]:
        self._started_s = time.monotonic()
        with self._log.open("ab") as file:
            return subprocess.Popen(self._command, stderr=file, stdout=subprocess.DEVNULL)

    def _kill(self) -> None:
        while not self._ended.wait(self._chance.expovariate(1 / 3.0)):
            if self.process.poll() is not None:
                self.process = self._start()
            elif self._chance.random() < 0.05 and not self._steady.is_set():
                self.process.kill()
                self.process.wait()
                self.kills["agent"] += 1
                self.process = self._start()
            elif found := self.helpers():
                with suppress(ProcessLookupError):
                    os.kill(self._chance.choice(found), signal.SIGKILL)
                    self.kills["helper"] += 1

    def helpers(self) -> list[int]:
        """Its children, ended ones too."""
        with suppress(OSError):
            tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
            return [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
        return []

    @contextmanager
    def steady(self) -> Iterator[None]:
        """It has been there for a while, and stays: what happens while a node has no agent is not observed."""
        self._steady.set()
        try:
            until(lambda: time.monotonic() - self._started_s > STARTED_S, "the agent has started")
            yield
        finally:
            self._steady.clear()

    def rest(self) -> None:
        """Nothing is killed from now on."""
        self._ended.set()
        self._thread.join()

    def close(self) -> None:
        self.rest()
        self.process.terminate()
        self.process.wait(30)


@contextmanager
def kept(plane: ControlPlane, folder: Path, seed: int) -> Iterator[KeptAgent]:
    agent = KeptAgent(plane, folder, random.Random(seed))
    try:
        yield agent
    finally:
        agent.close()


def broken(played: PlayedJob) -> None:
    """A rank dies, and the job is replaced; afterwards nothing of it is left."""
    (rank,) = played.pods[min(played.pods)].pids()
    os.kill(rank, signal.SIGKILL)
    replaced(played)
    # no garbage collector runs, which would take off what another kind of deletion puts on
    played.root.ask("DELETE", f"{JOBS}/{JOB}", {"propagationPolicy": "Background"})
    for pod in played.pods.values():
        played.root.ask("DELETE", f"{PODS}/{pod.name}", {"gracePeriodSeconds": 0})
    for leader in played.leaders:
        leader.kill()
        leader.wait()
    played.pods.clear()
    name = played.incident()["metadata"]["name"]
    until(lambda: not played.reported(), "the agent takes its report away")
    played.root.ask("DELETE", f"{INCIDENTS}/{name}")
    until(lambda: not played.incident(), "the incident is gone")


def test_jobs_do_not_notice_that_the_processes_of_their_agent_are_killed(
    installed: Installed, played: PlayedJob, tmp_path: Path
) -> None:
    account = f"{FULLNAME}-controller"
    pod = make_pod(installed.plane, HOME, NODE, account)
    config = installed.plane.kubeconfig_of("controller", installed.plane.token(HOME, account, pod))
    command = [str(PROGRAM), "controller", f"--kubeconfig={config}", f"--namespace={HOME}"]
    command += [f"--lease={account}"]
    end_s, rounds = time.monotonic() + MINUTES * 60, 0
    with (
        (tmp_path / "controller.log").open("wb") as log,
        subprocess.Popen(command, stderr=log, stdout=subprocess.DEVNULL) as controller,
        kept(installed.plane, tmp_path, 7) as agent,
    ):
        try:
            while rounds == 0 or time.monotonic() < end_s:
                played.make_job()
                played.make_pods("a")
                until(lambda: len(played.reported()) == 2, "the agent reports both pods")
                calm_s = time.monotonic() + CALM_S
                while time.monotonic() < calm_s:
                    assert not played.incident(), "nothing was done to the job"
                    time.sleep(0.5)
                with agent.steady():
                    broken(played)
                rounds += 1
            agent.rest()
            time.sleep(10.0)
            states = [procfs.task_state(pid) for pid in agent.helpers()]
            assert "Z" not in states
            assert len(states) <= MOST_HELPERS
            assert len([*Path(f"/proc/{agent.process.pid}/fd").iterdir()]) <= MOST_DESCRIPTORS
            assert "T" not in [procfs.task_state(leader.pid) for leader in played.leaders]
        finally:
            print(f"{rounds} restarts of the job; killed: {agent.kills}")
            controller.terminate()
