"""Pods as an agent meets them: groups laid out as a kubelet does, with real process trees in them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kcover_ebpf.host import cgroups
from kcover_ebpf.kube.reflector import Change, Event

from .helpers import state_of

NODE = "node1"
LABEL = "training.kubeflow.org/job-name"
_TREE = """
import os, sys, time
if os.fork() == 0:
    if os.fork() == 0:
        print("up", flush=True) # the last of the three
    while True: time.sleep(0.01)
while True: time.sleep(0.01)
"""


@dataclass
class FakePod:
    """A pod whose containers are groups of this host; its API object says what a test wants."""

    root: Path
    name: str
    job: str = "train"
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    deleting: bool = False
    created: str = "2026-01-01T00:00:00Z"
    node: str = NODE
    containers: dict[str, Path] = field(default_factory=dict)
    leaders: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def path(self) -> Path:
        return self.root / "kubepods/burstable" / f"pod{self.uid}"

    def add(self, name: str, *, known: bool = True, program: str = _TREE, argv0: str = "") -> Path:
        """Start a container: three processes, the first of them PID 1 of its own pid namespace."""
        number = uuid.uuid4().hex * 2
        path = self.path / number
        path.mkdir(parents=True)
        command = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", program]
        process = subprocess.Popen(
            [argv0, *command[1:]] if argv0 else command,
            executable=command[0] if argv0 else None,
            stdout=subprocess.PIPE,
            preexec_fn=lambda: cgroups.join(path),  # noqa: PLW1509 - no threads here
        )
        self.leaders.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        # what runs outside the namespace is the runtime's shim, which is in no container
        (path.parent.parent / "cgroup.procs").write_text(str(process.pid))
        if known:
            self.containers[name] = path
        return path

    def api(self) -> dict[str, object]:
        metadata: dict[str, object] = {
            "name": self.name,
            "namespace": "team",
            "uid": self.uid,
            "labels": {LABEL: self.job},
            "creationTimestamp": self.created,
        }
        if self.deleting:
            metadata["deletionTimestamp"] = "2026-01-01T00:00:30Z"
        return {
            "metadata": metadata,
            "spec": {"nodeName": self.node, "containers": [{"name": n} for n in self.containers]},
            "status": {
                "phase": "Running",
                "containerStatuses": [
                    {"name": name, "containerID": f"containerd://{path.name}"}
                    for name, path in self.containers.items()
                ],
            },
        }

    def event(self) -> Event:
        return Event(Change.SET, dict(self.api()))

    def pids(self) -> set[int]:
        return cgroups.processes(self.path)

    def states(self) -> str:
        """One letter for each process, sorted."""
        return "".join(sorted(state for state in map(state_of, self.pids()) if state != "X"))


@contextlib.contextmanager
def kubelet_root() -> Iterator[Path]:
    """A v2 group apart, for pods below it."""
    top = cgroups.make_for_job("kcover-pods", os.getpid())
    assert top is not None, "the test needs a writable cgroup v2"
    root = top / uuid.uuid4().hex[:8]
    root.mkdir()
    try:
        yield root
    finally:
        deadline = time.monotonic() + 10
        while (left := cgroups.processes(top)) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        cgroups.remove(top)
