"""One GPU by NVML: each aspect is a method that yields nothing if the GPU is healthy.

Values that a GPU or library does not support cause no finding. Meaning of the calls: NVIDIA's NVML API reference;
numbers of errors, reasons and states: nvml.h.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.inspection.result import CheckFinding, failed, unknown, warned
from kcover_ebpf.tunables.inspection import BUSY_SHARE, POWER_LIMIT_SHARE, SM_CLOCK_SHARE

_RETIRED_PAGES = 60
"""NVIDIA replaces a GPU with this many retired pages (Dynamic Page Retirement, "RMA policy")."""
_NEAR_CELSIUS = 5
"""Degrees below the slow-down temperature at which a warning begins."""
_ACTIONS = {
    1: "GPU reset",
    2: "node reboot",
    3: "drain of peer-to-peer traffic",
    4: "drain and GPU reset",
    5: "recovery of the IMEX domain",
    6: "bus reset",
    7: "system reboot",
}
_FABRIC_HEALTH = (
    (4, "a route is unhealthy", failed),
    (0, "its bandwidth is degraded", warned),
    (2, "a route is being recovered", warned),
    (6, "an access time-out is being recovered", warned),
)
"""Shift of each two-bit field in the health mask -> text and severity; 1 is yes, 2 no, 0 not
supported. A recovery in progress ends by itself."""
_FABRIC_SETUP_SHIFT = 8
_FABRIC_SETUP_MASK = 0b1111
_FABRIC_SETUP_RIGHT = 1
"""Value of the configuration field in the health mask; 0 is not supported, larger values are errors."""
_NO_PARTITION = 4
"""A GPU of a rack has no partition until an operator or a scheduler creates one: that is not a fault."""
_FABRIC_SETUP = {
    2: "wrong GUID of the system",
    3: "wrong serial number of the chassis",
    _NO_PARTITION: "no partition",
    5: "too few NVLinks",
    6: "the GPU's firmware does not fit",
    7: "invalid location",
    8: "invalid state of the GPU",
}
_LINK_COUNTERS = (("replays", 0), ("recoveries", 1), ("CRC errors", 2))
"""Counters of one NVLink: our name, and NVML's counter number."""
_LINK_FIELDS = (
    ("malformed packets", 206),
    ("packets lost for lack of buffers", 207),
    ("received errors", 208),
    ("integrity errors", 211),
    ("recoveries", 215),
    ("effective errors", 219),
)
"""Replacement for links without those counters: our name, and the field number (nvml.h; older
bindings lack the names)."""
_RESET = "drain the node, end what has the GPU open (docs/telemetry.md), and reset it (nvidia-smi --gpu-reset)"
_REPLACE = "drain the node and have the GPU replaced"
_COOL = "check fans, air flow and power supply of the node"
_RESEAT = "reseat or replace the GPU, riser or cable"
_RAISE_LIMIT = "if it was not lowered on purpose, see the BMC's limit, or raise it"
_FREE_CLOCK = (
    "reset locked clocks (nvidia-smi --reset-gpu-clocks); if the clock stays low, reset the GPU"
)
_SEE_FABRIC = "check the configuration of fabric manager and partitions, and see its log"
_SEE_LINKS = "see nvidia-smi nvlink --errorcounters, the switches' log and the fabric manager's"


@dataclass(frozen=True, slots=True)
class Counters:
    """Counter name -> value, for counters that should not grow."""

    values: Mapping[str, int]


class CheckedGpu:
    """One GPU: its NVML handle and its name for messages."""

    def __init__(self, nvml: Any, handle: Any, name: str, address: str) -> None:
        self._nvml = nvml
        self._handle = handle
        self.name = name
        self.address = address
        """PCI address in the kernel's form."""

    def _ask(self, function: str, *arguments: Any) -> Any:
        """The answer of NVML; None if not supported."""
        ask = getattr(self._nvml, function, None)
        if ask is None:
            return None
        try:
            return ask(self._handle, *arguments)
        except (self._nvml.NVMLError_NotSupported, self._nvml.NVMLError_FunctionNotFound):
            return None

    def summary(self) -> str:
        """The figures shown for a healthy GPU."""
        width = self._ask("nvmlDeviceGetCurrPcieLinkWidth")
        links = len(self.links())
        degrees = self._ask("nvmlDeviceGetTemperature", self._nvml.NVML_TEMPERATURE_GPU)
        draw, limit = self._power_figures()
        heat = "?" if degrees is None else degrees
        return f"PCIe x{width or '?'}, {links} NVLinks up, {heat} C, {_watts(draw)} of {_watts(limit)} W"

    def findings(self) -> Iterator[CheckFinding]:
        """Findings from one reading of all aspects."""
        aspects: tuple[Callable[[], Iterator[CheckFinding]], ...] = (
            self._recovery,
            self._ecc,
            self._remapped_rows,
            self._retired_pages,
            self._pcie,
            self._throttling,
            self._clocks,
            self._power,
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
                f"the driver requests a recovery action: {words}", f"drain the node; then: {words}"
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
        # An idle GPU lowers its link generation to save power; P0 is the state of full performance.
        if self._ask("nvmlDeviceGetPerformanceState") != 0:
            return
        generation = self._ask("nvmlDeviceGetCurrPcieLinkGeneration")
        highest = self._ask("nvmlDeviceGetMaxPcieLinkGeneration")
        if generation and highest and generation < highest:
            text = f"PCIe generation {generation} of {highest} at full performance"
            yield warned(text, _RESEAT)

    def _throttling(self) -> Iterator[CheckFinding]:
        reasons = self._reasons() or 0
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

    def _reasons(self) -> int | None:
        """Bits of the reasons that lower the clocks now; None if not supported."""
        reasons: int | None = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if reasons is None:  # drivers before 535 have only the older name
            reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return reasons

    def _clocks(self) -> Iterator[CheckFinding]:
        """The SM clock of a GPU that computes in P0, if NVML gives no reason for a lower clock.

        Without a reason, the clocks are as high as possible (nvml.h, `nvmlClocksThrottleReasonNone`).
        """
        rates = self._ask("nvmlDeviceGetUtilizationRates")
        if rates is None or rates.gpu < 100 * BUSY_SHARE:
            return
        if self._ask("nvmlDeviceGetPerformanceState") != 0:
            return
        before = self._reasons()
        clock = self._ask("nvmlDeviceGetClockInfo", self._nvml.NVML_CLOCK_SM)
        highest = self._highest_clock()
        # Read twice: a reason that ends or begins in between also explains the clock.
        after = self._reasons()
        if before is None or after is None or clock is None or highest is None:
            return
        # The application clock setting explains a clock down to that setting; the maximum includes
        # it.
        setting = self._nvml.nvmlClocksThrottleReasonApplicationsClocksSetting
        if (before | after) & ~setting == 0 and clock <= highest * SM_CLOCK_SHARE:
            text = f"SM clock of {clock} MHz while it is {rates.gpu}% busy, of {highest} MHz"
            yield warned(f"{text}; NVML gives no reason", _FREE_CLOCK)

    def _highest_clock(self) -> int | None:
        """Highest SM clock in MHz: the hardware's, or a lower application clock setting."""
        calls = ("nvmlDeviceGetMaxClockInfo", "nvmlDeviceGetApplicationsClock")
        clocks = [self._ask(call, self._nvml.NVML_CLOCK_SM) for call in calls]
        return min((clock for clock in clocks if clock), default=None)

    def _power(self) -> Iterator[CheckFinding]:
        """Compares the limit that the driver enforces, including out-of-band limits, with the GPU's default.

        A power draw at the limit is not a fault: a GPU under full load works like that.
        """
        draw, limit = self._power_figures()
        default = self._ask("nvmlDeviceGetPowerManagementDefaultLimit")
        if limit and default and limit < default * POWER_LIMIT_SHARE:
            watts = _watts(default)
            text = (
                f"power limit of {_watts(limit)} W, {watts} W by default; it draws {_watts(draw)} W"
            )
            yield warned(text, f"{_RAISE_LIMIT}: nvidia-smi --power-limit={watts}")

    def _power_figures(self) -> tuple[int | None, int | None]:
        """Power draw and enforced limit in milliwatts; None for each that is not supported."""
        calls = ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetEnforcedPowerLimit")
        draw, limit = (self._ask(call) for call in calls)
        return draw, limit

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
            return
        for shift, words, found in _FABRIC_HEALTH:
            if info.healthMask >> shift & 0b11 == 1:
                yield found(f"NVLink fabric: {words}", _SEE_LINKS)
        setup = info.healthMask >> _FABRIC_SETUP_SHIFT & _FABRIC_SETUP_MASK
        if setup > _FABRIC_SETUP_RIGHT:
            words = _FABRIC_SETUP.get(setup, f"number {setup}")
            judged = warned if setup == _NO_PARTITION else failed
            yield judged(f"NVLink fabric: wrong configuration: {words}", _SEE_FABRIC)

    def _modes(self) -> Iterator[CheckFinding]:
        if self._ask("nvmlDeviceGetPersistenceMode") == 0:
            text = "persistence mode is off: the driver is loaded again for each job"
            yield warned(text, "run nvidia-persistenced, or nvidia-smi -pm 1")
        modes = self._ask("nvmlDeviceGetEccMode")
        if modes is not None and modes[0] == 0:
            yield warned(
                "ECC is off: a flipped bit stays unnoticed", "nvidia-smi -e 1, then reboot"
            )

    @property
    def model(self) -> int | None:
        """PCI device and vendor id, which boards of one model share; None if it gives no answer."""
        try:
            info = self._ask("nvmlDeviceGetPciInfo")
        except self._nvml.NVMLError:
            return None
        return None if info is None else int(info.pciDeviceId)

    def links(self) -> list[int]:
        """Numbers of the NVLinks that are up; empty if the GPU has none."""
        up = []
        for link in range(self._nvml.NVML_NVLINK_MAX_LINKS):
            try:
                state = self._ask("nvmlDeviceGetNvLinkState", link)
            except self._nvml.NVMLError:  # invalid argument: the previous link was the last one
                break
            if state == self._nvml.NVML_FEATURE_ENABLED:
                up.append(link)
        return up

    def missing_links(self, most_links: int) -> Iterator[CheckFinding]:
        """Compares with the GPUs of its model on the node, because NVML does not report how many links a board has."""
        count = len(self.links())
        if count < most_links:
            text = f"{count} NVLinks are up, another GPU of this model has {most_links}"
            yield failed(text, "check the fabric manager and dmesg for Xid 74; then reset the GPU")

    def counters(self) -> Counters:
        """Current values of the counters that should not grow."""
        found: dict[str, int] = {}
        try:
            if (replays := self._ask("nvmlDeviceGetPcieReplayCounter")) is not None:
                found["PCIe replays"] = replays
            for link in self.links():
                for kind, count in self._link_errors(link).items():
                    found[f"{kind} of NVLink {link}"] = count
        except self._nvml.NVMLError:
            # keep what was read; that the GPU is lost is reported by its findings
            return Counters(found)
        return Counters(found)

    def _link_errors(self, link: int) -> dict[str, int]:
        """Counters of one NVLink; empty if neither call supports them."""
        found = {}
        for kind, number in _LINK_COUNTERS:
            # invalid argument: a counter that this generation of links does not have
            with contextlib.suppress(self._nvml.NVMLError_InvalidArgument):
                count = self._ask("nvmlDeviceGetNvLinkErrorCounter", link, number)
                if count is not None:
                    found[kind] = int(count)
        if found:
            return found
        fields = [(field, link) for _, field in _LINK_FIELDS]
        answers = self._ask("nvmlDeviceGetFieldValues", fields) or ()
        return {
            kind: int(answer.value.ullVal)
            for (kind, _), answer in zip(_LINK_FIELDS, answers, strict=False)
            if answer.nvmlReturn == self._nvml.NVML_SUCCESS
        }

    def growth(self, previous_counters: Counters) -> Iterator[CheckFinding]:
        """Findings for counters that have grown since `previous_counters`, and for NVLinks that ever had to recover."""
        after = self.counters().values
        for name, count in after.items():
            grown = count - previous_counters.values.get(name, count)
            if grown > 0:
                yield warned(f"{name} grew by {grown} within a second", _RESEAT)
            elif count and name.startswith("recoveries"):
                yield warned(f"{count} {name} since the driver was loaded", _RESEAT)


def _watts(milliwatts: int | None) -> str:
    return "?" if milliwatts is None else f"{milliwatts / 1000:.0f}"
