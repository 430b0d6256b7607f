"""The controller cordons a node for a failed inspection and uncordons it, at an API server that believes all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kcover_ebpf.agent.health_memory import Round, Seen, after_round
from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.fault_policy import FaultPolicy, InspectionAction, NamedPolicy, NodeActions
from kcover_ebpf.api.fault_report import FaultReport, ReportedDeviceFault
from kcover_ebpf.api.node_health import NodeHealth, object_of
from kcover_ebpf.cluster.gang_snapshot import ReceivedReport
from kcover_ebpf.controller.cache import Uid
from kcover_ebpf.controller.node_reconciler import NodeReconciler
from kcover_ebpf.errors import Conflict, Forbidden
from kcover_ebpf.facts.health import Result
from kcover_ebpf.kube.reflector import Change, Event
from kcover_ebpf.recovery.node_health import CORDONED_FOR, OFFENCES
from kcover_ebpf.recovery.node_plan import CORDONED, CORDONED_BY
from tests.unit.node_world import Cluster

PROBE, GPU = "plugin/probe", "0000:5d:00.0"
P, F = Result.PASS, Result.FAIL
STEP_S = 600.0


class Bed(Cluster):
    """A cluster whose node n0 is inspected every ten minutes; its clock is an hour ahead."""

    def __init__(self, action: InspectionAction = InspectionAction.ALL) -> None:
        self.boot = "a"
        self.written: dict[str, dict[str, Any]] = {}
        super().__init__(100)
        self.health: NodeHealth | None = None
        self.conditions: list[tuple[str, str]] = []
        made = FaultPolicy(node=NodeActions(inspection=action))
        self.store.policies[Uid("p")] = NamedPolicy("kcover", "p", made)

    def _put(self, raw: dict[str, Any]) -> None:
        conditions = list(self.written.values()) if raw["metadata"]["name"] == "n0" else []
        raw["status"] = {"conditions": conditions, "nodeInfo": {"bootID": self.boot}}
        super()._put(raw)

    def strategic_patch(self, *call: Any) -> dict[str, Any]:
        path, body = call
        (condition,) = body["status"]["conditions"]
        if path == "/api/v1/nodes/n0/status":
            self.conditions.append((condition["type"], condition["status"]))
            self.written[condition["type"]] = condition
            self._put(dict(self.store.raw_nodes["n0"]))
        return {}

    def list(self, *_: Any) -> dict[str, Any]:
        return {"items": []}

    def inspect(
        self, result: Result, gpu: Result | None = P, rounds: int = 1, kind: str = "gpu"
    ) -> None:
        """`gpu`: of the device; None: it is not on the bus."""
        for _ in range(rounds):
            self.now_s += STEP_S
            checks = [Seen(PROBE, result, ("it is broken",))]
            devices = [Seen(GPU, gpu, ("ecc",), kind=kind)] if gpu is not None else []
            done = Round(self.now_s + 3600.0, self.boot, checks, devices)
            self.health = after_round("n0", self.health, done, 1950)
            raw = object_of(self.health)
            raw["metadata"]["managedFields"] = [{"time": rfc3339.to_text(self.now_s)}]
            self.store.on_health(Event(Change.SET, raw))
            self.nodes.reconcile("n0")

    def started_anew(self) -> None:
        """Another controller leads: it knows what is written, and nothing else."""
        self.nodes = NodeReconciler(
            self,  # type: ignore[arg-type]
            self.writing,  # type: ignore[arg-type]
            self.store,
            self.nodes._limits,
            self.nodes._notify,
        )

    def report(self, *faults: ReportedDeviceFault) -> None:
        report = FaultReport("n0", self.now_s, 1, devices=faults)
        self.store.host_reports["n0"] = ReceivedReport(report, self.now_s)
        self.nodes.reconcile("n0")


def test_node_lift__a_node_fails_is_cordoned_is_mended_and_is_back() -> None:
    bed = Bed()
    bed.inspect(P, rounds=5)
    bed.inspect(F)
    assert bed.cordoned() == [], "one bad moment"
    assert bed.conditions == [("KcoverInspectionFailed", "True")]
    bed.inspect(F)
    assert bed.cordoned() == ["n0"]
    assert "it is broken" in bed.notes("n0")[CORDONED]
    bed.inspect(F, rounds=3)
    bed.inspect(P, rounds=2)
    assert bed.cordoned() == ["n0"]
    bed.inspect(P)
    assert bed.cordoned() == []
    assert set(bed.notes("n0")) == {OFFENCES}
    assert ("n0", "KcoverUncordoned") in bed.events


def test_node_lift__a_repeat_offender_takes_twice_as_long_also_for_another_controller() -> None:
    bed = Bed()
    times = []
    for _ in range(3):
        bed.inspect(F, rounds=2)
        assert bed.cordoned() == ["n0"]
        bed.started_anew()
        count = 0
        while bed.cordoned():
            bed.inspect(P)
            count += 1
        times.append(count)
    assert times == [3, 6, 12]


def test_node_lift__by_default_a_failed_inspection_is_reported_only() -> None:
    bed = Bed(InspectionAction.REPORT)
    bed.inspect(F, gpu=F, rounds=9)
    assert bed.cordoned() == []
    assert bed.conditions == [("KcoverInspectionFailed", "True")]
    assert ("n0", "KcoverInspectionFailed") in bed.events


def test_node_lift__a_cordon_of_a_person_is_never_touched() -> None:
    bed = Bed()
    raw = dict(bed.store.raw_nodes["n0"])
    bed.store.on_node(Event(Change.SET, raw | {"spec": {"unschedulable": True}, "status": {}}))
    bed.inspect(P, rounds=50)
    assert bed.cordoned() == ["n0"]
    assert bed.notes("n0") == {}


@pytest.mark.parametrize("taint", [True, False], ids=["taint and cordon", "cordon alone"])
def test_node_lift__a_cordon_of_a_person_stays_also_where_the_node_fails_meanwhile(
    taint: bool,
) -> None:
    bed = Bed()
    bed.store.policies.clear()
    bed.policy("kcover", NodeActions(inspection=InspectionAction.ALL, taint=taint))
    bed.by_hand("n0", True)
    bed.inspect(F, rounds=2)
    assert CORDONED in bed.notes("n0")
    assert bed.notes("n0")[CORDONED_BY] == "others"
    bed.inspect(P, rounds=3)
    assert set(bed.notes("n0")) == {OFFENCES}, "what is ours is undone"
    assert not bed.store.raw_nodes["n0"]["spec"].get("taints")
    assert bed.cordoned() == ["n0"]
    bed.by_hand("n0", False)
    bed.inspect(F, rounds=2)
    assert bed.notes("n0")[CORDONED_BY] == "kcover", "the next cordon is ours"


def test_node_lift__a_cordon_of_a_person_stays_where_we_only_tainted_the_node_before() -> None:
    bed = Bed()
    bed.store.policies.clear()
    bed.policy("kcover", NodeActions(inspection=InspectionAction.ALL, cordon=False))
    bed.inspect(F, rounds=2)
    assert bed.cordoned() == []
    bed.by_hand("n0", True)
    bed.inspect(P, rounds=3)
    assert CORDONED not in bed.notes("n0")
    assert bed.cordoned() == ["n0"]


def test_node_lift__who_undoes_our_cordon_and_cordons_the_node_again_keeps_it() -> None:
    bed = Bed()
    bed.inspect(F, rounds=2)
    bed.by_hand("n0", False)
    assert bed.cordoned() == []
    bed.by_hand("n0", True)
    bed.inspect(P, rounds=3)
    assert CORDONED not in bed.notes("n0")
    assert bed.cordoned() == ["n0"]


def test_node_lift__a_cordon_noted_by_an_older_version_is_taken_for_ours() -> None:
    bed = Bed()
    bed.inspect(F, rounds=2)
    del bed.notes("n0")[CORDONED_BY]
    bed.inspect(P, rounds=3)
    assert bed.cordoned() == []


def test_node_lift__a_dry_run_notes_nothing() -> None:
    bed = Bed()
    bed.inspect(F, rounds=2)
    bed.nodes._limits = replace(bed.nodes._limits, dry_run=True)
    bed.by_hand("n0", False)
    assert bed.notes("n0")[CORDONED_BY] == "kcover"


def test_node_lift__silence_lets_nothing_in() -> None:
    bed = Bed()
    bed.inspect(F, rounds=2)
    bed.inspect(P, rounds=2)
    bed.now_s += 86400.0
    bed.nodes.reconcile("n0")
    assert bed.cordoned() == ["n0"]
    assert bed.conditions[-1] == ("KcoverInspectionFailed", "Unknown")


XID = ReportedDeviceFault(GPU, "xid_48", "double bit ECC", fatal=True, unfit=True, age_s=1.0)


def test_node_lift__a_device_fault_that_an_inspection_showed_is_lifted_by_inspections() -> None:
    bed = Bed(InspectionAction.REPORT)
    bed.inspect(P, rounds=9)
    bed.report(XID)
    assert bed.cordoned() == ["n0"]
    assert GPU in bed.notes("n0")[CORDONED_FOR]
    bed.inspect(F, gpu=F, rounds=2)
    bed.report()
    bed.inspect(P, rounds=2)
    assert bed.cordoned() == ["n0"]
    bed.inspect(P)
    assert bed.cordoned() == []


def test_node_lift__one_that_none_showed_is_lifted_by_a_reboot_alone() -> None:
    bed = Bed(InspectionAction.REPORT)
    bed.report(XID)
    bed.report()
    bed.inspect(P, rounds=20)
    assert bed.cordoned() == ["n0"]
    bed.boot = "b"
    bed.inspect(P)
    assert bed.cordoned() == []


@pytest.mark.parametrize("kind", ["gpu", "nic"])
def test_node_lift__a_device_that_is_gone_after_the_reboot_is_awaited_however_long(
    kind: str,
) -> None:
    bed = Bed(InspectionAction.REPORT)
    bed.inspect(P, kind=kind)
    bed.report(XID)
    bed.report()
    bed.boot = "b"
    bed.inspect(P, gpu=None, rounds=3)
    assert bed.cordoned() == ["n0"]
    bed.now_s += 8 * 86400.0
    bed.inspect(P, gpu=None, rounds=3)
    assert bed.health is not None
    assert bed.health.devices == (), "the agent has forgotten it"
    assert bed.cordoned() == ["n0"]
    bed.inspect(P, kind=kind)
    assert bed.cordoned() == [], "it was replaced"


def test_node_lift__a_device_that_no_inspection_lists_needs_the_reboot_alone() -> None:
    bed = Bed(InspectionAction.REPORT)
    bed.inspect(P)
    bed.report(replace(XID, device="0000:c3:00.0"))
    bed.report()
    bed.inspect(P, rounds=9)
    assert bed.cordoned() == ["n0"]
    bed.boot = "b"
    bed.inspect(P)
    assert bed.cordoned() == []


def test_node_lift__what_fails_while_it_is_cordoned_must_be_mended_too() -> None:
    bed = Bed()
    bed.inspect(F, rounds=2)
    bed.report(XID)
    assert GPU in bed.notes("n0")[CORDONED_FOR]
    bed.report()
    bed.inspect(P, rounds=20)
    assert bed.cordoned() == ["n0"], "nothing shows that the GPU is well"


def test_node_lift__the_breaker_holds_for_inspections_too() -> None:
    bed = Bed()
    for index in range(1, 11):
        bed.breaks(f"n{index}")
        bed.now_s += 300.0
    bed.inspect(F, rounds=2)
    assert "n0" not in bed.cordoned()


def test_node_lift__the_health_of_a_node_that_is_gone_is_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bed = Bed()
    bed.inspect(P)
    deleted: list[str] = []
    monkeypatch.setattr(bed, "delete", deleted.append)
    bed.nodes.reconcile("n0")
    assert deleted == []
    bed.store.on_node(Event(Change.GONE, {"metadata": {"name": "n0"}}))
    bed.nodes.reconcile("n0")
    assert deleted == ["/apis/kcover.io/v1alpha1/nodehealths/n0"]
    assert bed.store.healths == {}


class Tainted(Bed):
    """Devices are handed out one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.rules: dict[str, dict[str, Any]] = {}
        self.theirs: list[dict[str, Any]] = []
        """Taints by the driver of the devices, on the second of them."""
        self.foreign: list[dict[str, Any]] = []
        """Rules of others."""
        self.texts: list[str] = []

    def strategic_patch(self, *call: Any) -> dict[str, Any]:
        _, body = call
        self.texts += [each["message"] for each in body["status"]["conditions"]]
        return super().strategic_patch(*call)

    def get(self, *_: object) -> dict[str, Any]:
        return {"preferredVersion": {"groupVersion": "resource.k8s.io/v1"}}

    def list(self, *call: Any) -> dict[str, Any]:
        path = call[0]
        if path.endswith("devicetaintrules"):
            ours = [{"metadata": each} for each in self.rules.values()]
            return {"items": ours if call[1] else ours + self.foreign}
        attributes = {"resource.kubernetes.io/pciBusID": {"string": GPU}}
        devices = [
            {"name": "gpu-0", "attributes": attributes},
            {"name": "gpu-1", "taints": self.theirs},
        ]
        spec = {"driver": "d", "nodeName": "n0", "pool": {"name": "n0"}, "devices": devices}
        return {"items": [{"spec": spec}]}

    def create(self, _: str, body: dict[str, Any]) -> dict[str, Any]:
        metadata = body["metadata"] | {"creationTimestamp": rfc3339.to_text(self.now_s)}
        if metadata["name"] in self.rules:
            raise Conflict("it is there")
        self.rules[metadata["name"]] = metadata
        return body

    def delete(self, *call: Any) -> None:
        (path,) = call
        del self.rules[path.rpartition("/")[2]]


def test_node_lift__a_device_that_is_tainted_alone_is_handed_out_again_by_itself() -> None:
    bed = Tainted()
    bed.inspect(P, gpu=F, rounds=2)
    assert list(bed.rules) == ["kcover-n0-0000-5d-00.0"]
    assert bed.cordoned() == []
    bed.inspect(P, gpu=F)
    bed.inspect(P, rounds=2)
    assert bed.rules
    bed.inspect(P)
    assert bed.rules == {}
    assert ("n0", "KcoverDeviceUntainted") in bed.events


THEIRS = {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}
RULE = {
    "metadata": {"name": "repair", "creationTimestamp": "2026-01-01T00:00:00Z"},
    "spec": {"deviceSelector": {"device": "gpu-1"}, "taint": THEIRS},
}


@pytest.mark.parametrize("by_rule", [False, True], ids=["by the driver", "by a rule of others"])
def test_node_lift__a_taint_of_others_on_a_device_holds_the_cordon_and_stays(by_rule: bool) -> None:
    bed = Tainted()
    where, taint = (bed.foreign, RULE) if by_rule else (bed.theirs, THEIRS)
    where.append(taint)
    bed.inspect(F, rounds=2)
    assert bed.cordoned() == ["n0"]
    bed.inspect(P, rounds=20)
    assert bed.cordoned() == ["n0"]
    assert where == [taint]
    where.clear()
    bed.inspect(P)
    assert bed.cordoned() == []


def test_node_lift__a_taint_of_others_holds_our_own_taint_on_a_device() -> None:
    bed = Tainted()
    bed.theirs.append(THEIRS)
    bed.inspect(P, gpu=F, rounds=2)
    bed.inspect(P, rounds=20)
    assert bed.rules
    bed.theirs.clear()
    bed.inspect(P)
    assert bed.rules == {}


def test_node_lift__the_condition_has_what_others_report() -> None:
    bed = Tainted()
    bed.theirs.append(THEIRS)
    bed.report(XID)
    (text,) = bed.texts
    assert text.startswith(f"{GPU} xid_48")
    assert text.endswith(
        "reported by others: device gpu-1 of d: taint gpu.nvidia.com/xid=79:NoSchedule"
    )


def test_node_lift__a_node_stays_out_where_the_taints_of_others_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bed = Tainted()
    bed.inspect(F, rounds=2)

    listed = bed.list

    def refused(*call: Any) -> dict[str, Any]:
        if call[0].endswith("resourceslices"):
            raise Forbidden("no")
        return listed(*call)

    monkeypatch.setattr(bed, "list", refused)
    bed.inspect(P, rounds=2)
    with pytest.raises(Forbidden):
        bed.inspect(P)
    assert bed.cordoned() == ["n0"]
