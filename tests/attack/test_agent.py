"""Tenants against the agents: an agent that is silent switches recovery off for every job of its node."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.attacks.hostile import JOB_NAME, container, huge_policy, job, pod
from testbed.attacks.stage import JOB, Stage, Tenant, Victim
from testbed.cluster import cgroups
from testbed.driver.cluster import JOBS, ROOT, made, titled, until
from testbed.driver.fake_agent import is_first, processes
from testbed.driver.installed import NAMESPACE
from testbed.driver.kinds import KINDS, start, wait_for_training
from testbed.driver.orders import ByHand, reports_of, without_controllers
from testbed.driver.restarts import policy, stopped
from tests.attack import programs
from tests.attack.conftest import NODES, Peace, full_disks

pytestmark = pytest.mark.timeout(900, func_only=True)
WEBHOOKS = "ValidatingWebhookConfiguration"


def test_a4_a_rank_that_answers_nccls_questions_with_megabytes(
    peace: Peace, tenant: Tenant
) -> None:
    text = (JOBS / "job.yaml").read_text().replace("kcover.io/cascading-recovery", "example.org/x")
    command = json.dumps(["python3", "-c", programs.RAS_BOMB])
    tenant.ctl("create", "--filename=-", stdin=text.replace("[python3, /train/train.py]", command))
    wait_for_training(tenant.namespace, KINDS["job"])
    names = tenant.namespace.wait_for_pods(f"{JOB_NAME}=demo", 2)
    (first,) = [name for name in names if name.startswith("demo-0")]
    tenant.namespace.wait_for_log(first, "^asked", 180)
    peace.assert_kept(15)
    peace.assert_recovers()


def test_a5_policies_and_pods_of_great_size_and_number(peace: Peace, tenant: Tenant) -> None:
    bomb = huge_policy("bomb")
    bomb["spec"]["selector"] = {"matchLabels": {"x": "y" * 1_000_000}}
    assert "Too long" in tenant.refusal(bomb)
    bomb["spec"] = {"thresholds": {f"key{number}": "1s" for number in range(10_000)}}
    assert "Too many" in tenant.refusal(bomb)
    ballast: dict[str, Any] = {"annotations": {"example.org/ballast": "x" * 250_000}}
    for _ in range(8):
        part = [huge_policy(f"p-{time.monotonic_ns()}-{number}", **ballast) for number in range(10)]
        tenant.create(*part)
        waiting = [pod(f"w-{time.monotonic_ns()}-{number}", labels={JOB_NAME: f"j{number}"}, **ballast)
                   for number in range(10)]  # fmt: skip
        for entry in waiting:
            entry["spec"]["nodeSelector"] = {"example.org/none": "such"}
        tenant.create(*waiting)
    peace.assert_kept(10)
    peace.assert_recovers()


def test_a6_a_disk_that_is_full_keeps_no_rank_stopped(peace: Peace, stage: Stage) -> None:
    with full_disks(stage):
        peace.assert_kept(5)
        peace.assert_recovers()
    space = stage.victim.namespace
    until(lambda: not stopped(space.pods()), "nothing is stopped")
    stage.victim.survives_a_hang()


def test_a6_a_disk_that_fills_up_during_a_stop_keeps_no_rank_stopped(
    peace: Peace, stage: Stage, tenant: Tenant
) -> None:
    """The controllers die after they have had two jobs stopped, and nothing can be written when the stops expire."""
    space, names = tenant.namespace, ("one", "two")
    pods = [entry for name in names for entry in tenant.started_on("node1", name)]
    until(lambda: len(reports_of(space)) == len(names), "the agent reports on both jobs")
    controller = stage.controller()
    with without_controllers(stage.release, space):
        for name in names:
            ByHand(controller, space, name, {JOB_NAME: name}, name).order(f"stop-{name}", "Stop")
        with full_disks(stage):
            assert len(stopped(pods)) == len(pods)
            until(lambda: not stopped(pods), "both jobs are let go", 60)
    peace.assert_recovers()


def test_a12_a_gang_of_three_hundred_ranks_on_a_node(peace: Peace, tenant: Tenant) -> None:
    tenant.create(job("crowd", programs.CROWD, armed=False))
    (name,) = tenant.namespace.wait_for_pods(f"{JOB_NAME}=crowd", 1)
    tenant.namespace.wait_for_log(name, "^silent", 240)
    peace.assert_kept(10)
    peace.assert_recovers()

    def cut() -> dict[str, Any] | None:
        for item in tenant.namespace.items("faultreports"):
            unobserved = item["spec"].get("verdict", {}).get("unobserved", ())
            if any(text.startswith("truncated to fit") for text in unobserved):
                return item
        return None

    found = until(cut, "the agent reports what fits")
    print(len(found["spec"]["ranks"]), "ranks,", len(json.dumps(found)), "bytes")
    assert len(json.dumps(found["spec"])) < 1_000_000


def test_a12_a_namespace_that_takes_no_report(peace: Peace, tenant: Tenant) -> None:
    quota = {"hard": {"count/faultreports.kcover.io": "0"}}
    body = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "none"},
        "spec": quota,
    }
    tenant.namespace.apply(json.dumps(body))
    tenant.namespace.ctl("wait", "resourcequota/none", "--for=jsonpath={.status.hard}")
    tenant.create(
        *(job(f"unreported-{number}", "import time; time.sleep(999)") for number in range(4))
    )
    names = tenant.namespace.wait_for_pods("", 4)
    for name in names:
        tenant.namespace.wait(f"pod/{name}", "condition=Ready")
    peace.assert_kept(15)
    assert tenant.namespace.items("faultreports") == []
    peace.assert_recovers()


@contextlib.contextmanager
def broken_policy_engine(stage: Stage, namespace: str) -> Iterator[None]:
    """Its webhook, which must agree to each report of a namespace, cannot be reached: the API server answers 500."""
    name = "broken-policy-engine"
    rule = {"apiGroups": ["kcover.io"], "apiVersions": ["*"], "operations": ["*"]}
    webhook = {
        "name": "reports.example.org",
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "rules": [rule | {"resources": ["faultreports"]}],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": WEBHOOKS}
    body = {**kind, "metadata": {"name": name}, "webhooks": [webhook]}
    stage.cluster.ctl("apply", "--filename=-", stdin=json.dumps(body))
    try:
        yield
    finally:
        stage.cluster.ctl("delete", WEBHOOKS, name)


def test_a12_a_namespace_whose_policy_engine_is_broken(
    peace: Peace, stage: Stage, tenant: Tenant
) -> None:
    """What matters is a job that an agent reports on after it."""
    with broken_policy_engine(stage, tenant.namespace.name):
        for node in NODES:
            tenant.started_on(node, f"unreported-{node}")
        peace.assert_kept(15)
        assert tenant.namespace.items("faultreports") == []
        with made(titled(stage.cluster, "later")) as later:
            policy(later)
            start(later, JOB)
            Victim(later).survives_a_hang()
        peace.assert_recovers()


@pytest.mark.needs("fuse")
def test_a13_a_rank_whose_memory_cannot_be_read(peace: Peace, tenant: Tenant) -> None:
    """A driver or storage that does not answer, in a rank of the tenant's job on the node of a rank of the victim."""
    tenant.create(job("locked", "import time\nwhile True: time.sleep(1)", armed=False))
    (name,) = tenant.namespace.wait_for_pods(f"{JOB_NAME}=locked", 1)
    tenant.namespace.wait(f"pod/{name}", "condition=Ready")
    (body,) = tenant.namespace.pods()
    (inside,) = [pid for pid in processes(body["metadata"]["uid"]) if is_first(pid)]
    # it joins before its memory is locked: the kernel would wait for it to move it
    command = ["unshare", "--mount", sys.executable, "-m", "testbed.faults.memory_lock"]
    with subprocess.Popen(
        command, cwd=ROOT, text=True, bufsize=1,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "RANK": "1"},
    ) as holder:  # fmt: skip
        assert holder.stdin is not None
        assert holder.stdout is not None
        try:
            assert holder.stdout.readline() == "mounted\n"
            join(holder.pid, inside)
            holder.stdin.write("go\n")
            assert int(holder.stdout.readline())
            peace.assert_kept(15)
            peace.assert_recovers()
        finally:
            holder.kill()


def join(pid: int, other: int) -> None:
    """Move a process into the control groups of another."""
    path = Path(f"/proc/{other}/cgroup").read_text().splitlines()[-1].split(":", 2)[2]
    files = [top / path.lstrip("/") / "cgroup.procs" for top in cgroups.hierarchies()]
    there = [file for file in files if file.exists()]
    assert there
    for other_path in there:
        other_path.write_text(str(pid))


def test_a14_idle_connections_to_the_metrics_port(
    peace: Peace, stage: Stage, tenant: Tenant
) -> None:
    agents = [stage.agent_pod(node) for node in NODES]
    for number, name in enumerate(agents):
        text = stage.release.ctl("get", "pod", name, "--output=jsonpath={.status.podIP}")
        program = f"ADDRESS = {text!r}\n{programs.IDLES}"
        tenant.create(pod(f"idles-{number}", program))
    for number in range(len(agents)):
        tenant.namespace.wait_for_log(f"idles-{number}", "^idles", 120)
    for name in agents:
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}:9465/proxy/metrics"
        assert "kcover_" in stage.cluster.ctl("get", "--raw", path)
    peace.assert_recovers()


def test_a15_a_pod_that_forks_without_end(peace: Peace, tenant: Tenant) -> None:
    body = job("forks", programs.FORKS, armed=False)
    body["spec"]["template"]["spec"]["containers"] = [
        container(programs.FORKS) | {"resources": {"requests": {"cpu": "5m"}}}
    ]
    tenant.create(body)
    (name,) = tenant.namespace.wait_for_pods(f"{JOB_NAME}=forks", 1)
    tenant.namespace.wait_for_log(name, "^crowded", 180)
    peace.assert_kept(15)
    peace.assert_recovers()
