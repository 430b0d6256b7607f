"""What a tenant starts: manifests of pods and jobs that mean harm."""

from __future__ import annotations

from typing import Any

ARMED = {"kcover.io/cascading-recovery": "true"}
JOB_NAME = "batch.kubernetes.io/job-name"
FINALIZER = "example.org/never"
SLEEPS = "import time\nwhile True: time.sleep(40)"
IMAGE = "localhost/kcover-train:1"


def container(program: str, **env: str) -> dict[str, Any]:
    """One that runs a Python program as rank 0 of 1, unless `env` says otherwise."""
    variables = {"RANK": "0", "WORLD_SIZE": "1"} | env
    return {
        "name": "main",
        "image": IMAGE,
        "command": ["python3", "-S", "-c", program],
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "resources": {"requests": {"cpu": "5m"}},
    }


def pod(
    name: str, program: str = "import time; time.sleep(9999)", **metadata: Any
) -> dict[str, Any]:
    """A bare pod."""
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "containers": [container(program)],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **metadata},
        "spec": spec,
    }


def job(
    name: str, program: str, pods: int = 1, *, armed: bool = True, finalizer: bool = False
) -> dict[str, Any]:
    """A Job; `finalizer`: its pods stay in the API server when they have ended."""
    metadata: dict[str, Any] = {"labels": dict(ARMED) if armed else {"example.org/team": "x"}}
    if finalizer:
        metadata["finalizers"] = [FINALIZER]
    template = {"metadata": metadata, "spec": pod("x", program)["spec"]}
    size = {"completions": pods, "parallelism": pods, "completionMode": "Indexed"}
    spec = {**size, "backoffLimit": 0, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def policy(**spec: object) -> dict[str, Any]:
    """The FaultPolicy that a tenant would like to have."""
    values = {"restarts": {"max": 10, "backoffSeconds": 0}} | spec
    return {
        "apiVersion": "kcover.io/v1alpha1",
        "kind": "FaultPolicy",
        "metadata": {"name": "wild"},
        "spec": values,
    }


def claims(kind: str, name: str, uid: str) -> list[dict[str, Any]]:
    """The ownerReferences of a pod, which the API server does not check."""
    version = "batch/v1" if kind == "Job" else "v1"
    return [{"apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": True}]


def huge_policy(name: str, **metadata: Any) -> dict[str, Any]:
    """One to be made as large as it may be, or larger."""
    return {
        "apiVersion": "kcover.io/v1alpha1",
        "kind": "FaultPolicy",
        "metadata": {"name": name, **metadata},
        "spec": {"action": "Observe"},
    }
