"""Metrics of the GPUs of this node, made when they are asked for from what was read last."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from kcover_ebpf.agent.node_health.gpu_pods import GpuPod
from kcover_ebpf.devices.telemetry.reading import THROTTLE_REASONS, GpuReading
from kcover_ebpf.devices.telemetry.watch import Telemetry
from kcover_ebpf.facts.devices import GpuUse

_GPU = ("gpu", "UUID", "pci_bus_id")
"""As dcgm-exporter names and writes them, so that series of both join."""
_Family = GaugeMetricFamily | CounterMetricFamily
_Value = float | None
_READ: tuple[tuple[str, str, Callable[[GpuReading], _Value]], ...] = (
    (
        "kcover_gpu_utilization_ratio",
        "Share of the last second or less in which a kernel ran on the GPU.",
        lambda reading: reading.utilization,
    ),
    (
        "kcover_gpu_memory_utilization_ratio",
        "Share of the last second or less in which the memory of the GPU was read or written.",
        lambda reading: reading.memory_utilization,
    ),
    (
        "kcover_gpu_memory_used_bytes",
        "Memory of the GPU in use.",
        lambda reading: reading.memory_used_bytes,
    ),
    (
        "kcover_gpu_memory_total_bytes",
        "Memory of the GPU.",
        lambda reading: reading.memory_total_bytes,
    ),
    ("kcover_gpu_power_watts", "Power that the GPU draws.", lambda reading: reading.power_w),
    (
        "kcover_gpu_power_limit_watts",
        "Power limit in force for the GPU.",
        lambda reading: reading.power_limit_w,
    ),
    (
        "kcover_gpu_temperature_celsius",
        "Temperature of the GPU.",
        lambda reading: reading.temperature_c,
    ),
)


class GpuMetrics(Collector):
    """A collector: `latest` and `pods` are asked in the thread of a scrape."""

    def __init__(self) -> None:
        self.latest: Callable[[], Telemetry | None] = lambda: None
        """Set where GPUs are read; None: they are not."""
        self.pods: tuple[GpuPod, ...] = ()

    def collect(self) -> Iterator[_Family]:
        """All series; those of what is not observed are left out."""
        known_telemetry = self.latest()
        states = known_telemetry.gpus if known_telemetry is not None else ()
        readings = [gpu_state.reading for gpu_state in states]
        for name, text, value_of in _READ:
            family = GaugeMetricFamily(name, text, labels=_GPU)
            _add(family, readings, value_of)
            yield family
        yield from _with_parts(readings)
        use = GaugeMetricFamily(
            "kcover_gpu_use",
            "1 for what the GPU is used for now: working, idle, memory_held (no kernel runs, and processes keep its "
            "memory), busy_at_low_power (a kernel runs all the time at less than 0.4 of the power limit), unknown.",
            labels=(*_GPU, "use"),
        )
        for state in states:
            for kind in GpuUse:
                use.add_metric((*_labels(state.reading), kind.value), float(state.use is kind))
        yield use
        yield from self._of_pods()
        yield from _of_helper(known_telemetry, readings)

    def _of_pods(self) -> Iterator[_Family]:
        pod = GaugeMetricFamily(
            "kcover_gpu_pod",
            "1 for each pod that uses the GPU; multiply by it, on (UUID), to get series by pod.",
            labels=(*_GPU, "namespace", "pod"),
        )
        memory = GaugeMetricFamily(
            "kcover_gpu_pod_memory_used_bytes",
            "Memory of the GPU that the processes of the pod use.",
            labels=(*_GPU, "namespace", "pod"),
        )
        for gpu_pod in self.pods:
            labels = (*_labels(gpu_pod.gpu), gpu_pod.pod.namespace, gpu_pod.pod.name)
            pod.add_metric(labels, 1.0)
            if gpu_pod.memory_bytes is not None:
                memory.add_metric(labels, gpu_pod.memory_bytes)
        yield from (pod, memory)


def _with_parts(readings: Iterable[GpuReading]) -> Iterator[_Family]:
    clock = GaugeMetricFamily(
        "kcover_gpu_clock_hertz", "Clock of the GPU.", labels=(*_GPU, "clock")
    )
    throttled = GaugeMetricFamily(
        "kcover_gpu_throttled", "1 while the GPU is slowed down.", labels=(*_GPU, "reason")
    )
    ecc = CounterMetricFamily(
        "kcover_gpu_ecc_errors",
        "ECC errors of the GPU since its driver was loaded.",
        labels=(*_GPU, "severity"),
    )
    moved = CounterMetricFamily(
        "kcover_gpu_link_bytes",
        "Bytes over the links of the GPU: nvlink (all of them), pcie.",
        labels=(*_GPU, "link", "direction"),
    )
    for reading in readings:
        labels = _labels(reading)
        for name, hertz in (("sm", reading.sm_clock_hz), ("memory", reading.memory_clock_hz)):
            _part(clock, (*labels, name), hertz)
        for reason, bit in THROTTLE_REASONS.items():
            bits = reading.throttle
            _part(throttled, (*labels, reason), None if bits is None else bool(bits & bit))
        _part(ecc, (*labels, "corrected"), reading.ecc_corrected_count)
        _part(ecc, (*labels, "uncorrected"), reading.ecc_uncorrected_count)
        _part(moved, (*labels, "nvlink", "sent"), reading.nvlink_sent_bytes)
        _part(moved, (*labels, "nvlink", "received"), reading.nvlink_received_bytes)
        _part(moved, (*labels, "pcie", "sent"), reading.pcie_sent_bytes)
        _part(moved, (*labels, "pcie", "received"), reading.pcie_received_bytes)
    yield from (clock, throttled, ecc, moved)


def _of_helper(
    known_telemetry: Telemetry | None, readings: Iterable[GpuReading]
) -> Iterator[_Family]:
    unanswered = GaugeMetricFamily(
        "kcover_gpu_unanswered",
        "1 while the GPU does not answer: a call hangs, or the GPU is lost.",
        labels=_GPU,
    )
    _add(unanswered, readings, lambda reading: float(bool(reading.unanswered)))
    age = GaugeMetricFamily(
        "kcover_gpu_telemetry_age_seconds",
        "Seconds since the GPUs were last read; -1 if never.",
    )
    read_s = known_telemetry.read_s if known_telemetry is not None else None
    age.add_metric((), -1.0 if read_s is None else time.monotonic() - read_s)
    cpu = CounterMetricFamily(
        "kcover_gpu_telemetry_cpu_seconds", "CPU time used by the program that reads the GPUs."
    )
    cpu.add_metric((), known_telemetry.cpu_s if known_telemetry is not None else 0.0)
    yield from (unanswered, age, cpu)


def _labels(reading: GpuReading) -> tuple[str, str, str]:
    return reading.gpu, reading.uuid, reading.pci_bus_id


def _add(
    family: GaugeMetricFamily,
    readings: Iterable[GpuReading],
    value_of: Callable[[GpuReading], _Value],
) -> None:
    for reading in readings:
        _part(family, _labels(reading), value_of(reading))


def _part(family: _Family, labels: tuple[str, ...], value: float | None) -> None:
    if value is not None:
        family.add_metric(labels, float(value))
