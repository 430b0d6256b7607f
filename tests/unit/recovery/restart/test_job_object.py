"""What the object of a job says of restarts of its containers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kcover_ebpf.recovery.restart.context import GangPod
from kcover_ebpf.recovery.restart.job_object import counts_restarts
from kcover_ebpf.recovery.restart.methods import restarts
from tests.unit.support.report_builders import pod

JOBSET: dict[str, Any] = {"spec": {"replicatedJobs": [{"name": "workers"}]}}
BY_ITSELF = {"spec": JOBSET["spec"] | {"failurePolicy": {"restartStrategy": "InPlaceRestart"}}}
RECREATES = {"spec": JOBSET["spec"] | {"failurePolicy": {"restartStrategy": "Recreate"}}}


@pytest.mark.parametrize(
    ("raw", "restart_policy", "counted"),
    [
        (JOBSET, "Never", False),
        (JOBSET, "OnFailure", True),
        (RECREATES, "Never", False),
        (BY_ITSELF, "Never", True),
    ],
    ids=["pods that never restart", "its Jobs count them", "it recreates", "it counts them itself"],
)
def test_counts_restarts__a_jobset(raw: dict[str, Any], restart_policy: str, counted: bool) -> None:
    method = restarts().find("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert method is not None
    gang_pod = replace(GangPod(pod(0)), restart_policy=restart_policy)
    assert counts_restarts(method, raw, [gang_pod]) is counted


@pytest.mark.parametrize(
    ("kind", "restart_policy", "counted"),
    [("RayCluster", "Never", True), ("RayCluster", "OnFailure", False)]
    + [("RayJob", policy, True) for policy in ("Never", "OnFailure")],
)
def test_counts_restarts__pods_of_ray(kind: str, restart_policy: str, counted: bool) -> None:
    """KubeRay deletes a pod that is never restarted once its container has ended, as one in place has for a moment."""
    method = restarts().find("ray.io/v1", kind)
    assert method is not None
    gang_pod = replace(GangPod(pod(0)), restart_policy=restart_policy)
    assert counts_restarts(method, {"spec": {"rayClusterSpec": {}}}, [gang_pod]) is counted
