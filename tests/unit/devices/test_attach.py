"""Which device families are tried, and when again; the real kernel's answers are in tests/vm."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kcover_ebpf.devices import attach, families
from kcover_ebpf.devices.attach import Attachments
from kcover_ebpf.facts.devices import AerSeverity
from kcover_ebpf.kernel.maps import BpfMap
from kcover_ebpf.kernel.objects import BpfLink
from kcover_ebpf.kernel.probes import Family, LoadedFamily, ProbeStatus, Refusal
from kcover_ebpf.kernel.records import device_wire as wire
from kcover_ebpf.settings import Settings


class FakeLoader:
    """Stands for the kernel: takes every probe, or refuses all of the GPU driver's."""

    def __init__(self) -> None:
        self.tried: list[str] = []
        self.refuses_gpu = False
        self.refused: set[str] = set()
        """Single probes."""

    def load(
        self, family: Family, _shared: Mapping[str, BpfMap], _settings: Settings
    ) -> LoadedFamily:
        self.tried += [probe.name for probe in family.probes]
        taken = family.name != "gpu" or not self.refuses_gpu
        names = {probe.name for probe in family.probes if taken} - self.refused
        links = {name: BpfLink(0) for name in names}
        for link in links.values():
            link._pointer = None
        statuses = tuple(
            ProbeStatus(family.name, probe.name, taken, "" if taken else "refused", probe.blind_to)
            for probe in family.probes
        )
        return LoadedFamily(None, links, statuses)


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> FakeLoader:
    found = FakeLoader()
    monkeypatch.setattr(attach, "load_family", found.load)
    return found


def _host(root: Path, *modules: str) -> Path:
    for name in modules:
        (root / "sys/module" / name).mkdir(parents=True)
    return root


def _attached(root: Path) -> Attachments:
    return Attachments({}, Settings(), root, pin_driver=False)


GPU_PROBES = {probe.name for probe in families.GPU.probes}


def test_attachments__what_hangs_on_a_module_is_not_tried_before_it_is_there(
    loader: FakeLoader, tmp_path: Path
) -> None:
    found = _attached(_host(tmp_path))
    assert not GPU_PROBES & set(loader.tried)
    assert {"on_console", "on_aer", "on_health"} <= set(loader.tried)
    reasons = {status.probe: status.reason for status in found.statuses if not status.attached}
    assert reasons == {
        **dict.fromkeys(GPU_PROBES, "the module nvidia is not loaded"),
        "on_rdma": "the module ib_core is not loaded",
    }
    kinds = {status.refusal for status in found.statuses}
    assert kinds == {None, Refusal.NO_DRIVER}
    assert not found.driver_waits


def test_attachments__a_driver_that_comes_is_attached_to_once(
    loader: FakeLoader, tmp_path: Path
) -> None:
    found = _attached(_host(tmp_path))
    _host(tmp_path, "nvidia")
    waits = [found.driver_waits]
    found.reload_gpu()
    waits.append(found.driver_waits)
    assert waits == [True, False]
    assert set(loader.tried) >= GPU_PROBES
    assert {status.attached for status in found.statuses if status.family == "gpu"} == {True}


def test_attachments__a_kernel_that_always_refuses_is_not_asked_for_ever(
    loader: FakeLoader, tmp_path: Path
) -> None:
    loader.refuses_gpu = True
    found = _attached(_host(tmp_path, "nvidia"))
    tries = 0
    while found.driver_waits:
        found.reload_gpu()
        tries += 1
    assert tries == 5
    loader.refuses_gpu = False
    found.reload_gpu()
    assert any(status.attached for status in found.statuses if status.family == "gpu")


def test_attachments__a_severity_that_is_not_known_ends_nothing(
    loader: FakeLoader, tmp_path: Path
) -> None:
    """The kernel names a fourth one, DPC_FATAL, and never reports it."""
    value = wire.AerValue(total=3)
    value.bit_count[6] = 3
    entries = {bytes(wire.AerKey(severity=number)): bytes(value) for number in (2, 3)}
    found = _attached(_host(tmp_path))
    loaded = found._loaded["pcie"]
    counted = SimpleNamespace(maps={"aer_totals": entries}, close=lambda: None)
    found._loaded["pcie"] = replace(loaded, object=cast("Any", counted))
    (reported,) = found.aer_totals()
    assert (reported.severity, reported.total, reported.status) == (AerSeverity.CORRECTED, 3, 0x40)


@pytest.mark.parametrize(
    ("refused", "worked", "probe"),
    [
        (set(), True, "on_stored"),
        ({"on_stored"}, False, "on_console"),
        ({"on_continued"}, False, "on_console"),
    ],
    ids=["probed", "no kprobes", "half of them"],
)
def test_attachments__lines_are_taken_from_their_storage_or_from_the_console(
    loader: FakeLoader, tmp_path: Path, refused: set[str], worked: bool, probe: str
) -> None:
    """Never from both: each line would be reported twice."""
    found = _attached(_host(tmp_path))
    loader.refused = refused
    assert found.probe_stored_lines() is worked
    attached = {status.probe for status in found.statuses if status.family == "log"}
    assert attached == {probe, "on_module_load", "on_module_free"} | (
        {"on_continued"} if worked else set()
    )
