"""A drill as a user runs it: real agents, a real controller, and pods that stand for the agents' to run commands in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from testbed.driver.cluster import JOBS, Namespace
from testbed.driver.kinds import KINDS, replaced, wait_for_training, wait_until_learned
from testbed.driver.restarts import policy
from tests.cluster.crowd import Book
from tests.cluster.stub_agents import COMMAND, pods_of_agents

BOOK = Book()
_JOB = KINDS["job"]
_PLUGIN = "import sys; from kcover_ebpf.cli.kubectl import main; sys.exit(main())"
_START = '#!/bin/sh\nexec chroot /host {command} "$@"\n'


def start_agents(namespace: Namespace) -> None:
    """On every node a pod in which this checkout runs commands, with the node's name and credentials."""
    start = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "start"}}
    namespace.apply(json.dumps(start | {"data": {"start": _START.format(command=COMMAND)}}))
    made = pods_of_agents()
    (container,) = made["spec"]["template"]["spec"]["containers"]
    container["env"] = [
        {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "KCOVER_KUBECONFIG", "value": str(namespace.cluster.kubeconfig)},
        {"name": "KCOVER_STATE_DIR", "value": "/tmp"},
    ]
    namespace.apply(json.dumps(made))
    namespace.ctl("rollout", "status", "daemonset/agent")


def drilled(namespace: Namespace, *more: str) -> tuple[int, Any, str]:
    """Exit code, scorecard, and what was said about an error."""
    asked = [sys.executable, "-c", _PLUGIN, "drill", "demo", f"--namespace={namespace.name}"]
    asked += [f"--agent-namespace={namespace.name}", "--output=json", *more]
    environment = os.environ | {"KUBECONFIG": str(namespace.cluster.kubeconfig)}
    done = subprocess.run(asked, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


@BOOK.scenario()
def a_drill_names_the_rank_that_it_stopped(namespace: Namespace) -> None:
    policy(namespace)
    start_agents(namespace)
    text = (JOBS / "job.yaml").read_text()
    namespace.apply(text)
    wait_for_training(namespace, _JOB)
    code, card, said = drilled(namespace, "--fault=stop")
    assert (code, card) == (2, None), "its pods do not consent"
    assert "kcover.io/drill=true" in said
    namespace.ctl("delete", "job", "demo", "--wait=true")
    namespace.apply(replaced(text, {"{labels: {": '{labels: {kcover.io/drill: "true", '}))
    wait_for_training(namespace, _JOB)
    wait_until_learned(namespace, _JOB)
    code, card, said = drilled(namespace, "--fault=stop", "--for=90s")
    print(json.dumps(card, indent=2))
    assert code == 0, (card, said)
    assert (card["right"], card["verdict"], card["cause"]) == (True, "HUNG", "stopped")
    assert card["fault_end"] == "gone", "the restart ended the process"
    assert card["outcome"].startswith("Recovered")
    times = [card[f"{name}_after_s"] for name in ("named", "stopped", "running", "training")]
    assert times == sorted(times)
    wait_for_training(namespace, _JOB)
