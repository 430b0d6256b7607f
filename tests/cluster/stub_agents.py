"""Pods that stand for the agents, so that a command can be run in one: this checkout, on every node."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from testbed.driver.cluster import Namespace

COMMAND = str(Path(sys.executable).with_name("kcover-ebpf"))
LABELS = {"app.kubernetes.io/name": "kcover-ebpf", "app.kubernetes.io/component": "agent"}
START = f'#!/bin/sh\nexec chroot /host {COMMAND} "$@"\n'


def pods_of_agents() -> dict[str, Any]:
    """Pods as the chart makes them, but for the program: the nodes share this machine's files."""
    container = {
        "name": "agent",
        "image": "localhost/kcover-train:1",
        "imagePullPolicy": "Never",
        "command": ["sleep", "infinity"],
        "securityContext": {"privileged": True},
        "resources": {"requests": {"cpu": "200m"}},
        "volumeMounts": [
            {"name": "host", "mountPath": "/host"},
            {"name": "start", "mountPath": "/usr/local/bin/kcover-ebpf", "subPath": "start"},
        ],
    }
    volumes = [
        {"name": "host", "hostPath": {"path": "/"}},
        {"name": "start", "configMap": {"name": "start", "defaultMode": 0o755}},
    ]
    pod = {
        "hostPID": True,
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        "volumes": volumes,
    }
    template = {"metadata": {"labels": LABELS}, "spec": pod}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "agent"},
        "spec": {"selector": {"matchLabels": LABELS}, "template": template},
    }


def start_pods(there: Namespace) -> None:
    """Start such a pod on every node."""
    start = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "start"}}
    there.apply(json.dumps(start | {"data": {"start": START}}))
    there.apply(json.dumps(pods_of_agents()))
    there.ctl("rollout", "status", "daemonset/agent")
