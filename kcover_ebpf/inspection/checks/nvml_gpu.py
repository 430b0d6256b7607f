"""One GPU by NVML: each aspect is a method that yields nothing where all is well.

What a GPU or a library does not support is no finding. Numbers of errors, reasons and states: nvml.h.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kcover_ebpf.inspection.result import CheckFinding, failed, unknown, warned

_RETIRED_PAGES = 60
"""NVIDIA replaces a GPU with so many retired pages (Dynamic Page Retirement, "RMA policy")."""
_NEAR_CELSIUS = 5
"""Degrees below the slow-down temperature from which on it is reported."""
_ACTIONS = {
    1: "GPU reset",
    2: "node reboot",
    3: "drain of peer-to-peer traffic",
    4: "drain and GPU reset",
    5: "recovery of the IMEX domain",
    6: "bus reset",
    7: "system reboot",
}
_RESET = "drain the node and reset the GPU (nvidia-smi --gpu-reset)"
_REPLACE = "drain the node and have the GPU replaced"
_COOL = "check fans, air flow and power supply of the node"
_RESEAT = "reseat or replace the GPU, riser or cable"


@dataclass(frozen=True, slots=True)
class Counters:
    """Readings of what should not grow, by name."""

    values: Mapping[str, int]


class CheckedGpu:
    """A handle of NVML with its name for people."""

    def __init__(self, nvml: Any, handle: Any, name: str, address: str) -> None:
        self._nvml = nvml
        self._handle = handle
        self.name = name
        self.address = address
        """On the PCI bus, as the kernel writes it."""

    def _ask(self, function: str, *arguments: Any) -> Any:
        """What NVML answers; None where it is not supported."""
        ask = getattr(self._nvml, function, None)
        if ask is None:
            return None
        try:
            return ask(self._handle, *arguments)
        except (self._nvml.NVMLError_NotSupported, self._nvml.NVMLError_FunctionNotFound):
            return None

    def summary(self) -> str:
        """The figures of a healthy GPU."""
        width = self._ask("nvmlDeviceGetCurrPcieLinkWidth")
        links = len(self.links())
        degrees = self._ask("nvmlDeviceGetTemperature", self._nvml.NVML_TEMPERATURE_GPU)
        return f"PCIe x{width or '?'}, {links} NVLinks up, {'?' if degrees is None else degrees} C"

    def findings(self) -> Iterator[CheckFinding]:
        """What one reading shows."""
        aspects: tuple[Callable[[], Iterator[CheckFinding]], ...] = (
            self._recovery,
            self._ecc,
            self._remapped_rows,
            self._retired_pages,
            self._pcie,
            self._throttling,
            self._temperature,
            self._fabric,
            self._modes,
        )
        for aspect in aspects:
            try:
                yield from aspect()
            except self._nvml.NVMLError_GpuIsLost:
                yield failed("the GPU is lost: it has left the bus", "drain the node and reboot it")
                return
            except self._nvml.NVMLError as error:
                what = aspect.__name__.strip("_").replace("_", " ")
                yield unknown(f"{what}: NVML: {error}", "look for errors of the driver in dmesg")

    def _recovery(self) -> Iterator[CheckFinding]:
        field = getattr(self._nvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
        values = None if field is None else self._ask("nvmlDeviceGetFieldValues", [field])
        if values is None or values[0].nvmlReturn != self._nvml.NVML_SUCCESS:
            return
        if action := values[0].value.uiVal:
            words = _ACTIONS.get(action, f"action {action}")
            yield failed(
                f"the driver asks for a recovery: {words}", f"drain the node; then: {words}"
            )

    def _ecc(self) -> Iterator[CheckFinding]:
        count = self._ask(
            "nvmlDeviceGetTotalEccErrors",
            self._nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            self._nvml.NVML_VOLATILE_ECC,
        )
        if count:
            yield failed(f"{count} uncorrected ECC error(s) since the driver was loaded", _RESET)

    def _remapped_rows(self) -> Iterator[CheckFinding]:
        rows = self._ask("nvmlDeviceGetRemappedRows")
        if rows is None:
            return
        _, uncorrected, pending, failure = rows
        if failure:
            text = f"a memory row could not be remapped ({uncorrected} rows are)"
            yield failed(text, _REPLACE)
        elif pending:
            yield warned("a remapped memory row waits for a reset", _RESET)

    def _retired_pages(self) -> Iterator[CheckFinding]:
        causes = range(self._nvml.NVML_PAGE_RETIREMENT_CAUSE_COUNT)
        count = sum(len(self._ask("nvmlDeviceGetRetiredPages", cause) or ()) for cause in causes)
        if count >= _RETIRED_PAGES:
            yield failed(f"{count} retired pages of memory", _REPLACE)
        elif self._ask("nvmlDeviceGetRetiredPagesPendingStatus"):
            yield warned("a page of memory waits for a reset to be retired", _RESET)

    def _pcie(self) -> Iterator[CheckFinding]:
        width = self._ask("nvmlDeviceGetCurrPcieLinkWidth")
        most = self._ask("nvmlDeviceGetMaxPcieLinkWidth")
        if width and most and width < most:
            yield failed(f"PCIe link x{width} of x{most}", _RESEAT)
        # An idle GPU lowers its generation to save power; P0 is the state of full performance.
        if self._ask("nvmlDeviceGetPerformanceState") != 0:
            return
        generation = self._ask("nvmlDeviceGetCurrPcieLinkGeneration")
        highest = self._ask("nvmlDeviceGetMaxPcieLinkGeneration")
        if generation and highest and generation < highest:
            text = f"PCIe generation {generation} of {highest} at full performance"
            yield warned(text, _RESEAT)

    def _throttling(self) -> Iterator[CheckFinding]:
        reasons = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if reasons is None:  # drivers before 535 have the older name alone
            reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
        known = {
            "heat, by hardware": self._nvml.nvmlClocksThrottleReasonHwThermalSlowdown,
            "power brake": self._nvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown,
            "heat, by software": self._nvml.nvmlClocksThrottleReasonSwThermalSlowdown,
        }
        found = [words for words, bit in known.items() if reasons & bit]
        if not found and reasons & self._nvml.nvmlClocksThrottleReasonHwSlowdown:
            found = ["hardware slow-down"]
        if found:
            yield warned(f"clocks are throttled: {', '.join(found)}", _COOL)

    def _temperature(self) -> Iterator[CheckFinding]:
        degrees = self._ask("nvmlDeviceGetTemperature", self._nvml.NVML_TEMPERATURE_GPU)
        limit = self._ask(
            "nvmlDeviceGetTemperatureThreshold", self._nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
        )
        if degrees is None or not limit:
            return
        if degrees >= limit:
            yield failed(f"{degrees} C, the GPU slows down at {limit} C", _COOL)
        elif degrees >= limit - _NEAR_CELSIUS:
            yield warned(f"{degrees} C, the GPU slows down at {limit} C", _COOL)

    def _fabric(self) -> Iterator[CheckFinding]:
        structure = getattr(self._nvml, "c_nvmlGpuFabricInfoV_t", None)
        if structure is None:
            return
        info = structure()
        if self._ask("nvmlDeviceGetGpuFabricInfoV", ctypes.byref(info)) is None:
            return
        if info.state == self._nvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED:
            return
        if info.state != self._nvml.NVML_GPU_FABRIC_STATE_COMPLETED or info.status:
            text = (
                f"not registered with the NVLink fabric (state {info.state}, status {info.status})"
            )
            yield failed(text, "check the fabric manager: systemctl status nvidia-fabricmanager")

    def _modes(self) -> Iterator[CheckFinding]:
        if self._ask("nvmlDeviceGetPersistenceMode") == 0:
            text = "persistence mode is off: the driver is loaded anew for each job"
            yield warned(text, "run nvidia-persistenced, or nvidia-smi -pm 1")
        modes = self._ask("nvmlDeviceGetEccMode")
        if modes is not None and modes[0] == 0:
            yield warned(
                "ECC is off: a flipped bit stays unnoticed", "nvidia-smi -e 1, then reboot"
            )

    def links(self) -> list[int]:
        """The NVLinks that are up; none where the GPU has none."""
        up = []
        for link in range(self._nvml.NVML_NVLINK_MAX_LINKS):
            try:
                state = self._ask("nvmlDeviceGetNvLinkState", link)
            except self._nvml.NVMLError:  # invalid argument: the last link was the one before
                break
            if state == self._nvml.NVML_FEATURE_ENABLED:
                up.append(link)
        return up

    def missing_links(self, most_links: int) -> Iterator[CheckFinding]:
        """Compared with the other GPUs of the node: how many a board wires up, NVML does not say."""
        count = len(self.links())
        if count < most_links:
            text = f"{count} NVLinks are up, another GPU of this node has {most_links}"
            yield failed(text, "check the fabric manager and dmesg for Xid 74; then reset the GPU")

    def counters(self) -> Counters:
        """What should not grow, now."""
        found: dict[str, int] = {}
        try:
            if (replays := self._ask("nvmlDeviceGetPcieReplayCounter")) is not None:
                found["PCIe replays"] = replays
            for link in self.links():
                for kind, number in (("replays", 0), ("recoveries", 1), ("CRC errors", 2)):
                    count = self._ask("nvmlDeviceGetNvLinkErrorCounter", link, number)
                    if count is not None:
                        found[f"{kind} of NVLink {link}"] = count
        except self._nvml.NVMLError:
            # What was read counts all the same; a GPU that is lost is reported by its findings.
            return Counters(found)
        return Counters(found)

    def growth(self, before: Counters) -> Iterator[CheckFinding]:
        """What has grown since, and NVLinks that ever had to recover."""
        after = self.counters().values
        for name, count in after.items():
            grown = count - before.values.get(name, count)
            if grown > 0:
                yield warned(f"{name} grew by {grown} within a second", _RESEAT)
            elif count and name.startswith("recoveries"):
                yield warned(f"{count} {name} since the driver was loaded", _RESEAT)
