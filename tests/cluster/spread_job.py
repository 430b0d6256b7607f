"""The example Job with its pods spread over all nodes, and the process of its last rank."""

from __future__ import annotations

from kcover_ebpf.agent.containers import Containers, processes
from kcover_ebpf.api.pods import Pod, pod_of
from testbed.driver.cluster import Namespace

SELECTOR = "batch.kubernetes.io/job-name=demo"


def last_rank(namespace: Namespace) -> tuple[Pod, int]:
    """The pod of the last rank, and its process."""
    pods = [pod_of(pod) for pod in namespace.pods(SELECTOR)]
    pod = next(other_pod for other_pod in pods if other_pod.name.startswith("demo-3"))
    return pod, min(processes(Containers().of_work(pod)))
