"""Readings by NVML, with a thread for each GPU, so that one that does not answer does not delay the others."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from kcover_ebpf.devices.nvml_library import initialise
from kcover_ebpf.devices.telemetry.reading import GpuProcess, GpuReading
from kcover_ebpf.tunables.devices import NVML_AGAIN_S, NVML_SLOW_READINGS_S, NVML_STUCK_S

_ALL_LINKS = 0xFFFFFFFF
_KIB = 1024
_MHZ = 1_000_000
_LINKS = (((138, _ALL_LINKS), _KIB), ((139, _ALL_LINKS), _KIB), (197, 1), (198, 1))
"""NVLink sent and received, PCIe sent and received: field number (nvml.h; older bindings lack the
names), unit in bytes."""


class NvmlSource:
    """All GPUs of this host. The constructor raises the binding's errors if NVML cannot be used, and may hang."""

    def __init__(self, nvml: Any, root: Path, period_s: float) -> None:
        initialise(nvml, root)
        count = nvml.nvmlDeviceGetCount()
        self._gpus = [_Gpu(nvml, index, period_s) for index in range(count)]

    def readings(self) -> list[GpuReading]:
        """The last reading of each GPU; never waits."""
        return [gpu.latest() for gpu in self._gpus]


class _Gpu:
    """One GPU; its own thread reads it from creation on and may hang in a call forever."""

    def __init__(self, nvml: Any, index: int, period_s: float) -> None:
        self._nvml, self._index, self._period_s = nvml, index, period_s
        self._handle: Any = None
        self._known = GpuReading(gpu=str(index))
        """Its identity, and values that are read rarely."""
        self._last = self._known
        self._asked: tuple[str, float] | None = None
        self._slow_due_s = 0.0
        threading.Thread(target=self._work, name=f"gpu-{index}", daemon=True).start()

    def latest(self) -> GpuReading:
        """The last reading; if the GPU does not answer, a reading that says which call hangs."""
        asked = self._asked
        if asked is not None and time.monotonic() - asked[1] > NVML_STUCK_S:
            return replace(_identity(self._known), unanswered=asked[0])
        return self._last

    def _work(self) -> None:
        due_s = time.monotonic()
        while True:
            pause_s = self._period_s
            try:
                if self._handle is None:
                    self._meet()
                self._last = self._read()
            except self._nvml.NVMLError as error:
                self._handle = None
                self._last = replace(_identity(self._known), unanswered=f"NVML: {error}")
                pause_s = NVML_AGAIN_S
            due_s = max(due_s + pause_s, time.monotonic() + 0.1)
            time.sleep(max(due_s - time.monotonic(), 0.0))

    def _ask(self, name: str, *arguments: Any) -> Any:
        """The answer; None if not supported. Raises `NVMLError` if the GPU is gone."""
        nvml = self._nvml
        call = getattr(nvml, name, None)  # older bindings lack some functions
        if call is None:
            return None
        self._asked = name, time.monotonic()
        try:
            return call(*arguments)
        except (nvml.NVMLError_GpuIsLost, nvml.NVMLError_Uninitialized):
            raise
        except nvml.NVMLError:
            return None
        finally:
            self._asked = None

    def _meet(self) -> None:
        self._asked = "nvmlDeviceGetHandleByIndex", time.monotonic()
        try:
            self._handle = handle = self._nvml.nvmlDeviceGetHandleByIndex(self._index)
        finally:
            self._asked = None
        pci = self._ask("nvmlDeviceGetPciInfo", handle)
        self._known = GpuReading(
            gpu=str(self._index),
            uuid=_text(self._ask("nvmlDeviceGetUUID", handle)),
            pci_bus_id="" if pci is None else _text(pci.busId).upper(),
            model=_text(self._ask("nvmlDeviceGetName", handle)),
            serial=_text(self._ask("nvmlDeviceGetSerial", handle)),
        )
        self._slow_due_s = 0.0

    def _read(self) -> GpuReading:
        began_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        if time.monotonic() >= self._slow_due_s:
            self._slow_due_s = time.monotonic() + NVML_SLOW_READINGS_S
            self._known = self._slowly()
        nvml, handle = self._nvml, self._handle
        rates = self._ask("nvmlDeviceGetUtilizationRates", handle)
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle, nvml.nvmlMemory_v2)
        power_mw = self._ask("nvmlDeviceGetPowerUsage", handle)
        links = self._links()
        return replace(
            self._known,
            boottime_ns=began_ns,
            utilization=None if rates is None else rates.gpu / 100,
            memory_utilization=None if rates is None else rates.memory / 100,
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total),
            power_w=None if power_mw is None else power_mw / 1000,
            sm_clock_hz=self._clock(nvml.NVML_CLOCK_SM),
            memory_clock_hz=self._clock(nvml.NVML_CLOCK_MEM),
            throttle=self._throttle(),
            temperature_c=self._ask("nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU),
            nvlink_sent_bytes=links[0],
            nvlink_received_bytes=links[1],
            pcie_sent_bytes=links[2],
            pcie_received_bytes=links[3],
        )

    def _clock(self, which: int) -> int | None:
        mhz = self._ask("nvmlDeviceGetClockInfo", self._handle, which)
        return None if mhz is None else mhz * _MHZ

    def _throttle(self) -> int | None:
        """Bits of the reasons that lower the clocks now; None if not supported."""
        reasons = self._ask("nvmlDeviceGetCurrentClocksEventReasons", self._handle)
        if reasons is None:  # drivers before 535 have only the older name
            reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", self._handle)
        return None if reasons is None else int(reasons)

    def _links(self) -> list[int | None]:
        """Counter values in the order of `_LINKS`; None for each that this GPU or driver lacks."""
        fields = [field for field, _ in _LINKS]
        answers = self._ask("nvmlDeviceGetFieldValues", self._handle, fields)
        if answers is None:
            return [None] * len(_LINKS)
        return [
            int(answer.value.ullVal) * unit if answer.nvmlReturn == 0 else None
            for (_, unit), answer in zip(_LINKS, answers, strict=True)
        ]

    def _slowly(self) -> GpuReading:
        nvml, handle = self._nvml, self._handle
        limit_mw = self._ask("nvmlDeviceGetEnforcedPowerLimit", handle)
        found = self._ask("nvmlDeviceGetComputeRunningProcesses", handle) or ()
        return replace(
            self._known,
            power_limit_w=None if limit_mw is None else limit_mw / 1000,
            ecc_corrected_count=self._ecc(nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            ecc_uncorrected_count=self._ecc(nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
            processes=tuple(GpuProcess(item.pid, item.usedGpuMemory) for item in found),
        )

    def _ecc(self, kind: int) -> int | None:
        count = self._ask(
            "nvmlDeviceGetTotalEccErrors", self._handle, kind, self._nvml.NVML_VOLATILE_ECC
        )
        return None if count is None else int(count)


def _identity(known_reading: GpuReading) -> GpuReading:
    return GpuReading(
        known_reading.gpu,
        known_reading.uuid,
        known_reading.pci_bus_id,
        model=known_reading.model,
        serial=known_reading.serial,
    )


def _text(raw: Any) -> str:
    if raw is None:
        return ""
    return raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw)
