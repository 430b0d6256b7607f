"""The fixture of the scale tests: nodes and pods that cost nothing behave like real ones."""

import json
import time
from collections.abc import Callable, Iterable

import pytest

from testbed import skips
from testbed.driver.cluster import Namespace
from tests.cluster import fake_nodes as fakes

PODS = 40


@pytest.mark.timeout(900, func_only=True)
def test_the_ranks_of_a_fake_job_run_until_they_are_deleted(
    namespace: Namespace, install: Callable[[Iterable[str]], None]
) -> None:
    install(["kwok"])
    cluster = namespace.cluster
    if not cluster.serves("stages.kwok.x-k8s.io"):
        skips.skip("kwok", "the cluster of $KUBECONFIG does not have it")
    with fakes.fake_nodes(cluster, namespace.name, 20):
        namespace.apply(json.dumps(fakes.fake_job("demo", namespace.name, PODS)))
        deadline = time.monotonic() + 120
        while fakes.running(cluster, namespace.name) < PODS and time.monotonic() < deadline:
            time.sleep(1)
        (job,) = namespace.get("jobs", "demo")
        assert job["status"]["ready"] == PODS
        assert {pod["spec"]["nodeName"].rpartition("-")[0] for pod in namespace.pods()} == {
            namespace.name
        }
        namespace.ctl("patch", "job/demo", '--patch={"spec":{"suspend":true}}')
        namespace.ctl("wait", "pods", "--all", "--for=delete", "--timeout=120s", timeout_s=130)
        (job,) = namespace.get("jobs", "demo")
        assert job["status"].get("failed", 0) == 0
