"""Readings from the /metrics of a running dcgm-exporter.

The exporter collects every 30 s by default, so values may be that old. GPUs of another node are skipped: a Service
may lead to any exporter.
"""

from __future__ import annotations

import http.client
import math
import time
from collections.abc import Callable, Collection
from typing import Any
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from kcover_ebpf.devices.telemetry.reading import GpuReading
from kcover_ebpf.errors import UsageError
from kcover_ebpf.tunables.devices import DCGM_TIMEOUT_S

_MOST_BYTES = 4 << 20
"""Most bytes of an answer; an exporter of eight GPUs writes 0.1 MB."""
_MIB = 1 << 20
_MHZ = 1_000_000
_FIELDS: dict[str, tuple[str, Callable[[float], Any]]] = {
    "DCGM_FI_DEV_GPU_UTIL": ("utilization", lambda percent: percent / 100),
    "DCGM_FI_DEV_MEM_COPY_UTIL": ("memory_utilization", lambda percent: percent / 100),
    "DCGM_FI_DEV_FB_USED": ("memory_used_bytes", lambda mib: int(mib) * _MIB),
    "DCGM_FI_DEV_FB_TOTAL": ("memory_total_bytes", lambda mib: int(mib) * _MIB),
    "DCGM_FI_DEV_POWER_USAGE": ("power_w", float),
    "DCGM_FI_DEV_POWER_MGMT_LIMIT": ("power_limit_w", float),
    "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": ("power_limit_w", float),
    "DCGM_FI_DEV_SM_CLOCK": ("sm_clock_hz", lambda mhz: int(mhz) * _MHZ),
    "DCGM_FI_DEV_MEM_CLOCK": ("memory_clock_hz", lambda mhz: int(mhz) * _MHZ),
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": ("throttle", int),
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": ("throttle", int),
    "DCGM_FI_DEV_GPU_TEMP": ("temperature_c", float),
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": ("ecc_corrected_count", int),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": ("ecc_uncorrected_count", int),
}
"""Metric of the exporter -> field of `GpuReading` and conversion to its unit."""
_USED, _FREE, _RESERVED = "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_RESERVED"
"""Parts of the memory in MiB; by default the exporter has only the first two."""
_RATES = {
    "DCGM_FI_PROF_NVLINK_TX_BYTES": "nvlink_sent_bytes",
    "DCGM_FI_PROF_NVLINK_RX_BYTES": "nvlink_received_bytes",
    "DCGM_FI_PROF_PCIE_TX_BYTES": "pcie_sent_bytes",
    "DCGM_FI_PROF_PCIE_RX_BYTES": "pcie_received_bytes",
}
"""Rates in bytes per second; they are integrated to counters like NVML's."""


def checked(url: str, option: str) -> str:
    """The URL of an exporter; raises `UsageError`, whose message begins with the option."""
    try:
        parts = urlsplit(url)
        good = parts.scheme == "http" and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise UsageError(
            f"{option} {url!r} is not the URL of a dcgm-exporter; write http://ADDRESS:9400/metrics"
        )
    return url


class DcgmSource:
    """Reads one exporter; `own`: UUIDs of the GPUs of this node."""

    def __init__(self, url: str, own: Collection[str]) -> None:
        self._url, self._own = urlsplit(url), frozenset(own)
        self._moved: dict[tuple[str, str], float] = {}
        self._read_s: float | None = None

    def readings(self) -> list[GpuReading]:
        """The exporter's current values for each GPU; raises `OSError`, or `ValueError` if they cannot be parsed."""
        began_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        text = self._fetched()
        now_s, before_s = time.monotonic(), self._read_s
        self._read_s = now_s
        found: dict[str, dict[str, Any]] = {}
        parts_mib: dict[str, dict[str, int]] = {}
        foreign = False
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                uuid = sample.labels.get("UUID", "")
                # a MIG instance has its own series
                if not uuid or sample.labels.get("GPU_I_ID") or not math.isfinite(sample.value):
                    continue
                if uuid not in self._own:
                    foreign = True
                    continue
                gpu = found.setdefault(uuid, _identity(sample.labels))
                self._take(gpu, sample.name, sample.value, now_s - (before_s or now_s))
                if sample.name in (_USED, _FREE, _RESERVED):
                    parts_mib.setdefault(uuid, {})[sample.name] = int(sample.value)
        if foreign and not found:
            raise ValueError("its GPUs are those of another node")
        for uuid, parts in parts_mib.items():
            found[uuid].setdefault("memory_total_bytes", _total_bytes(parts))
        return [GpuReading(**fields, boottime_ns=began_ns) for fields in found.values()]

    def _take(self, gpu: dict[str, Any], name: str, value: float, passed_s: float) -> None:
        if name in _FIELDS:
            field, in_our_unit = _FIELDS[name]
            gpu[field] = in_our_unit(value)
        elif name in _RATES:
            key = gpu["uuid"], _RATES[name]
            moved = self._moved.get(key, 0.0) + value * passed_s
            if math.isfinite(moved):
                self._moved[key] = moved
                gpu[_RATES[name]] = int(moved)

    def _fetched(self) -> str:
        url = self._url
        connection = http.client.HTTPConnection(
            url.hostname or "", url.port, timeout=DCGM_TIMEOUT_S
        )
        try:
            connection.request("GET", url.path or "/metrics")
            answer = connection.getresponse()
            body = answer.read(_MOST_BYTES + 1)
        except http.client.HTTPException as error:
            raise ValueError(f"no HTTP: {type(error).__name__}") from error
        finally:
            connection.close()
        if answer.status != http.client.OK:
            raise ValueError(f"HTTP status {answer.status}")
        if len(body) > _MOST_BYTES:
            raise ValueError(f"its answer is longer than {_MOST_BYTES} bytes")
        return body.decode(errors="replace")


def _total_bytes(parts_mib: dict[str, int]) -> int | None:
    """Sum of the parts, for an exporter without a total; too small by the driver's reserve if that part is missing."""
    if _USED not in parts_mib or _FREE not in parts_mib:
        return None
    return sum(parts_mib.values()) * _MIB


def _identity(labels: dict[str, str]) -> dict[str, Any]:
    return {
        "gpu": labels.get("gpu", ""),
        "uuid": labels["UUID"],
        "pci_bus_id": labels.get("pci_bus_id", ""),
        "model": labels.get("modelName", ""),
        "namespace": labels.get("namespace", "") or labels.get("exported_namespace", ""),
        "pod": labels.get("pod", "") or labels.get("exported_pod", ""),
    }
