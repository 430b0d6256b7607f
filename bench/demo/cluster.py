"""From nothing to a restarted job on a real Kubernetes: `make demo-cluster`.

Builds the test bed, the image and the chart's release, trains a PyTorchJob of four pods on two nodes, stops one
rank with SIGSTOP, and prints what the Incident says until the job trains again: first restarted in place, then
with its pods replaced. Exit code 0 if both rounds named the right pod and the job trained again, 1 if not, 2 if the
demo could not be carried out.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BED = ROOT / ".testbed"
RELEASE, SYSTEM, NAMESPACE, JOB = "kcover-ebpf", "kcover-system", "kcover-demo", "demo"
PODS = f"training.kubeflow.org/job-name={JOB}"
VICTIM = f"{JOB}-worker-1"
REPLACE = """
apiVersion: kcover.io/v1alpha1
kind: FaultPolicy
metadata: {name: replace}
spec: {ways: [Replace], restarts: {backoffSeconds: 0}}
"""
PATIENCE_S = 240.0
OVER = ("Recovered", "Failed", "Refused", "Observed")


class DemoFailed(Exception):
    """The demo could not continue; the text says why."""


def say(text: str) -> None:
    """A line of the demo itself, with the time of day."""
    print(f"\n=== {time.strftime('%H:%M:%S')} {text}", flush=True)


def step(*command: str | Path) -> None:
    """Run a command with its output shown; raises `DemoFailed`."""
    environ = {**os.environ, "KUBECONFIG": str(BED / "kubeconfig")}
    if subprocess.run(command, cwd=ROOT, env=environ, check=False).returncode != 0:
        raise DemoFailed(f"failed: {' '.join(map(str, command))}")


def kubectl(*arguments: str) -> list[str]:
    """A command line for the demo's namespace."""
    program, config = BED / "bin/kubectl", BED / "kubeconfig"
    return [str(program), f"--kubeconfig={config}", f"--namespace={NAMESPACE}", *arguments]


def ctl(*arguments: str, stdin: str | None = None) -> str:
    """What kubectl prints; raises `DemoFailed`."""
    done = subprocess.run(
        kubectl(*arguments), input=stdin, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise DemoFailed(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def items(*arguments: str) -> list[dict[str, Any]]:
    """The objects that `kubectl get` finds."""
    found: list[dict[str, Any]] = json.loads(ctl("get", *arguments, "--output=json"))["items"]
    return found


def wait_until(what: str, done: Callable[[], bool]) -> None:
    """Ask twice a second; raises `DemoFailed` when it does not happen in time."""
    end = time.monotonic() + PATIENCE_S
    while not done():
        if time.monotonic() > end:
            raise DemoFailed(f"{what} did not happen within {PATIENCE_S:.0f} s")
        time.sleep(0.5)


def last_step(pod: str) -> int:
    """The step that a pod's log shows last; 0 if none."""
    words = ctl("logs", pod, "--tail=1", "--all-containers").split()
    return int(words[-1]) if words[-2:-1] == ["step"] else 0


def trains(beyond: int = 5) -> bool:
    """True when all four pods run and each has made the given number of steps since its start."""
    pods = items("pods", f"--selector={PODS}")
    ready = [pod for pod in pods if pod["status"]["phase"] == "Running"]
    if len(ready) != 4 or any("deletionTimestamp" in pod["metadata"] for pod in pods):
        return False
    return all(last_step(pod["metadata"]["name"]) >= beyond for pod in ready)


def rank_pid(pod: str) -> int:
    """The pid, on this host, of the first process in a pod: nodes of the test bed share the host's kernel."""
    uid = json.loads(ctl("get", "pod", pod, "--output=json"))["metadata"]["uid"]
    for folder in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        try:
            inside = uid in (folder / "cgroup").read_text()
            program = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if inside and b"train.py" in program:
            return int(folder.name)
    raise DemoFailed(f"no process of pod {pod} on this host")


def set_up() -> None:
    """Test bed, image, release; each is left alone where it is there already."""
    say("a Kubernetes of two nodes (the first time it is built: about 15 minutes)")
    step("tools/testbed", "up")
    say("the image, from this checkout")
    step("tools/image", "build")
    step("tools/testbed", "load", "build/image/kcover-ebpf.tar")
    say("helm install")
    chart = str(ROOT / "charts/kcover-ebpf")
    release = ["--install", RELEASE, chart, f"--namespace={SYSTEM}", "--create-namespace"]
    step(BED / "bin/helm", "upgrade", *release, "--wait", "--timeout=3m")


def start_job() -> None:
    """A PyTorchJob of four pods that trains, in a namespace of the demo's own."""
    clean_up()
    ctl("create", "namespace", NAMESPACE)
    ctl("create", "configmap", "train", f"--from-file={ROOT / 'testbed/cluster/train.py'}")
    say(
        "a PyTorchJob: 1 master, 3 workers, torch + gloo, armed by kcover.io/cascading-recovery=true"
    )
    ctl("apply", f"--filename={ROOT / 'testbed/driver/jobs/pytorchjob.yaml'}")
    wait_until("the training", trains)
    print(ctl("get", "pods", "--output=wide"))


def clean_up() -> None:
    """The demo's namespace of an earlier run goes; test bed and release stay."""
    ctl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait")


def hurt_and_watch(title: str) -> bool:
    """Stop one rank and report on its Incident; True if it was named and the job trains again."""
    known = {item["metadata"]["uid"] for item in items("incidents.kcover.io")}
    pid = rank_pid(VICTIM)
    os.kill(pid, signal.SIGSTOP)
    began = time.time()
    say(f"{title}: rank in pod {VICTIM} (pid {pid}) gets SIGSTOP")
    reported: list[str] = []

    def is_over() -> bool:
        fresh = [
            item for item in items("incidents.kcover.io") if item["metadata"]["uid"] not in known
        ]
        if not fresh:
            return False
        status = fresh[0].get("status", {})
        for entry in status.get("timeline", [])[len(reported) :]:
            reported.append(entry["phase"])
            text = entry.get("text", "")
            print(f"  +{time.time() - began:5.1f} s  {entry['phase']:<13} {text}", flush=True)
        return status.get("phase") in OVER

    wait_until("the end of the incident", is_over)
    wait_until("the training", trains)
    say(f"all four ranks train again, {time.time() - began:.1f} s after the fault")
    print(ctl("get", "incidents", "--sort-by=.metadata.creationTimestamp"))
    (incident,) = [
        item for item in items("incidents.kcover.io") if item["metadata"]["uid"] not in known
    ]
    culprit = incident["status"].get("culprit", {}).get("pod")
    return bool(culprit == VICTIM and incident["status"]["phase"] == "Recovered")


def main() -> int:
    """Both rounds."""
    if os.geteuid() != 0:
        print("demo: run `make demo-cluster` as root", file=sys.stderr)
        return 2
    try:
        set_up()
        start_job()
        in_place = hurt_and_watch("in place")
        ctl("apply", "--filename=-", stdin=REPLACE)
        replaced = hurt_and_watch("replaced")
    except DemoFailed as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    say(f"in place {'RIGHT' if in_place else 'WRONG'}, replaced {'RIGHT' if replaced else 'WRONG'}")
    say("the test bed stays up; `tools/testbed down` removes it")
    return 0 if in_place and replaced else 1


if __name__ == "__main__":
    sys.exit(main())
