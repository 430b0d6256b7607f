"""The cluster itself is what we take it for: nodes, names, addresses, real jobs that train."""

import base64
import json

import pytest

from tests import skips
from tests.cluster.cluster import Cluster, Namespace

# example in jobs/ -> (the resource it needs, label selector of its pods, number of pods)
JOBS = {
    "job": ("jobs.batch", "batch.kubernetes.io/job-name=demo", 2),
    "pytorchjob": ("pytorchjobs.kubeflow.org", "training.kubeflow.org/job-name=demo", 4),
    "jobset": ("jobsets.jobset.x-k8s.io", "jobset.sigs.k8s.io/jobset-name=demo", 2),
    "statefulset": ("statefulsets.apps", "app=demo", 2),
}
POD = """
apiVersion: v1
kind: Pod
metadata: {name: asks}
spec:
  restartPolicy: Never
  automountServiceAccountToken: false
  containers:
  - name: main
    image: localhost/kcover-train:1
    command: [getent, hosts, kubernetes.default.svc.cluster.local]
"""


def test_at_least_two_nodes_are_ready(cluster: Cluster) -> None:
    ready = [
        condition["status"]
        for node in cluster.get("nodes")
        if "kwok.x-k8s.io/node" not in node["metadata"].get("annotations", {})
        for condition in node["status"]["conditions"]
        if condition["type"] == "Ready"
    ]
    assert len(ready) >= 2
    assert set(ready) == {"True"}


def test_a_pod_finds_the_api_server_by_its_name(namespace: Namespace) -> None:
    namespace.apply(POD)
    match = namespace.wait_for_log("asks", r"^(\S+)\s+kubernetes\.default")
    (service,) = namespace.cluster.get("--namespace=default", "services", "kubernetes")
    assert match[1] == service["spec"]["clusterIP"]


def test_a_token_is_bound_to_its_pod_and_node(namespace: Namespace) -> None:
    namespace.apply(
        POD.replace("getent, hosts, kubernetes.default.svc.cluster.local", "sleep, '60'")
    )
    namespace.wait("pod/asks", "condition=Ready")
    (pod,) = namespace.get("pods", "asks")
    bound = ["--bound-object-kind=Pod", "--bound-object-name=asks"]
    token = namespace.ctl("create", "token", "default", *bound).strip()
    payload = token.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    assert claims["kubernetes.io"]["pod"]["name"] == "asks"
    assert claims["kubernetes.io"]["node"]["name"] == pod["spec"]["nodeName"]


@pytest.mark.parametrize("job", JOBS)
def test_a_job_of_this_kind_trains(namespace: Namespace, job: str) -> None:
    resource, selector, count = JOBS[job]
    if not namespace.cluster.serves(resource):
        skips.skip(job, "install its controller (tools/testbed up --controllers)")
    namespace.start(job)
    namespace.wait_for_steps(selector, count, 5)


def test_ranks_of_one_job_run_on_both_nodes(namespace: Namespace) -> None:
    namespace.start("pytorchjob")
    namespace.wait_for_steps(JOBS["pytorchjob"][1], 4, 1)
    assert len({pod["spec"]["nodeName"] for pod in namespace.pods()}) == 2
