"""The controller cordons a node for a failed inspection and uncordons it, at an API server that believes all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kcover_ebpf.api.fault_policy import InspectionAction
from kcover_ebpf.errors import Forbidden, NotFound
from kcover_ebpf.kube.reflector import Change, Event
from kcover_ebpf.recovery.nodes.node_health import CORDONED_FOR, OFFENCES
from kcover_ebpf.recovery.nodes.node_plan import CORDONED
from tests.unit.support.node_bed import GPU, XID, Bed, F, P, Tainted


def test_node_lift__a_node_fails_is_cordoned_is_mended_and_is_back() -> None:
    bed = Bed()
    bed.inspect(P, rounds=5)
    bed.inspect(F)
    assert bed.cordoned() == [], "one bad moment"
    named = "KcoverInspectionFailed"
    assert bed.conditions == [(named, "False"), (named, "True")], (
        "it is there from the first one on"
    )
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
    bed.inspect(F, gpu_result=F, rounds=9)
    assert bed.cordoned() == []
    assert bed.conditions == [("KcoverInspectionFailed", "True")]
    assert ("n0", "KcoverInspectionFailed") in bed.events


def test_node_lift__silence_lets_nothing_in() -> None:
    bed = Bed()
    bed.inspect(F, rounds=2)
    bed.inspect(P, rounds=2)
    bed.now_s += 86400.0
    bed.nodes.reconcile("n0")
    assert bed.cordoned() == ["n0"]
    assert bed.conditions[-1] == ("KcoverInspectionFailed", "Unknown")


def test_node_lift__a_device_fault_that_an_inspection_showed_is_lifted_by_inspections() -> None:
    bed = Bed(InspectionAction.REPORT)
    bed.inspect(P, rounds=9)
    bed.report(XID)
    assert bed.cordoned() == ["n0"]
    assert GPU in bed.notes("n0")[CORDONED_FOR]
    bed.inspect(F, gpu_result=F, rounds=2)
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
    bed.inspect(P, gpu_result=None, rounds=3)
    assert bed.cordoned() == ["n0"]
    bed.now_s += 8 * 86400.0
    bed.inspect(P, gpu_result=None, rounds=3)
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


def test_node_lift__a_device_that_is_tainted_alone_is_handed_out_again_by_itself() -> None:
    bed = Tainted()
    bed.inspect(P, gpu_result=F, rounds=2)
    assert list(bed.rules) == ["kcover-n0-0000-5d-00.0"]
    assert bed.cordoned() == []
    bed.inspect(P, gpu_result=F)
    bed.inspect(P, rounds=2)
    assert bed.rules
    bed.inspect(P)
    assert bed.rules == {}
    assert ("n0", "KcoverDeviceUntainted") in bed.events


def test_node_lift__a_node_is_cordoned_where_the_cluster_has_dra_and_no_rules_about_devices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bed = Tainted()
    listed = bed.list

    def without_rules(*call: Any) -> dict[str, Any]:
        if call[0].endswith("devicetaintrules"):
            raise NotFound("the server could not find the requested resource")
        return listed(*call)

    def refused(*_: Any) -> dict[str, Any]:
        raise NotFound("the server could not find the requested resource")

    monkeypatch.setattr(bed, "list", without_rules)
    monkeypatch.setattr(bed, "create", refused)
    bed.report(XID)
    assert bed.cordoned() == ["n0"]


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
    bed.inspect(P, gpu_result=F, rounds=2)
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
