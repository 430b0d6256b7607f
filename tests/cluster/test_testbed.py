"""The cluster itself is what we take it for: nodes, names, addresses; test_kinds.py has jobs that train."""

import base64
import json

from testbed.driver.cluster import Cluster, Namespace

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
