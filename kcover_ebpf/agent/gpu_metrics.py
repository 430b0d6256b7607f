"""Metrics of the GPUs of this node, made when they are asked for from what was read last."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from kcover_ebpf.agent.gpu_pods import GpuPod
from kcover_ebpf.facts.devices import GpuUse
from kcover_ebpf.hardware.telemetry.reading import THROTTLE_REASONS, GpuReading
from kcover_ebpf.hardware.telemetry.watch import Telemetry

_GPU = ("gpu", "UUID", "pci_bus_id")
"""As dcgm-exporter names and writes them, so that series of both join."""
_Family = GaugeMetricFamily | CounterMetricFamily
_Value = float | None
_READ: tuple[tuple[str, str, Callable[[GpuReading], _Value]], ...] = (
    (
        "kcover_gpu_utilization_ratio",
        "Share of the last second or less in which a kernel ran on the GPU.",
        lambda each: each.utilization,
    ),
    (
        "kcover_gpu_memory_utilization_ratio",
        "Share of the last second or less in which the memory of the GPU was read or written.",
        lambda each: each.memory_utilization,
    ),
    (
        "kcover_gpu_memory_used_bytes",
        "Memory of the GPU in use.",
        lambda each: each.memory_used_bytes,
    ),
    (
        "kcover_gpu_memory_total_bytes",
        "Memory of the GPU.",
        lambda each: each.memory_total_bytes,
    ),
    ("kcover_gpu_power_watts", "Power that the GPU draws.", lambda each: each.power_w),
    (
        "kcover_gpu_power_limit_watts",
        "Power limit in force for the GPU.",
        lambda each: each.power_limit_w,
    ),
    (
        "kcover_gpu_temperature_celsius",
        "Temperature of the GPU.",
        lambda each: each.temperature_c,
    ),
)


class GpuMetrics(Collector):
    """A collector: `latest` and `pods` are asked in the thread of a scrape."""

    def __init__(self) -> None:
        self.latest: Callable[[], Telemetry | None] = lambda: None
        """Set where GPUs are read; None: they are not."""
        self.pods: tuple[GpuPod, ...] = ()
        self.idle_s: Mapping[tuple[str, str], float] = {}
        """By namespace and name of a pod that was seen to use GPUs."""

    def collect(self) -> Iterator[_Family]:
        """All series; those of what is not observed are left out."""
        known = self.latest()
        states = known.gpus if known is not None else ()
        readings = [each.reading for each in states]
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
        for each in states:
            for kind in GpuUse:
                use.add_metric((*_labels(each.reading), kind.value), float(each.use is kind))
        yield use
        yield from self._of_pods()
        yield from _of_helper(known, readings)

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
        for each in self.pods:
            labels = (*_labels(each.gpu), each.pod.namespace, each.pod.name)
            pod.add_metric(labels, 1.0)
            if each.memory_bytes is not None:
                memory.add_metric(labels, each.memory_bytes)
        idle = GaugeMetricFamily(
            "kcover_gpu_idle_seconds",
            "Seconds for which no kernel has run on the GPUs of the pod, and its containers used next to no CPU.",
            labels=("namespace", "pod"),
        )
        for names, idle_s in self.idle_s.items():
            idle.add_metric(names, idle_s)
        yield from (pod, memory, idle)


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
    for each in readings:
        labels = _labels(each)
        for name, hertz in (("sm", each.sm_clock_hz), ("memory", each.memory_clock_hz)):
            _part(clock, (*labels, name), hertz)
        for reason, bit in THROTTLE_REASONS.items():
            bits = each.throttle
            _part(throttled, (*labels, reason), None if bits is None else bool(bits & bit))
        _part(ecc, (*labels, "corrected"), each.ecc_corrected_count)
        _part(ecc, (*labels, "uncorrected"), each.ecc_uncorrected_count)
        _part(moved, (*labels, "nvlink", "sent"), each.nvlink_sent_bytes)
        _part(moved, (*labels, "nvlink", "received"), each.nvlink_received_bytes)
        _part(moved, (*labels, "pcie", "sent"), each.pcie_sent_bytes)
        _part(moved, (*labels, "pcie", "received"), each.pcie_received_bytes)
    yield from (clock, throttled, ecc, moved)


def _of_helper(known: Telemetry | None, readings: Iterable[GpuReading]) -> Iterator[_Family]:
    unanswered = GaugeMetricFamily(
        "kcover_gpu_unanswered",
        "1 while the GPU does not answer: a call hangs, or the GPU is lost.",
        labels=_GPU,
    )
    _add(unanswered, readings, lambda each: float(bool(each.unanswered)))
    age = GaugeMetricFamily(
        "kcover_gpu_telemetry_age_seconds",
        "Seconds since the GPUs were last read; -1 if never.",
    )
    read_s = known.read_s if known is not None else None
    age.add_metric((), -1.0 if read_s is None else time.monotonic() - read_s)
    cpu = CounterMetricFamily(
        "kcover_gpu_telemetry_cpu_seconds", "CPU time used by the program that reads the GPUs."
    )
    cpu.add_metric((), known.cpu_s if known is not None else 0.0)
    yield from (unanswered, age, cpu)


def _labels(each: GpuReading) -> tuple[str, str, str]:
    return each.gpu, each.uuid, each.pci_bus_id


def _add(
    family: GaugeMetricFamily,
    readings: Iterable[GpuReading],
    value_of: Callable[[GpuReading], _Value],
) -> None:
    for each in readings:
        _part(family, _labels(each), value_of(each))


def _part(family: _Family, labels: tuple[str, ...], value: float | None) -> None:
    if value is not None:
        family.add_metric(labels, float(value))
