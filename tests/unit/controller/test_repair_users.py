"""Which pods the reset of a GPU waits for: those that have it, and those of which that is not known."""

from __future__ import annotations

from typing import Any

from kcover_ebpf.api.fault_report import REPORT, FaultReport, PodRef, ReportedJob
from kcover_ebpf.kube.reflector import Change, Event
from kcover_ebpf.tunables.recovery import INSPECTIONS_FAILED
from tests.unit.support.node_bed import GPU, XID
from tests.unit.support.repair_yard import Drained, Yard, named, pod, steps


def asks(made: dict[str, Any], resource: str = "nvidia.com/gpu") -> dict[str, Any]:
    limits = {"cpu": "8", "memory": "64Gi", resource: "1"}
    return made | {"spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]}}


def uses(yard: Yard, uid: str, *devices: str) -> None:
    """The agent reports a watched pod, and the devices that it has open."""
    job = ReportedJob(uid, {"batch.kubernetes.io/job-name": uid})
    report = FaultReport("n0", yard.now_s, 1, job=job, pods=(PodRef(uid, uid, devices),))
    metadata = {"namespace": "ml", "name": uid, "uid": f"report-{uid}"}
    raw = {"metadata": metadata, "spec": REPORT.encode(report)}
    yard.store.on_report(Event(Change.SET, raw))


def failed_inspections(yard: Yard) -> None:
    """The device fails its inspections; no driver announced anything, so no report names its pods."""
    yard.round(INSPECTIONS_FAILED)
    assert yard.cordoned() == ["n0"]


def test_repairs__a_reset_waits_for_every_pod_that_may_have_a_device_of_unknown_users() -> None:
    yard = Yard()
    yard.pods = [asks(pod("a")), asks(pod("b"), "vendor.example/nic"), asks(pod("c"), "pods"),
                 pod("d") | {"spec": {"resourceClaims": [{"name": "gpu"}]}}]  # fmt: skip
    failed_inspections(yard)
    for left in (3, 2, 0):
        assert yard.jobs == []
        yard.pods = yard.pods[-left:] if left else [asks(pod("c"), "pods")]
        yard.round()
    assert steps(yard) == ["ResetGPU"], "a pod without devices is not waited for"


def test_repairs__a_reset_leaves_watched_pods_on_other_devices_alone() -> None:
    yard = Yard()
    yard.pods = [asks(pod("a")), asks(pod("b"))]
    failed_inspections(yard)
    uses(yard, "a", "0000:c3:00.0")
    uses(yard, "b", GPU)
    yard.repairs.reconcile("n0")
    assert yard.jobs == []
    yard.pods = yard.pods[:1]
    yard.repairs.reconcile("n0")
    assert steps(yard) == ["ResetGPU"]


def test_repairs__a_reset_waits_for_a_pod_that_has_the_device_since_the_fault() -> None:
    yard = Yard()
    yard.pods = [asks(pod("late")), asks(pod("a"))]
    uses(yard, "late", GPU)
    yard.report(XID)
    yard.repairs.reconcile("n0")
    assert yard.jobs == []
    yard.pods = yard.pods[1:]
    yard.repairs.reconcile("n0")
    assert steps(yard) == ["ResetGPU"]


def test_repairs__a_pod_that_may_have_the_device_is_waited_for_and_not_evicted() -> None:
    yard = Drained()
    yard.pods = [asks(named("a")), asks(named("b"))]
    failed_inspections(yard)
    assert (yard.evicted, yard.jobs) == ([], [])
    uses(yard, "b", GPU)
    for _ in range(2):
        yard.repairs.reconcile("n0")
        assert (yard.evicted, yard.jobs) == (["b"], []), "a is on some GPU"
    yard.pods = []
    yard.round()
    assert steps(yard) == ["ResetGPU"]
