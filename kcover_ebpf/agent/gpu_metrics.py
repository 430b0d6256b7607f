"""Metrics of the GPUs of this node, made when they are asked for from what was read last.

Not in `agent.metrics`: these are made in the thread of a scrape, the others are set by the loop, and
both together have more lines than a file may have.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from kcover_ebpf.agent.node_health.gpu_pods import GpuPod
from kcover_ebpf.devices.telemetry.reading import THROTTLE_REASONS, GpuReading
from kcover_ebpf.devices.telemetry.use import GpuState
from kcover_ebpf.devices.telemetry.watch import Telemetry
from kcover_ebpf.facts.devices import GpuUse

_GPU = ("gpu", "UUID", "pci_bus_id")
"""As dcgm-exporter names and writes them, so that series of both join."""
_TEXTS = {
    "kcover_gpu_utilization_ratio": "Share of the last second or less in which a kernel ran on the GPU.",
    "kcover_gpu_memory_utilization_ratio": (
        "Share of the last second or less in which the memory of the GPU was read or written."
    ),
    "kcover_gpu_memory_used_bytes": "Memory of the GPU in use.",
    "kcover_gpu_memory_total_bytes": "Memory of the GPU.",
    "kcover_gpu_power_watts": "Power that the GPU draws.",
    "kcover_gpu_power_limit_watts": "Power limit in force for the GPU.",
    "kcover_gpu_temperature_celsius": "Temperature of the GPU.",
    "kcover_gpu_clock_hertz": "Clock of the GPU.",
    "kcover_gpu_throttled": "1 while the GPU is slowed down.",
    "kcover_gpu_ecc_errors": "ECC errors of the GPU since its driver was loaded.",
    "kcover_gpu_link_bytes": "Bytes over the links of the GPU: nvlink (all of them), pcie.",
    "kcover_gpu_use": (
        "1 for what the GPU is used for now: working, idle, memory_held (no kernel runs, and processes keep its "
        "memory), busy_at_low_power (a kernel runs all the time at less than 0.4 of the power limit), unknown."
    ),
    "kcover_gpu_pod": "1 for each pod that uses the GPU; multiply by it, on (UUID), to get series by pod.",
    "kcover_gpu_pod_memory_used_bytes": "Memory of the GPU that the processes of the pod use.",
    "kcover_gpu_unanswered": "1 while the GPU does not answer: a call hangs, or the GPU is lost.",
    "kcover_gpu_telemetry_age_seconds": "Seconds since the GPUs were last read; -1 if never.",
    "kcover_gpu_telemetry_cpu_seconds": "CPU time used by the program that reads the GPUs.",
}
_LABELS = {
    "kcover_gpu_clock_hertz": (*_GPU, "clock"),
    "kcover_gpu_throttled": (*_GPU, "reason"),
    "kcover_gpu_ecc_errors": (*_GPU, "severity"),
    "kcover_gpu_link_bytes": (*_GPU, "link", "direction"),
    "kcover_gpu_use": (*_GPU, "use"),
    "kcover_gpu_pod": (*_GPU, "namespace", "pod"),
    "kcover_gpu_pod_memory_used_bytes": (*_GPU, "namespace", "pod"),
    "kcover_gpu_telemetry_age_seconds": (),
    "kcover_gpu_telemetry_cpu_seconds": (),
}
"""Those of other series are `_GPU`."""
_COUNTERS = {"kcover_gpu_ecc_errors", "kcover_gpu_link_bytes", "kcover_gpu_telemetry_cpu_seconds"}
_Sample = tuple[str, tuple[str, ...], float | None]
"""A series, its labels, and its value; None where it is not observed."""


class GpuMetrics(Collector):
    """A collector: `latest` and `pods` are asked in the thread of a scrape."""

    def __init__(self) -> None:
        self.latest: Callable[[], Telemetry | None] = lambda: None
        """Set where GPUs are read; None: they are not."""
        self.pods: tuple[GpuPod, ...] = ()

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """All series; those of what is not observed are left out."""
        families = {
            name: (CounterMetricFamily if name in _COUNTERS else GaugeMetricFamily)(
                name, text, labels=_LABELS.get(name, _GPU)
            )
            for name, text in _TEXTS.items()
        }
        for name, labels, value in self._samples():
            if value is not None:
                families[name].add_metric(labels, float(value))
        yield from families.values()

    def _samples(self) -> Iterator[_Sample]:
        telemetry = self.latest()
        for state in telemetry.gpus if telemetry is not None else ():
            labels = _labels(state.reading)
            for name, more, value in _of_gpu(state):
                yield f"kcover_gpu_{name}", (*labels, *more), value
        for gpu_pod in self.pods:
            labels = (*_labels(gpu_pod.gpu), gpu_pod.pod.namespace, gpu_pod.pod.name)
            yield "kcover_gpu_pod", labels, 1.0
            yield "kcover_gpu_pod_memory_used_bytes", labels, gpu_pod.memory_bytes
        read_s = telemetry.read_s if telemetry is not None else None
        age_s = -1.0 if read_s is None else time.monotonic() - read_s
        yield "kcover_gpu_telemetry_age_seconds", (), age_s
        cpu_s = telemetry.cpu_s if telemetry is not None else 0.0
        yield "kcover_gpu_telemetry_cpu_seconds", (), cpu_s


def _labels(reading: GpuReading) -> tuple[str, ...]:
    return reading.gpu, reading.uuid, reading.pci_bus_id


def _of_gpu(state: GpuState) -> Iterator[_Sample]:
    """Names without `kcover_gpu_`, labels without those of the GPU."""
    reading = state.reading
    yield "utilization_ratio", (), reading.utilization
    yield "memory_utilization_ratio", (), reading.memory_utilization
    yield "memory_used_bytes", (), reading.memory_used_bytes
    yield "memory_total_bytes", (), reading.memory_total_bytes
    yield "power_watts", (), reading.power_w
    yield "power_limit_watts", (), reading.power_limit_w
    yield "temperature_celsius", (), reading.temperature_c
    yield "clock_hertz", ("sm",), reading.sm_clock_hz
    yield "clock_hertz", ("memory",), reading.memory_clock_hz
    for reason, bit in THROTTLE_REASONS.items():
        bits = reading.throttle
        yield "throttled", (reason,), None if bits is None else bool(bits & bit)
    yield "ecc_errors", ("corrected",), reading.ecc_corrected_count
    yield "ecc_errors", ("uncorrected",), reading.ecc_uncorrected_count
    yield "link_bytes", ("nvlink", "sent"), reading.nvlink_sent_bytes
    yield "link_bytes", ("nvlink", "received"), reading.nvlink_received_bytes
    yield "link_bytes", ("pcie", "sent"), reading.pcie_sent_bytes
    yield "link_bytes", ("pcie", "received"), reading.pcie_received_bytes
    for use in GpuUse:
        yield "use", (use.value,), float(state.use is use)
    yield "unanswered", (), float(bool(reading.unanswered))
