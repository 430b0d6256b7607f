"""From `helm install` to the first pod under watch, what each profile sees, and that nothing is left."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from testbed.driver.cluster import Cluster, Namespace, until
from testbed.driver.installed import NAMESPACE, Release, installed
from testbed.driver.victims import FAULTS, assert_detected, has_trained, hurt, observed

pytestmark = pytest.mark.timeout(1800, func_only=True)

COMMAND = str(Path(sys.executable).with_name("kcover-ebpf"))
KINDS = (
    "daemonsets.apps,deployments.apps,replicasets.apps,pods,services,serviceaccounts,configmaps,secrets,"
    "leases.coordination.k8s.io,roles,rolebindings,networkpolicies,poddisruptionbudgets"
)
CLUSTER_KINDS = (
    "clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings,"
    "mutatingadmissionpolicies,mutatingadmissionpolicybindings"
)
# made by the cluster in every namespace
OF_THE_CLUSTER = {"serviceaccount/default", "configmap/kube-root-ca.crt"}


def left(cluster: Cluster) -> set[str]:
    """What of a release is still there."""
    names = cluster.ctl("get", KINDS, f"--namespace={NAMESPACE}", "--output=name").split()
    label = "--selector=app.kubernetes.io/name=kcover-ebpf"
    names += cluster.ctl("get", CLUSTER_KINDS, label, "--output=name").split()
    return set(names) - OF_THE_CLUSTER


@pytest.mark.core
def test_the_first_pod_is_watched_within_seconds_and_removal_leaves_nothing(
    namespace: Namespace, image: str
) -> None:
    """Printed, not judged: how long it takes is a matter of the machine (docs/install.md has a quiet one's)."""
    observed(namespace)
    cluster = namespace.cluster
    with installed(cluster, image) as release:
        until(lambda: namespace.items("faultreports"), "a report", 120)
        watched_s = time.monotonic() - release.began_s
        ready_s = release.wait_until_ready()
        print(f"helm install to first pod watched {watched_s:.1f} s, to all ready {ready_s:.1f} s")
        until(lambda: "lease" in release.ctl("get", "leases", "--output=name"), "a leader", 60)
    # the lease goes with the pod that held it last
    until(lambda: not left(cluster), "nothing is left", 90)


@pytest.fixture(scope="module", params=[True, False], ids=["privileged", "unprivileged"])
def profile(request: pytest.FixtureRequest, cluster: Cluster, image: str) -> Any:
    """A release whose agents have all privileges, or only the named ones."""
    privileged = str(request.param).lower()
    with installed(cluster, image, f"agent.privileged={privileged}") as release:
        release.wait_until_ready()
        text = release.ctl("get", "daemonset", "kcover-ebpf-agent", "--output=json")
        container = json.loads(text)["spec"]["template"]["spec"]["containers"][0]
        assert container["securityContext"]["privileged"] is request.param
        yield release
        # the kubelet has asked for /healthz every few seconds meanwhile
        pods = json.loads(release.ctl("get", "pods", "--output=json"))["items"]
        started = [
            container_status
            for pod in pods
            for container_status in pod["status"]["containerStatuses"]
        ]
        assert started
        assert not [item["name"] for item in started if item["restartCount"]]


@pytest.mark.parametrize("fault", FAULTS)
def test_both_profiles_see_what_the_base_layer_shows(
    profile: Release, namespace: Namespace, fault: str
) -> None:
    observed(namespace)
    until(lambda: has_trained(namespace), "training is seen", 240)
    assert_detected(namespace, fault)


def test_a_trace_through_the_pod_has_python_native_and_kernel_frames(
    profile: Release, namespace: Namespace
) -> None:
    """The symbols are in files of the job's image, which the agent sees through /proc alone."""
    observed(namespace, numbered=True)
    pod = hurt(namespace, "stop")
    time.sleep(8)
    where = ("-n", namespace.name, "--kubeconfig", str(namespace.cluster.kubeconfig))
    done = subprocess.run(
        [COMMAND, "trace", "--job", "demo", *where, "-o", "json"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    seen = json.loads(done.stdout)
    assert (seen["cause"], seen["culprit"]["pod"]) == ("stopped", pod)
    assert {len(stack["python"]) > 0 for stack in seen["stacks"]} == {True}
    native = [frame for stack in seen["stacks"] for frame in stack["native"]]
    assert any(frame.endswith("(libc.so.6)") for frame in native), native
    assert any("(libtorch" in frame for frame in native), native
    blind = [item for item in seen["unobserved"] if "native frames" in item]
    assert blind == []
    privileged = any(stack["kernel"] for stack in seen["stacks"])
    assert privileged or any("kernel frames" in item for item in seen["unobserved"])
