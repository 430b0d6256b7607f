"""Scenarios for test_faults.py: a rank in state D, which no signal ends, on a file system that is frozen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from testbed import skips
from testbed.driver import nodes
from testbed.driver.cluster import Namespace, until
from testbed.driver.fake_agent import processes
from testbed.driver.kinds import (
    KINDS,
    rank_pods,
    start,
    wait_for_training,
    wait_until_learned,
    with_checkpoints,
)
from testbed.driver.restarts import policy, stopped, until_reported, wait_for_phase
from tests.cluster.crowd import Book

TWO = KINDS["job"]
OVER = ("Recovered", "Failed", "Refused", "Observed")
SOON = {"storage_patience": "10s"}
"""A file system that does not answer is given five minutes by default."""
BOOK = Book()


def on_disk(node: str, folder: str) -> Callable[[str], str]:
    """The example Job, on this node where it may be, with a rank 0 that writes to that folder again and again."""
    term = (
        f"{{matchExpressions: [{{key: kubernetes.io/hostname, operator: In, values: [{node}]}}]}}"
    )
    preferred = (
        f"preferredDuringSchedulingIgnoredDuringExecution: [{{weight: 100, preference: {term}}}]"
    )

    def change(text: str) -> str:
        text = with_checkpoints(every=8, seconds=0.1, path="/data/checkpoint")(text)
        volume = f"{{name: data, hostPath: {{path: {folder}}}}}"
        text = text.replace("volumes: [", f"volumes: [{volume}, ")
        text = text.replace("volumeMounts: [", "volumeMounts: [{name: data, mountPath: /data}, ")
        return text.replace(
            "      subdomain: demo\n",
            f"      subdomain: demo\n      affinity: {{nodeAffinity: {{{preferred}}}}}\n"
            "      terminationGracePeriodSeconds: 3\n",
        )

    return change


def frozen(namespace: Namespace, node: str, folder: str) -> dict[str, Any]:
    """Train there, freeze the disk, wait until it is reported; the pod in which rank 0 is stuck."""
    start(namespace, TWO, on_disk(node, folder))
    wait_until_learned(namespace, TWO)
    victim = rank_pods(namespace, TWO)[0]
    assert victim["spec"]["nodeName"] == node
    nodes.inside(namespace.cluster, node, "fsfreeze", "--freeze", folder)
    incident = until_reported(namespace, "cannot be terminated")
    culprit = incident["status"]["culprit"]
    assert (culprit["pod"], culprit["node"]) == (victim["metadata"]["name"], node)
    assert (culprit["rank"], incident["status"]["cause"]) == (0, "storage")
    return victim


def uids(namespace: Namespace) -> set[str]:
    return {pod["metadata"]["uid"] for pod in rank_pods(namespace, TWO)}


def check_recovered(namespace: Namespace, victim: dict[str, Any]) -> None:
    """The job trains again, in new pods, and has not failed."""
    incident = wait_for_phase(namespace, OVER)
    assert incident["status"]["phase"] == "Recovered", incident["status"]["timeline"]
    wait_for_training(namespace, TWO)
    assert victim["metadata"]["uid"] not in uids(namespace)
    assert not stopped(rank_pods(namespace, TWO))
    (job,) = namespace.get("jobs", "demo")
    assert not job["status"].get("failed")


@BOOK.scenario()
def a_rank_that_no_signal_ends_is_reported_and_its_node_is_cordoned(namespace: Namespace) -> None:
    skips.require("loop")
    policy(namespace, thresholds=SOON)
    with nodes.disk(namespace) as (node, folder):
        victim = frozen(namespace, node, folder)
        (job,) = namespace.get("jobs", "demo")
        assert job["spec"]["suspend"], "no new rank while the old one writes"
        assert victim["metadata"]["uid"] in uids(namespace)
        nodes.thaw(namespace.cluster, node, folder)
        namespace.wait("job/demo", "jsonpath={.spec.suspend}=false", 60)
        assert node in nodes.cordoned_nodes(namespace.cluster)
        nodes.uncordon(namespace.cluster, node)
        check_recovered(namespace, victim)


@BOOK.scenario()
def a_rank_that_no_signal_ends_is_left_behind_where_the_policy_says_so(
    namespace: Namespace,
) -> None:
    skips.require("loop")
    policy(namespace, forceDelete=True, thresholds=SOON)
    with nodes.disk(namespace) as (node, folder):
        victim = frozen(namespace, node, folder)
        check_recovered(namespace, victim)
        assert node not in {pod["spec"]["nodeName"] for pod in rank_pods(namespace, TWO)}
        uid = victim["metadata"]["uid"]
        assert processes(uid), "the disk is frozen still"
        nodes.uncordon(namespace.cluster, node)
        nodes.thaw(namespace.cluster, node, folder)
        until(lambda: not processes(uid), "the kubelet ends what is left of the pod")
