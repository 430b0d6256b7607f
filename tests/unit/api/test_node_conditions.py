"""The conditions of a node: since when they hold, and which changes of them are worth an Event."""

from __future__ import annotations

from dataclasses import replace

from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.fault_policy import InspectionAction
from kcover_ebpf.inspection.result import PartResult
from kcover_ebpf.kube.reflector import Change, Event
from tests.unit.support.node_bed import STEP_S, XID, Bed, F, P


def since(bed: Bed, kind: str) -> float:
    return rfc3339.from_text(bed.written[kind]["lastTransitionTime"])


def test_node_conditions__it_has_the_time_of_its_status_whatever_its_text_says() -> None:
    bed = Bed(InspectionAction.REPORT)
    bed.inspect(F, text="91 C")
    failed_s = bed.now_s
    for text in ("92 C", "93 C"):
        bed.inspect(F, text=text)
        written = bed.written["KcoverInspectionFailed"]
        assert written["message"] == f"plugin/probe: {text}"
        assert rfc3339.from_text(written["lastHeartbeatTime"]) == bed.now_s
        assert since(bed, "KcoverInspectionFailed") == failed_s
    bed.inspect(P)
    assert since(bed, "KcoverInspectionFailed") == bed.now_s


def test_node_conditions__a_second_device_that_fails_does_not_change_since_when_one_does() -> None:
    bed = Bed(InspectionAction.REPORT)
    bed.report(XID)
    failed_s = bed.now_s
    bed.now_s += STEP_S
    bed.report(XID, replace(XID, device="0000:86:00.0"))
    assert "0000:86:00.0" in bed.written["KcoverDeviceFault"]["message"]
    assert since(bed, "KcoverDeviceFault") == failed_s


def test_node_conditions__an_event_is_about_a_new_status_or_another_check_that_fails() -> None:
    bed = Bed(InspectionAction.REPORT)
    for text in ("91 C", "92 C", "93 C"):
        bed.inspect(F, text=text)
    failed = ("n0", "KcoverInspectionFailed")
    assert bed.events == [failed]
    bed.inspect(F, text="94 C", more=(PartResult("memory", F, ("1 MiB",)),))
    assert bed.events == [failed, failed]
    bed.inspect(F, text="95 C", more=(PartResult("memory", F, ("2 MiB",)),))
    bed.inspect(F, text="96 C")
    assert bed.events == [failed, failed]
    bed.inspect(P)
    assert bed.events[2:] == [("n0", "KcoverInspectionPassed")]
    bed.inspect(F, text="x" * 600, more=(PartResult("memory", F, ("2 MiB",)),))
    bed.inspect(F, text="y" * 600, more=(PartResult("memory", F, ("2 MiB",)),))
    assert bed.events[3:] == [failed], "what the text has no room for is not new each time"


def test_node_conditions__a_controller_that_has_not_read_the_inspections_writes_nothing_of_them() -> (
    None
):
    bed = Bed(InspectionAction.REPORT)
    bed.inspect(P)
    written = dict(bed.written["KcoverInspectionFailed"])
    bed.store.healths.clear()
    bed.nodes.reconcile("n0")
    assert bed.written["KcoverInspectionFailed"] == written
    bed.store.on_health(Event(Change.SYNCED, {}))
    bed.nodes.reconcile("n0")
    assert bed.written["KcoverInspectionFailed"]["status"] == "Unknown", "it has none"
