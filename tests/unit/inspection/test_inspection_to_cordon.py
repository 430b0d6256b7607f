"""From the findings of a check to what the node is cordoned for, through every hop between."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kcover_ebpf.agent.node_health.inspector import Inspector, InspectorOptions
from kcover_ebpf.api.fault_policy import InspectionAction, NodeActions
from kcover_ebpf.api.node_health import ReceivedHealth
from kcover_ebpf.inspection import round as module
from kcover_ebpf.inspection.checks import nvml
from kcover_ebpf.inspection.options import InspectionOptions
from kcover_ebpf.inspection.result import CheckFinding, failed, passed
from kcover_ebpf.inspection.round import RoundOptions
from kcover_ebpf.recovery.nodes.node_health import FailedCheck, inspected
from tests.unit.support.inspection_hosts import pci_device

GPU, OTHER = "0000:5d:00.0", "0000:5e:00.0"
ECC = failed(f"GPU 0 ({GPU}): uncorrected ECC errors", "reset it", GPU)
LOST = failed("GPU 1 gives no answer", "reboot the node")
DOWN = failed(f"GPU 2 ({OTHER}): NVLinks are down", "reset it", OTHER)
WELL = passed(f"GPU 2 ({OTHER}): healthy", OTHER)


def named(folder: Path, monkeypatch: pytest.MonkeyPatch, *findings: CheckFinding) -> list[str]:
    """What the node is cordoned for once these were found by NVML in two rounds."""

    def find(_: InspectionOptions) -> Iterator[CheckFinding]:
        yield from findings

    check = replace(nvml.CHECK, find=find)
    monkeypatch.setattr(module, "host_root", lambda: folder)
    monkeypatch.setattr(module, "scheduled", lambda *_: (check,))
    monkeypatch.setattr(Inspector, "_ask", lambda _, wanted: (module.answer_of(wanted), ""))
    options = InspectorOptions("n1", 600.0, folder / "health.json", RoundOptions())
    inspector = Inspector(None, options, lambda *_: None)  # type: ignore[arg-type]
    for _ in range(2):
        inspector._inspect()
    assert inspector.latest_health is not None
    now_s = inspector.latest_health.time_s
    received = ReceivedHealth(inspector.latest_health, now_s)
    policy = NodeActions(inspection=InspectionAction.ALL)
    faults = inspected(received, now_s, now_s, policy)
    return [fault.name if isinstance(fault, FailedCheck) else fault.device for fault in faults]


@pytest.mark.parametrize(
    ("findings", "names"),
    [
        ((ECC, WELL), [GPU]),
        ((ECC, DOWN), [GPU, OTHER]),
        ((LOST, WELL), ["nvml"]),
        ((LOST, ECC, WELL), [GPU, "nvml"]),
    ],
    ids=[
        "one device explains the check",
        "two devices do",
        "no device does",
        "one device explains a part of it only",
    ],
)
def test_inspected__a_check_is_explained_by_devices_only_where_all_that_failed_is_theirs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    findings: tuple[CheckFinding, ...],
    names: list[str],
) -> None:
    for address in (GPU, OTHER):
        pci_device(tmp_path, address)
    assert named(tmp_path, monkeypatch, *findings) == names
