"""Metrics of the inspections of the node."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge

from kcover_ebpf.api.node_health import NodeHealth
from kcover_ebpf.facts.health import Result


class InspectionMetrics:
    """Series of the last inspection; those of checks that are no longer run go with them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._results = Gauge(
            "kcover_inspection_result",
            "1 for the result of each check in the last inspection of the node, 0 for its other results.",
            ["check", "result"],
            registry=registry,
        )
        self._age = Gauge(
            "kcover_inspection_age_seconds",
            "Seconds since the last inspection of the node ended; -1 before the first one.",
            registry=registry,
        )
        self._expiry = Gauge(
            "kcover_inspection_expiry_seconds",
            "Age beyond which the health of the node is unknown; 0 where it is not inspected.",
            registry=registry,
        )
        self._clean_rounds = Gauge(
            "kcover_inspection_clean_rounds",
            "Consecutive inspections in which nothing failed and every earlier failure has since been seen working.",
            registry=registry,
        )
        self._cpu = Counter(
            "kcover_inspection_cpu_seconds",
            "CPU time used by inspections of the node.",
            registry=registry,
        )
        self._cpu_s = 0.0
        self._health: NodeHealth | None = None
        self._age.set(-1.0)

    def update(self, health: NodeHealth | None, ended_s: float | None, cpu_s: float) -> None:
        """The state now; `ended_s` by CLOCK_MONOTONIC, None before the first inspection of this agent."""
        if ended_s is None:
            return
        self._age.set(time.monotonic() - ended_s)
        self._cpu.inc(cpu_s - self._cpu_s)
        self._cpu_s = cpu_s
        if health is None or health is self._health:
            return
        self._health = health
        self._results.clear()
        for check in health.checks:
            for result in Result:
                self._results.labels(check.name, result.value).set(check.result is result)
        self._expiry.set(health.expires_after_s)
        self._clean_rounds.set(health.clean_rounds)
