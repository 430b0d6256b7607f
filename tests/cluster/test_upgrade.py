"""Half of an upgrade: agents of one version with controllers of the other, and a job that hangs meanwhile.

A helm upgrade changes permissions, admission and definitions at once, and pods one after the other. Which of them stay
behind is decided here: a paused Deployment, a DaemonSet that waits for its pods to be deleted.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from testbed.attacks.stage import JOB, Victim, faults_of
from testbed.driver.cluster import ROOT, Cluster, Namespace, until
from testbed.driver.installed import CHART, NAMESPACE, Release, installed, provide_image
from testbed.driver.kinds import start
from testbed.driver.restarts import hang, policy
from testbed.skips import PREVIOUS

pytestmark = [
    pytest.mark.timeout(900, func_only=True),
    pytest.mark.needs("previous"),
]
OLD_IMAGE = "localhost/kcover-ebpf:previous"
CRDS = ("faultpolicies", "faultreports", "incidents", "nodehealths")
CONTROLLER = "deployment/kcover-ebpf-controller"


@pytest.fixture(scope="module")
def old_image(cluster: Cluster) -> str:
    """The image of the version before, on every node, under another name."""
    archive = Path(os.environ[PREVIOUS]) / "build/image/kcover-ebpf.tar"
    command = cluster.testbed("load", str(archive), "--as", OLD_IMAGE)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr or done.stdout
    return OLD_IMAGE


@pytest.fixture(scope="module")
def image(cluster: Cluster, old_image: str) -> str:
    """The image of this checkout: both archives have its name, and the last one that is loaded gets it."""
    return provide_image(cluster)


@contextmanager
def previous(cluster: Cluster, image: str) -> Iterator[Release]:
    """A release of the version before, with its own definitions of resources."""
    chart = Path(os.environ[PREVIOUS]) / "charts/kcover-ebpf"
    for name in CRDS:
        cluster.run("delete", "crd", f"{name}.kcover.io", "--ignore-not-found", timeout_s=120)
    with installed(cluster, image, chart=chart) as release:
        release.wait_until_ready()
        yield release


def versions(release: Release) -> dict[str, set[str]]:
    """Component -> images that run."""
    label = "--selector=app.kubernetes.io/name=kcover-ebpf"
    found: dict[str, set[str]] = {}
    for pod in release.cluster.get("pods", f"--namespace={NAMESPACE}", label):
        if "deletionTimestamp" not in pod["metadata"]:
            component = pod["metadata"]["labels"]["app.kubernetes.io/component"]
            found.setdefault(component, set()).add(pod["spec"]["containers"][0]["image"])
    return found


def upgrade(release: Release, image: str, behind: str) -> None:
    """To this version's chart; `behind`: which component keeps its pods."""
    repository, _, tag = image.rpartition(":")
    values = [f"--set=image.repository={repository}", f"--set=image.tag={tag}"]
    if behind == "controller":
        release.ctl("rollout", "pause", CONTROLLER)
    else:
        values += [
            "--set=agent.updateStrategy.type=OnDelete",
            "--set=agent.updateStrategy.rollingUpdate=null",
        ]
    release.upgrade_to(CHART, *values)
    ahead = "agent" if behind == "controller" else "controller"
    until(lambda: versions(release)[ahead] == {image}, f"each {ahead} is of this version", 180)
    moved = "daemonset/kcover-ebpf-agent" if ahead == "agent" else CONTROLLER
    if ahead == "controller":
        release.ctl("rollout", "status", moved, "--timeout=110s")
    else:
        wait_for_agents(release)


def wait_for_agents(release: Release) -> None:
    """Of those that an upgrade leaves alone kubectl has no status of a rollout."""
    until(lambda: all(pod["ready"] for pod in agents(release)), "the agents are ready", 110)


def agents(release: Release) -> list[dict[str, bool]]:
    label = "--selector=app.kubernetes.io/component=agent"
    pods = release.cluster.get("pods", f"--namespace={NAMESPACE}", label)
    return [
        {"ready": all(status["ready"] for status in pod["status"].get("containerStatuses", ()))}
        for pod in pods
    ]


@pytest.mark.parametrize("crds", ["old", "new"])
@pytest.mark.parametrize("behind", ["controller", "agent"])
def test_a_job_that_hangs_is_recovered_by_versions_that_differ(
    cluster: Cluster, namespace: Namespace, image: str, old_image: str, behind: str, crds: str
) -> None:
    """Once it hangs as the upgrade begins, and once more between agents and controllers that differ for good."""
    with previous(cluster, old_image) as release:
        policy(namespace)
        start(namespace, JOB)
        victim = Victim(namespace)
        victim.wait_until_learned()
        if crds == "new":
            folder = str(ROOT / "charts/kcover-ebpf/crds")
            cluster.ctl("apply", "--server-side", "--force-conflicts", f"--filename={folder}")
        hanging = threading.Timer(1.0, hang, args=(victim.pods()[-1],))
        hanging.start()
        upgrade(release, image, behind)
        hanging.join()
        until(lambda: _is_recovered(namespace, 1), "the job that hung meanwhile is recovered", 120)
        assert versions(release)[behind] == {old_image}
        took_s = victim.survives_a_hang().took_s
        print(f"{behind} behind, {crds} definitions: recovered after {took_s:.1f} s")
        if behind == "controller":
            release.ctl("rollout", "resume", CONTROLLER)
        else:
            release.ctl("delete", "pods", "--selector=app.kubernetes.io/component=agent")
        until(
            lambda: versions(release)[behind] == {image}, f"each {behind} is of this version", 180
        )
        release.ctl("rollout", "status", CONTROLLER, "--timeout=110s")
        wait_for_agents(release)
        time.sleep(1.0)
        took_s = victim.survives_a_hang().took_s
        print(f"all of this version: recovered after {took_s:.1f} s")


def _is_recovered(namespace: Namespace, count: int) -> bool:
    phases = [entry.get("status", {}).get("phase") for entry in faults_of(namespace)]
    return phases.count("Recovered") >= count
