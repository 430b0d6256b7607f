"""A controller under test, and what a restart of a job of each kind looks like from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kcover_ebpf.recovery.restart.methods import KindMethod, at, restarts
from testbed.driver.cluster import ClusterError, Namespace, home, until
from testbed.driver.fake_agent import FakeAgent, is_first, processes

POLICY = """
apiVersion: kcover.io/v1alpha1
kind: FaultPolicy
metadata: {name: p}
spec: %s
"""
IN_PLACE_RULE = [
    {"action": "RestartAllContainers", "exitCodes": {"operator": "NotIn", "values": [0]}}
]


class Program:
    """`kcover-ebpf controller` for some namespaces; its Lease is named after the first one."""

    def __init__(
        self,
        namespaces: Sequence[Namespace],
        log: Path,
        kubeconfig: Path | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self._names, self._log = [namespace.name for namespace in namespaces], log
        self._options = options
        self._home = home(namespaces[0].cluster)
        self._kubeconfig = kubeconfig or namespaces[0].cluster.kubeconfig
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, lease: str = "controller") -> None:
        """Run it."""
        program = str(Path(sys.executable).with_name("kcover-ebpf"))
        command = [program, "controller", "--breaker-jobs", "100"]
        command += ["--max-restarts=100", "--min-backoff=0s", "--namespace-percent=100"]
        command += ["--kubeconfig", str(self._kubeconfig), "--namespace", self._home]
        command += [f"--lease={self._names[0]}-{lease}"]
        command += [f"--only={name}" for name in self._names]
        command += self._options
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def end(self, number: int = signal.SIGTERM) -> None:
        """End it as the kubelet would, or by another signal."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(20)
            self._process = None

    @property
    def log(self) -> str:
        """What it said."""
        return self._log.read_text() if self._log.exists() else ""


@contextmanager
def running(
    namespace: Namespace,
    log: Path,
    kubeconfig: Path | None = None,
    others: Sequence[Namespace] = (),
    options: Sequence[str] = (),
) -> Iterator[Program]:
    """A controller that runs for as long as the block."""
    program = Program([namespace, *others], log, kubeconfig, options)
    program.start()
    try:
        yield program
    except Exception as error:
        error.add_note(f"the controller:\n{program.log}")
        raise
    finally:
        program.end()


def policy(namespace: Namespace, **spec: object) -> None:
    """The FaultPolicy of a namespace; without a pause between restarts unless others are named."""
    values: dict[str, object] = {"restarts": {"max": 50, "backoffSeconds": 0}} | spec
    namespace.apply(POLICY % json.dumps(values))


def incidents(namespace: Namespace) -> list[dict[str, Any]]:
    """Incidents, oldest first."""
    found = namespace.items("incidents")
    return sorted(found, key=lambda entry: entry["metadata"]["creationTimestamp"])


def wait_for_phase(
    namespace: Namespace, phases: tuple[str, ...], count: int = 1, timeout_s: float = 150.0
) -> dict[str, Any]:
    """The incident that is the `count`th and in one of these phases."""
    deadline = time.monotonic() + timeout_s
    found: list[dict[str, Any]] = []
    while time.monotonic() < deadline:
        found = incidents(namespace)
        if len(found) >= count:
            last = found[count - 1]
            if last.get("status", {}).get("phase") in phases:
                return last
        time.sleep(0.2)
    said = [json.dumps(entry.get("status", {}).get("timeline"), indent=1) for entry in found]
    raise ClusterError(f"no incident came to {phases} in {timeout_s:.0f} s: {said}")


def until_reported(namespace: Namespace, words: str) -> dict[str, Any]:
    """The incident, once its timeline says so."""

    def shown() -> dict[str, Any] | None:
        for incident in incidents(namespace):
            reported = [
                line.get("text", "") for line in incident.get("status", {}).get("timeline", ())
            ]
            if any(words in text for text in reported):
                return incident
        return None

    return until(shown, f"an Incident shows {words!r}")


def ways(incident: Mapping[str, Any]) -> list[str]:
    """How the job was really restarted, in order."""
    return [restart["way"] for restart in incident["status"].get("restarts", ())]


def moment(incident: Mapping[str, Any], phase: str) -> float:
    """When a phase was entered first; unix seconds."""
    from kcover_ebpf.api.rfc3339 import from_text

    lines = incident["status"]["timeline"]
    return from_text(next(line["time"] for line in lines if line["phase"] == phase))


def counters(namespace: Namespace, method: KindMethod, name: str) -> dict[str, object]:
    """What a restart must not move, as it is on the object."""
    raw = namespace.get(f"{method.plural}.{method.group}" if method.group else method.plural, name)[
        0
    ]
    return {".".join(keys): at(raw, keys) for keys in method.counters}


def row_of(api_version: str, kind: str) -> KindMethod:
    """The row of the table; it must be there."""
    found = restarts().find(api_version, kind)
    assert found is not None
    return found


def hang(pod: Mapping[str, Any]) -> None:
    """Stop the rank of a pod by SIGSTOP, as a hang that answers to nothing."""
    first = [pid for pid in processes(pod["metadata"]["uid"]) if is_first(pid)]
    assert first, "no process of this pod is on this host"
    for pid in first:
        os.kill(pid, signal.SIGSTOP)


def stopped(pods: list[dict[str, Any]]) -> list[int]:
    """Processes of pods that are stopped."""
    found = []
    for pod in pods:
        for pid in processes(pod["metadata"]["uid"]):
            try:
                state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
            except OSError:
                continue
            if state == "T":
                found.append(pid)
    return found


def recover(namespace: Namespace, fake: FakeAgent, count: int = 1) -> dict[str, Any]:
    """Wait until all pods are back, then let the agents report progress."""
    last = ("Recovering", "Recovered", "Failed", "Refused", "Observed")
    found = wait_for_phase(namespace, last, count)
    assert found["status"]["phase"] in ("Recovering", "Recovered"), found["status"]["message"]
    fake.fault = None
    return wait_for_phase(namespace, ("Recovered",), count)
