"""Metrics of a controller that are computed from the incidents when they are scraped."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kcover_ebpf.api.incident import Incident, JobRef, Lost, Phase, Status
from kcover_ebpf.api.incident_parts import JobSize
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.controller.telemetry import ControllerTelemetry

NOW_S = 1_800_000_000.0


def ended(name: str, uid: str, age_s: float | None, lost_s: float | None) -> Incident:
    created_s = None if age_s is None else NOW_S - age_s
    status = Status(
        Phase.RECOVERED,
        size=JobSize(created_s=created_s),
        lost=None if lost_s is None else Lost(detect_s=lost_s),
    )
    job = JobRef("Job", "llm", uid, "batch/v1")
    return Incident("ml", name, job, {"a": uid}, status=status, uid=f"uid-{name}")


@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize(
    ("incidents", "expected"),
    [
        ([ended("a", "u1", 1000.0, 100.0), ended("b", "u1", 1000.0, 150.0)], 0.75),
        ([ended("a", "old", 1000.0, 900.0), ended("b", "new", 100.0, 10.0)], 0.9),
        ([ended("a", "old", 1000.0, 900.0), ended("b", "new", 100.0, None)], None),
        ([ended("a", "u1", None, 100.0)], None),
    ],
    ids=["all of its incidents", "a job of the same name before", "nothing lost yet", "no age"],
)
def test_controller_telemetry__the_ettr_of_a_job_is_that_of_the_newest_of_its_name(
    incidents: list[Incident], expected: float | None, is_reversed: bool
) -> None:
    """For each controller: nothing of it is known from an earlier reconcile."""
    store = ObjectCache(lambda _: None, wall=lambda: NOW_S)
    for incident in incidents[:: -1 if is_reversed else 1]:
        store.put(incident)
    writer: Any = SimpleNamespace(event=lambda _: None)
    telemetry = ControllerTelemetry(store, writer, lambda: NOW_S)
    telemetry.leads = lambda: True
    labels = {"namespace": "ml", "training_job": "llm"}
    value = telemetry.registry.get_sample_value("kcover_job_ettr_ratio", labels)
    assert value == (None if expected is None else pytest.approx(expected))
