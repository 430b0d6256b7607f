"""The series of the last inspection."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry

from kcover_ebpf.agent.metrics import InspectionMetrics
from kcover_ebpf.agent.node_health.health_memory import Round, after_round
from kcover_ebpf.facts.health import Result
from kcover_ebpf.inspection.result import PartResult


def health(name: str, result: Result):
    return after_round("n1", None, Round(1.0, "a", [PartResult(name, result)]), 90)


def test_inspection_metrics__the_last_inspection_is_shown_and_no_earlier_one() -> None:
    registry = CollectorRegistry()
    metrics = InspectionMetrics(registry)

    def result(check: str, result: str) -> float | None:
        labels = {"check": check, "result": result}
        return registry.get_sample_value("kcover_inspection_result", labels)

    metrics.update(health("old", Result.PASS), None, 0.0)
    assert registry.get_sample_value("kcover_inspection_age_seconds") == -1.0
    assert result("old", "pass") is None, "a result of an earlier agent is none of this one"
    metrics.update(health("gone", Result.PASS), time.monotonic(), 0.5)
    metrics.update(health("nvml", Result.FAIL), time.monotonic() - 5.0, 0.75)
    assert (result("nvml", "fail"), result("nvml", "pass")) == (1.0, 0.0)
    assert result("gone", "pass") is None
    age_s = registry.get_sample_value("kcover_inspection_age_seconds")
    assert age_s is not None
    assert 5.0 <= age_s < 60.0
    assert registry.get_sample_value("kcover_inspection_cpu_seconds_total") == 0.75
    assert registry.get_sample_value("kcover_inspection_expiry_seconds") == 90.0
    assert registry.get_sample_value("kcover_inspection_clean_rounds") == 0.0
