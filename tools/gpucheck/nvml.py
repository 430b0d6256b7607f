"""Part 2: what a call of NVML costs. By ctypes, so that it needs no package (nvml.h)."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable
from typing import Any

from tools.gpucheck.plan import Notes, NotPossible, Plan

LIBRARY = "libnvidia-ml.so.1"
CALLS = 100
_NVLINK_FIELDS = (138, 139)
"""NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX and _RX."""
_ALL_LINKS = 0xFFFFFFFF


class _Field(ctypes.Structure):
    """nvmlFieldValue_t."""

    _fields_ = (
        ("field", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("timestamp_us", ctypes.c_longlong),
        ("latency_us", ctypes.c_longlong),
        ("type", ctypes.c_uint),
        ("result", ctypes.c_int),
        ("value", ctypes.c_ulonglong),
    )


class Nvml:
    """The first device of libnvidia-ml.so.1."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise NotPossible(f"{LIBRARY} cannot be loaded ({error})") from None
        self._device = ctypes.c_void_p()
        if code := self._call("nvmlInit_v2"):
            raise NotPossible(f"nvmlInit_v2 failed with {code}")
        if code := self._call("nvmlDeviceGetHandleByIndex_v2", 0, ctypes.byref(self._device)):
            raise NotPossible(f"nvmlDeviceGetHandleByIndex_v2 failed with {code}")

    def _call(self, name: str, *arguments: object) -> int:
        try:
            return int(getattr(self._library, name)(*arguments))
        except AttributeError:
            raise NotPossible(f"{LIBRARY} has no {name}") from None

    def of_device(self, name: str, *arguments: object) -> int:
        return self._call(name, self._device, *arguments)

    def fields(self) -> int:
        """Read both counters of all NVLinks; the first failure of a field counts as failure of the call."""
        asked = (_Field * len(_NVLINK_FIELDS))()
        for item, number in zip(asked, _NVLINK_FIELDS, strict=True):
            item.field, item.scope = number, _ALL_LINKS
        code = self.of_device("nvmlDeviceGetFieldValues", len(asked), ctypes.byref(asked))
        return code or next((int(field.result) for field in asked if field.result), 0)


def _questions(nvml: Nvml) -> dict[str, Callable[[], int]]:
    words = (ctypes.c_ulonglong * 64)()
    many = (ctypes.c_ubyte * 65536)()

    def counted() -> int:
        count = ctypes.c_uint(256)
        return nvml.of_device("nvmlDeviceGetComputeRunningProcesses_v3", ctypes.byref(count), many)

    def value(name: str, *before: int) -> Callable[[], int]:
        return lambda: nvml.of_device(name, *before, words)

    return {
        "utilisation": value("nvmlDeviceGetUtilizationRates"),
        "memory": value("nvmlDeviceGetMemoryInfo"),
        "power": value("nvmlDeviceGetPowerUsage"),
        "energy": value("nvmlDeviceGetTotalEnergyConsumption"),
        "clock of the multiprocessors": value("nvmlDeviceGetClockInfo", 1),
        "reasons for throttling": value("nvmlDeviceGetCurrentClocksThrottleReasons"),
        "temperature": value("nvmlDeviceGetTemperature", 0),
        "PCIe bytes sent": value("nvmlDeviceGetPcieThroughput", 0),
        "PCIe bytes received": value("nvmlDeviceGetPcieThroughput", 1),
        "PCIe replays": value("nvmlDeviceGetPcieReplayCounter"),
        "state of NVLink 0": value("nvmlDeviceGetNvLinkState", 0),
        "bytes of all NVLinks": nvml.fields,
        "ECC errors, uncorrected": value("nvmlDeviceGetTotalEccErrors", 1, 0),
        "compute processes": counted,
    }


def measure(plan: Plan, notes: Notes) -> None:
    began_s = time.perf_counter()
    nvml = Nvml()
    notes.add("load and initialise", {"ms": round((time.perf_counter() - began_s) * 1e3, 3)})
    for name, question in _questions(nvml).items():
        notes.add(name, _cost(question))


def _cost(question: Callable[[], int]) -> dict[str, Any]:
    """Median and maximum of `CALLS` calls in microseconds; also the result code if it is an error."""
    taken_us = []
    for _ in range(CALLS):
        began_s = time.perf_counter()
        try:
            code = question()
        except NotPossible as problem:
            return {"not possible here": str(problem)}
        taken_us.append((time.perf_counter() - began_s) * 1e6)
        if code:
            return {"not possible here": f"NVML answers {code}", "us": round(taken_us[-1], 1)}
    return {
        "calls": CALLS,
        "median_us": round(statistics.median(taken_us), 1),
        "max_us": round(max(taken_us), 1),
    }
