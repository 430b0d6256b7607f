"""A drill as a user runs it: real agents, a real controller, and pods that stand for the agents' to run commands in."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from testbed import skips
from testbed.driver.agents import states
from testbed.driver.cluster import JOBS, Namespace
from testbed.driver.kinds import KINDS, replaced, wait_for_training, wait_until_learned
from testbed.driver.nodes import cordoned_nodes
from testbed.driver.restarts import incidents, policy
from tests.cluster.crowd import Book
from tests.cluster.stub_agents import COMMAND, pods_of_agents

BOOK = Book()
_JOB = KINDS["job"]
_PLUGIN = "import sys; from kcover_ebpf.cli.kubectl import main; sys.exit(main())"
_START = """#!/bin/sh
KCOVER_STATE_DIR={states}/$NODE_NAME exec chroot /host {command} "$@"
"""

_KNOWN_STEPS = 80


def start_agents(namespace: Namespace) -> None:
    """On every node a pod in which this checkout runs commands, with the node's name and credentials."""
    start = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "start"}}
    text = _START.format(command=COMMAND, states=states(namespace.cluster).resolve())
    namespace.apply(json.dumps(start | {"data": {"start": text}}))
    made = pods_of_agents()
    (container,) = made["spec"]["template"]["spec"]["containers"]
    container["env"] = [
        {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "KCOVER_KUBECONFIG", "value": str(_from_inside(namespace))},
    ]
    namespace.apply(json.dumps(made))
    namespace.ctl("rollout", "status", "daemonset/agent")


def _from_inside(namespace: Namespace) -> Path:
    """The kubeconfig with the address that the API server has for pods: their loopback is their own."""
    cluster = namespace.cluster
    (service,) = [
        found
        for found in cluster.get("services", "--namespace=default")
        if found["metadata"]["name"] == "kubernetes"
    ]
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    for entry in config["clusters"]:
        entry["cluster"]["server"] = f"https://{service['spec']['clusterIP']}"
    path = cluster.kubeconfig.with_name("kubeconfig.inside")
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(config))
    return path


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
    # a pod that ends keeps its name in DNS, beside the next one's
    namespace.ctl("delete", "job", "demo", "--cascade=foreground", "--wait=true")
    namespace.apply(replaced(text, {"{labels: {": '{labels: {kcover.io/drill: "true", '}))
    wait_for_training(namespace, _JOB)
    wait_until_learned(namespace, _JOB)
    card = restarted(namespace, "stop")
    assert (card["verdict"], card["cause"]) == ("HUNG", "stopped")
    assert card["fault_end"] == "gone", "the restart ended the process"


def consenting(namespace: Namespace, **spec: object) -> None:
    """A job of two pods that may be broken, and that trains; `spec`: of its policy."""
    policy(namespace, **spec)
    start_agents(namespace)
    text = (JOBS / "job.yaml").read_text()
    namespace.apply(replaced(text, {"{labels: {": '{labels: {kcover.io/drill: "true", '}))
    wait_for_training(namespace, _JOB)
    wait_until_learned(namespace, _JOB)


def restarted(namespace: Namespace, fault: str, *more: str) -> Any:
    """The scorecard of a drill that ends in a restart, after which the job trains again."""
    while True:
        code, card, said = drilled(namespace, f"--fault={fault}", *(more or ("--for=90s",)))
        if "another drill is in progress on this node" not in said:
            break
        # one of another scenario, which run side by side
        time.sleep(2)
    print(json.dumps(card, indent=2))
    assert code == 0, (card, said)
    assert card["right"] is True
    assert card["outcome"].startswith("Recovered")
    times = [card[f"{name}_after_s"] for name in ("named", "stopped", "running", "training")]
    assert times == sorted(times)
    wait_for_training(namespace, _JOB)
    return card


@BOOK.scenario()
def a_drill_that_kills_a_rank_and_one_that_prints_an_error_differ_in_their_class(
    namespace: Namespace,
) -> None:
    if not namespace.cluster.arms_pods:
        skips.skip("restart-in-place", "without it the job of a rank that dies has failed")
    consenting(namespace)
    killed = restarted(namespace, "kill")
    assert (killed["verdict"], killed["cause"]) == ("CRASHED", "killed")
    wait_until_learned(namespace, _JOB)
    logged = restarted(namespace, "log")
    assert (logged["verdict"], logged["failure"]) == ("CRASHED", "hardware")
    assert killed["failure"] != "hardware"


@BOOK.scenario()
def a_drill_that_has_a_rank_wait_for_a_lock_is_one_that_it_cannot_get(namespace: Namespace) -> None:
    if platform.machine() != "x86_64":
        skips.skip("x86_64", "the wait is machine code of x86-64")
    # that a lock is never released is inferred: without this it takes as long as the job was once silent
    consenting(namespace, thresholds={"hard_limit": "45s"})
    # where its ranks wait for each other in healthy times is not known of a job that trains for three seconds
    namespace.wait_for_steps(_JOB.selector, _JOB.pods, _KNOWN_STEPS, 180)
    card = restarted(namespace, "lock", "--for=170s")
    assert card["verdict"] == "HUNG"
    assert card["fault_end"] == "gone"


@BOOK.scenario()
def a_drill_that_names_a_rank_with_an_xid_is_a_fault_of_its_device(namespace: Namespace) -> None:
    consenting(namespace)
    card = restarted(namespace, "xid-note")
    assert (card["verdict"], card["failure"]) == ("DEVICE_FAULT", "hardware")
    (incident,) = incidents(namespace)
    assert "caused by a drill of kcover" in incident["status"]["evidence"][0]["text"]
    assert cordoned_nodes(namespace.cluster) == set(), "nothing was said about the node"


@BOOK.scenario()
def a_drill_that_cuts_a_pod_off_is_a_lost_link(namespace: Namespace) -> None:
    consenting(namespace)
    card = restarted(namespace, "partition", "--for=170s")
    assert card["verdict"] in ("LOST_LINK", "HUNG")


@BOOK.scenario()
def a_drill_that_slows_a_pod_down_is_reported_and_restarts_nothing(namespace: Namespace) -> None:
    consenting(namespace)
    code, card, said = drilled(namespace, "--fault=slow", "--for=150s")
    print(json.dumps(card, indent=2))
    assert code == 0, (card, said)
    assert (card["verdict"], card["right"], card["fault_end"]) == ("SLOW", True, "resumed")
    assert card["stopped_after_s"] is None
