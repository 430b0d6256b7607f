"""Loads and attaches the device families: some once, some again whenever their driver is loaded."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from kcover_ebpf.devices import families
from kcover_ebpf.facts.devices import AerTotal, Rung
from kcover_ebpf.kernel.libbpf import kept_memory
from kcover_ebpf.kernel.maps import BpfMap
from kcover_ebpf.kernel.probes import (
    Family,
    LoadedFamily,
    Probe,
    ProbeStatus,
    Refusal,
    load_family,
)
from kcover_ebpf.kernel.records import device_wire as wire
from kcover_ebpf.kernel.records.device_decode import SEVERITIES, text_of
from kcover_ebpf.settings import Settings

_MODULES = {
    "on_rdma": families.NIC_MODULE,
    "on_xid_tracepoint": families.GPU_MODULE,
    **{probe.name: families.GPU_MODULE for probe in families.GPU.probes},
}
"""Probes that have nothing to attach to while this kernel module is not loaded."""

_MOST_REFUSALS = 5
"""A driver that is just being loaded may refuse once or twice; a kernel without kprobes always refuses."""


class Attachments:
    """The attached device families; they share their maps with the base family."""

    def __init__(
        self, maps: Mapping[str, BpfMap], settings: Settings, root: Path, *, pin_driver: bool
    ) -> None:
        self._maps, self._settings = maps, settings
        self._modules = root / "sys/module"
        self._gpu = families.GPU_PINNED if pin_driver else families.GPU
        self._loaded: dict[str, LoadedFamily] = {}
        self._refused_count = 0
        with kept_memory():
            for family in (*families.ALWAYS, families.NIC, self._gpu):
                self._load(family)

    def _load(self, family: Family) -> None:
        if (before := self._loaded.pop(family.name, None)) is not None:
            before.close()
        # skipped, because even a failed attempt would add some 10 ms to each start
        ready = tuple(probe for probe in family.probes if self._has_module_of(probe.name))
        loaded = LoadedFamily(None, {}, ())
        if ready:
            loaded = load_family(replace(family, probes=ready), self._maps, self._settings)
        waiting = tuple(_waiting(family, probe) for probe in family.probes if probe not in ready)
        self._loaded[family.name] = replace(loaded, statuses=loaded.statuses + waiting)

    def reload_gpu(self) -> None:
        """Detach and reattach the probes on the GPU driver."""
        self._load(self._gpu)
        refused = not self._loaded["gpu"].links and self._has_module(families.GPU_MODULE)
        self._refused_count = self._refused_count + 1 if refused else 0

    def reload_nic(self) -> None:
        """Detach and reattach the probes on the RDMA core."""
        self._load(families.NIC)

    def probe_stored_lines(self) -> bool:
        """Report each kernel log line when it is stored instead of when the console prints it; False if refused."""
        self._load(families.LOG_STORED)
        if {"on_stored", "on_continued"} <= self._loaded["log"].links.keys():
            return True
        self._load(families.LOG)
        return False

    @property
    def statuses(self) -> tuple[ProbeStatus, ...]:
        """The state of each probe; if its driver is not loaded, the status gives that as the reason."""
        return tuple(status for family in self._loaded.values() for status in family.statuses)

    def _has_module_of(self, probe: str) -> bool:
        return probe not in _MODULES or self._has_module(_MODULES[probe])

    def _has_module(self, name: str) -> bool:
        return (self._modules / name).exists()

    @property
    def driver_waits(self) -> bool:
        """True if the GPU driver is loaded but no probe is attached to it yet. False after too many refusals."""
        may_work = self._refused_count < _MOST_REFUSALS and not self._loaded["gpu"].links
        return may_work and self._has_module(families.GPU_MODULE)

    @property
    def rung(self) -> Rung | None:
        """The rung of the Xid ladder that probes on the driver's own functions provide; None without such probes."""
        links = self._loaded["gpu"].links
        if "on_xid_tracepoint" in links:
            return Rung.TRACEPOINT
        return Rung.KPROBE if "on_xid" in links else None

    def aer_totals(self) -> Iterator[AerTotal]:
        """Error counts since the start, for each device and severity."""
        loaded = self._loaded["pcie"]
        if loaded.object is None or not loaded.links:
            return
        now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        for key, value in loaded.object.maps["aer_totals"].items():
            aer_key = wire.AerKey.from_buffer_copy(key)
            what_value = wire.AerValue.from_buffer_copy(value)
            if (severity := SEVERITIES.get(aer_key.severity)) is not None:
                bits = sum(1 << bit for bit in range(32) if what_value.bit_count[bit])
                yield AerTotal(now_ns, text_of(aer_key.device), severity, bits, what_value.total)

    def close(self) -> None:
        """Detach all probes and unload their objects; the maps of the base family stay."""
        for family in self._loaded.values():
            family.close()
        self._loaded.clear()


def _waiting(family: Family, probe: Probe) -> ProbeStatus:
    reason = f"the module {_MODULES[probe.name]} is not loaded"
    return ProbeStatus(
        family.name,
        probe.name,
        attached=False,
        reason=reason,
        blind_to=probe.blind_to,
        refusal=Refusal.NO_DRIVER,
    )
