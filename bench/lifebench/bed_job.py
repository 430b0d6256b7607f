"""One phase as a labelled Job whose pods are its hosts, one on each node of a test bed."""

from __future__ import annotations

import json
import os
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.faultbench.job import TAG_VARIABLE, tag_value
from bench.faultbench.leftovers import tag
from bench.faultbench.live import kill_tagged
from bench.lifebench.bed_outside import Outside
from bench.lifebench.bed_watch import Watch
from bench.lifebench.job import PYTHON, lines_of, program
from bench.lifebench.needs import ROOT
from bench.lifebench.phase import Phase
from bench.lifebench.results import ENDED_CODE, Line, Row, row_of
from testbed.cluster.layout import TRAIN_IMAGE
from testbed.driver.cluster import ClusterError, Namespace

JOB = "life"
SELECTOR = f"batch.kubernetes.io/job-name={JOB}"
ARMED = {"kcover.io/cascading-recovery": "true"}
PODS = "pods.json"
"""In the phase's folder, for the program outside the job: each host's pod and its node's network namespace."""
_PORT = 29500
_POLL_S = 1.0
_INDEX = "batch.kubernetes.io/job-completion-index"
_START = """
until getent ahostsv4 "$LIFE_MASTER" >/dev/null; do sleep 0.2; done
export MASTER_ADDR=$(getent ahostsv4 "$LIFE_MASTER" | head -n 1 | cut -d ' ' -f 1)
export LIFE_HOST=$JOB_COMPLETION_INDEX
exec %s
"""
"""The name of the first pod is known a moment after it runs; ranks are given the address, as on hosts."""


def start_command(phase: Phase, command: list[str]) -> str:
    """The shell text that becomes the launcher of one pod."""
    local = phase.ranks // phase.hosts
    if phase.launcher == "loop":
        first = f"$(({local} * JOB_COMPLETION_INDEX))"
        numbers = f"--ranks {local} --first {first} --world {phase.ranks}"
        words = f"{PYTHON} -m bench.lifebench.launch {numbers} -- {' '.join(command)}"
    else:
        words = " ".join(command)
    return _START % words


def manifest(phase: Phase, command: list[str], folder: Path, variables: dict[str, str]) -> str:
    """The Service and the Job, as JSON; pods find the sources and the phase's folder at their own paths."""
    job = {
        "completionMode": "Indexed",
        "completions": phase.hosts,
        "parallelism": phase.hosts,
        "backoffLimit": 0,
        "template": {
            "metadata": {"labels": {"life": JOB, **ARMED}},
            "spec": _pod(phase, command, folder, variables),
        },
    }
    service = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"life": JOB}}
    objects = [
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": JOB}, "spec": service},
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": JOB}, "spec": job},
    ]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})


def _pod(
    phase: Phase, command: list[str], folder: Path, variables: dict[str, str]
) -> dict[str, Any]:
    mounts = [("source", ROOT, True), ("folder", folder, False)]
    container = {
        "name": "main",
        "image": TRAIN_IMAGE,
        "command": ["sh", "-c", start_command(phase, command)],
        "workingDir": str(folder / "work"),
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "resources": {"requests": {"cpu": "20m"}},
        "securityContext": {"capabilities": {"add": ["SYS_ADMIN"] * ("mount" in phase.needs)}},
        "volumeMounts": [
            {"name": name, "mountPath": str(path), "readOnly": only} for name, path, only in mounts
        ],
    }
    apart = {
        "labelSelector": {"matchLabels": {"life": JOB}},
        "topologyKey": "kubernetes.io/hostname",
    }
    return {
        "automountServiceAccountToken": False,
        "restartPolicy": "Never",
        "subdomain": JOB,
        "terminationGracePeriodSeconds": 5,
        "affinity": {
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}
        },
        "containers": [container],
        "volumes": [{"name": name, "hostPath": {"path": str(path)}} for name, path, _ in mounts],
    }


def exit_codes(pods: list[dict[str, Any]], hosts: int) -> list[int | None]:
    """The exit code of each host's container, None where it has not ended."""
    codes: list[int | None] = [None] * hosts
    for pod in pods:
        index = int(pod["metadata"]["annotations"][_INDEX])
        for status in pod["status"].get("containerStatuses") or ():
            if ended := status.get("state", {}).get("terminated"):
                codes[index] = int(ended["exitCode"])
    return codes


class BedPhase:
    """A phase in one namespace; needs root, and that the agents and the controller run."""

    def __init__(
        self,
        phase: Phase,
        phases: Path,
        folder: Path,
        space: Namespace,
        outside: Outside,
        number: int,
    ) -> None:
        self._phase, self._phases, self._folder = phase, phases, folder
        self._space, self._outside = space, outside
        self._tag, self._prefix = tag(os.getpid(), number), outside.prefix
        self._address = outside.address(number)
        self._events = folder / "events.jsonl"
        self._beside: subprocess.Popen[bytes] | None = None

    def carry_out(self, run: int, watch: Watch) -> Row:
        """From its start to its end; raises ClusterError."""
        self._events.touch()
        (self._folder / "work").mkdir()
        beside_code = None
        with ExitStack() as stack:
            stack.callback(kill_tagged, tag_value(self._tag))
            stack.callback(self._keep_logs)
            if self._phase.beside:
                self._start_beside()
            command = program(
                self._phases, self._phase.program, self._folder, self._phase.arguments
            )
            self._space.apply(manifest(self._phase, command, self._folder, self._variables()))
            codes = self._wait(watch)
            beside_code = self._beside.poll() if self._beside else None
        said = watch.said.lines(self._space.name)
        events = watch.events(self._space.name)
        (self._folder / "incidents.jsonl").write_text(
            "".join(json.dumps(line) + "\n" for line in [*said, *events])
        )
        if watch.said.has_ended(self._space.name):
            codes[0] = ENDED_CODE
        hosts: list[tuple[int | None, list[Line]]] = [(code, []) for code in codes]
        hosts[0] = codes[0], said
        return row_of(self._phase, run, lines_of(self._events), hosts, beside_code)

    def _variables(self) -> dict[str, str]:
        return {
            "LIFE_FOLDER": str(self._folder / "work"),
            "LIFE_EVENTS": str(self._events),
            "LIFE_ADDRESS": self._address,
            "LIFE_MASTER": f"{JOB}-0.{JOB}.{self._space.name}.svc.cluster.local",
            "MASTER_PORT": str(_PORT),
            "PYTHONPATH": f"{ROOT}:{self._phases}",
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "eth0",
        }

    def _start_beside(self) -> None:
        """On the machine outside; what stops ranks acts on processes of this one, which the nodes share."""
        variables = self._variables() | {
            TAG_VARIABLE: tag_value(self._tag),
            "LIFE_PODS": str(self._folder / PODS),
        }
        command = [
            *self._outside.inside(),
            *program(self._phases, self._phase.beside, self._folder),
        ]
        with (self._folder / "job.log").open("ab") as log:
            self._beside = subprocess.Popen(
                command,
                env={**os.environ, **variables},
                cwd=self._folder / "work",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _wait(self, watch: Watch) -> list[int | None]:
        """The exit code of each host, None where it had to be killed or its pod is gone."""
        until_s = time.monotonic() + self._phase.limit_s
        codes: list[int | None] = [None] * self._phase.hosts
        while time.monotonic() < until_s and None in codes:
            time.sleep(_POLL_S)
            pods = self._space.pods(SELECTOR)
            if len(pods) == self._phase.hosts and not (self._folder / PODS).exists():
                self._note(pods)
            codes = exit_codes(pods, self._phase.hosts)
            if watch.said.has_ended(self._space.name) or any(codes):
                until_s = min(until_s, time.monotonic() + 15)
        return codes

    def _note(self, pods: list[dict[str, Any]]) -> None:
        """For the program outside the job; for a moment, a pod has no node yet."""
        if not all(pod["spec"].get("nodeName") for pod in pods):
            return
        hosts = {
            int(pod["metadata"]["annotations"][_INDEX]): {
                "uid": pod["metadata"]["uid"],
                "network": f"{self._prefix}-{pod['spec']['nodeName']}",
            }
            for pod in pods
        }
        part = self._folder / f"{PODS}.part"
        part.write_text(json.dumps([hosts[host] for host in sorted(hosts)]))
        part.rename(self._folder / PODS)

    def _keep_logs(self) -> None:
        """What the pods wrote, and the job, which is then deleted."""
        try:
            options = (f"--selector={SELECTOR}", "--prefix", "--tail=200")
            text = self._space.ctl("logs", *options, timeout_s=30)
            with (self._folder / "job.log").open("a") as log:
                log.write(text)
            self._space.ctl("delete", "job", JOB, "--wait=false", "--ignore-not-found")
        except (ClusterError, subprocess.TimeoutExpired) as error:
            print(f"lifebench: {self._phase.name}: {error}"[:300], flush=True)
