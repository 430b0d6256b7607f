"""What is done to our parts and to what they need; each is taken back by the function that it returns."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.chaos import clocks, helpers
from bench.chaos.plan import Act, Kind
from testbed.cluster import state
from testbed.cluster.layout import Bed
from testbed.cluster.processes import Process
from testbed.driver import nodes
from testbed.driver.cluster import Cluster, ClusterError, Namespace
from testbed.driver.fake_agent import processes
from testbed.driver.installed import NAMESPACE

STATE = "/var/lib/kcover-ebpf"
NOISE = "noise"
Undo = Callable[[], None]
_FORKS = """
import os, time
end = time.monotonic() + %f
while time.monotonic() < end:
    for _ in range(100):
        if os.fork() == 0:
            os._exit(0)
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
"""
_KILLED = {Kind.KILL_AGENT: "agent", Kind.KILL_CONTROLLER: "controller"}
_DELETED = {Kind.DELETE_INCIDENTS: "incidents", Kind.DELETE_REPORTS: "faultreports"}
_FLOOD_PERIOD_S = 0.01
_LINES = 20


def nothing() -> None:
    """It is over by itself."""


@dataclass(frozen=True)
class Disturber:
    """Carries out everything of a plan but the faults."""

    cluster: Cluster
    bed: Bed
    nodes: list[str]
    jobs: list[Namespace]
    noise: Namespace
    """Has its own pod on each node, by the name NOISE-NODE."""

    def carry_out(self, act: Act) -> Undo:
        """Begin; the caller calls the result after `act.seconds`."""
        node = self.nodes[act.target % len(self.nodes)]
        if act.kind in _KILLED:
            return self._kill(_KILLED[act.kind], act.target)
        if act.kind in _DELETED:
            return self._delete(_DELETED[act.kind], act.target)
        match act.kind:
            case Kind.KILL_HELPER:
                return self._kill_helper(act.target)
            case Kind.FILL_DISK:
                return self._fill(node)
            case Kind.CUT_API:
                return self._cut(act.seconds)
            case Kind.DROP_RECORDS:
                return self._fork(node, act.seconds)
            case Kind.FLOOD_LOG:
                return self._print(act.seconds)
            case Kind.RESTART_CONTAINERD:
                return self._restart(f"{node}-containerd")
            case Kind.MOVE_CLOCK:
                return clocks.moved(self.cluster, node, forward=bool(act.target % 4 // 2))
        raise ValueError(act.kind)

    def _kill(self, component: str, number: int) -> Undo:
        label = f"--selector=app.kubernetes.io/component={component}"
        pods = self.cluster.get("pods", f"--namespace={NAMESPACE}", label)
        # agents share the host's process numbers, so that none of theirs is the first of its container
        ours = [
            (pid, pod["metadata"]["name"])
            for pod in pods
            for pid in processes(pod["metadata"]["uid"])
            if Path(f"/proc/{pid}/comm").read_text() == "kcover-ebpf\n"
        ]
        if not ours:
            raise ClusterError(f"no {component} runs")
        pid, pod = ours[number % len(ours)]
        os.kill(pid, signal.SIGKILL)
        # a new pod: the kubelet would let the old one wait, after a few kills for five minutes
        self.cluster.ctl(
            f"--namespace={NAMESPACE}", "delete", "pod", pod, "--wait=false", "--grace-period=1"
        )
        return nothing

    def _kill_helper(self, number: int) -> Undo:
        found = helpers.of_agents(self.cluster)
        if not found:
            raise ClusterError("no agent has started a process")
        pid, _ = found[number % len(found)]
        os.kill(pid, signal.SIGKILL)
        return nothing

    def _fill(self, node: str) -> Undo:
        file = f"{STATE}/ballast"
        with contextlib.suppress(ClusterError):  # it ends with "no space left"
            nodes.inside(self.cluster, node, "dd", "if=/dev/zero", f"of={file}", "bs=4k")

        def undo() -> None:
            nodes.inside(self.cluster, node, "rm", "-f", file)

        return undo

    def _part(self, name: str) -> Process:
        running = state.load(self.bed)
        assert running is not None
        return running.processes[name]

    def _cut(self, seconds: float) -> Undo:
        """A timer ends it, because code that waits for an answer of the server would never reach the end."""
        pid = self._part("kube-apiserver").pid
        os.kill(pid, signal.SIGSTOP)
        timer = threading.Timer(seconds, os.kill, (pid, signal.SIGCONT))
        timer.start()
        return timer.join

    def _restart(self, name: str) -> Undo:
        os.kill(self._part(name).pid, signal.SIGKILL)
        subprocess.run(
            self.cluster.testbed("up", "--controllers", "none"),
            capture_output=True,
            check=False,
        )
        return nothing

    def _fork(self, node: str, seconds: float) -> Undo:
        command = [
            str(self.cluster.kubectl), f"--kubeconfig={self.cluster.kubeconfig}",
            f"--namespace={self.noise.name}", "exec", f"{NOISE}-{node}", "--",
            "python3", "-S", "-c", _FORKS % seconds,
        ]  # fmt: skip
        flood = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def undo() -> None:
            flood.kill()
            flood.wait()

        return undo

    def _print(self, seconds: float) -> Undo:
        def flood() -> None:
            end = time.monotonic() + seconds
            with open("/dev/kmsg", "w") as log:
                while time.monotonic() < end:
                    for number in range(_LINES):
                        log.write(f"<4>nvidia: NVRM: line {number} of a flood\n")
                        log.flush()
                    time.sleep(_FLOOD_PERIOD_S)

        thread = threading.Thread(target=flood, daemon=True)
        thread.start()
        return thread.join

    def _delete(self, plural: str, number: int) -> Undo:
        space = self.jobs[number % len(self.jobs)]
        space.cluster.run(
            f"--namespace={space.name}", "delete", plural, "--all", "--wait=false", timeout_s=30
        )
        return nothing
