"""Pods of workflow engines: one gang by the owner that controls them all, though nothing describes its kind.

The kinds are invented here, with the names of Argo's and Flyte's and without their controllers: what is shown is how
the gang is found, that it is restarted in place, and that it is refused, with the reason, where pods would have to be
replaced: either engine takes a deleted pod for a step that failed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from kcover_ebpf.api.job_kinds import OWNER_UID
from kcover_ebpf.kube.client import connect
from testbed.driver.cluster import ROOT, Cluster, Namespace, until
from testbed.driver.fake_agent import FakeAgent
from testbed.driver.nodes import all_uncordoned
from testbed.driver.restarts import policy, recover, running, wait_for_phase, ways

pytestmark = [pytest.mark.needs("root"), pytest.mark.timeout(400, func_only=True)]
PODS = 2
ENGINES = {
    "Argo": ("argoproj.io", "Workflow", "workflows"),
    "Flyte": ("flyte.lyft.com", "FlyteWorkflow", "flyteworkflows"),
}


def _kind(group: str, kind: str, plural: str) -> dict[str, Any]:
    """A kind without a schema and a controller."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1alpha1", "served": True, "storage": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [version | {"schema": {"openAPIV3Schema": schema}}],
        },
    }


def _pod(number: int, owner: dict[str, Any]) -> dict[str, Any]:
    """A step that sleeps, as its engine would make it."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"demo-{number}",
            "labels": {"app": "demo", "kcover.io/cascading-recovery": "true"},
            "ownerReferences": [owner | {"controller": True}],
        },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "containers": [
                {
                    "name": "main",
                    "image": "localhost/kcover-train:1",
                    "command": ["sleep", "infinity"],
                    "resources": {"requests": {"cpu": "20m"}},
                }
            ],
        },
    }


@pytest.mark.parametrize("engine", ENGINES)
def test_pods_of_a_workflow_are_restarted_in_place_and_never_replaced(
    engine: str, cluster: Cluster, namespace: Namespace, restart_in_place: bool, tmp_path: Path
) -> None:
    if not restart_in_place:
        pytest.skip("a cluster older than 1.36 does not restart in place")
    group, kind, plural = ENGINES[engine]
    cluster.ctl("apply", f"--filename={ROOT / 'charts/kcover-ebpf/crds'}")
    cluster.ctl("apply", "--filename=-", stdin=yaml.safe_dump(_kind(group, kind, plural)))
    until(lambda: cluster.serves(f"{plural}.{group}"), "the kind is served", 20)
    made = {"apiVersion": f"{group}/v1alpha1", "kind": kind}
    namespace.apply(yaml.safe_dump(made | {"metadata": {"name": "demo"}}))
    (workflow,) = namespace.get(f"{plural}.{group}", "demo")
    uid = workflow["metadata"]["uid"]
    owner = made | {"name": "demo", "uid": uid}
    for number in range(PODS):
        namespace.apply(yaml.safe_dump(_pod(number, owner)))
    for name in namespace.wait_for_pods("app=demo", PODS):
        namespace.wait(f"pod/{name}", "condition=Ready", 180)
    session = connect(str(cluster.kubeconfig))
    policy(namespace)
    old = {pod["metadata"]["uid"] for pod in namespace.pods("app=demo")}
    with (
        all_uncordoned(cluster),
        running(namespace, tmp_path / "log"),
        FakeAgent(session, namespace.name, {OWNER_UID: uid}, kind) as fake,
    ):
        fake.break_rank("demo-1")
        incident = recover(namespace, fake)
        assert ways(incident) == ["InPlace"], incident["status"]["timeline"]
        assert incident["spec"]["job"]["kind"] == kind
        assert {pod["metadata"]["uid"] for pod in namespace.pods("app=demo")} == old
        fake.break_device("demo-1", "0000:5d:00.0")
        incident = wait_for_phase(namespace, ("Refused", "Failed", "Recovered"), 2)
        assert incident["status"]["phase"] == "Refused", incident["status"]["timeline"]
        said = incident["status"]["message"]
        assert f"{kind} is not a kind that can be replaced as a whole" in said
        print(f"{engine}: {said}")
