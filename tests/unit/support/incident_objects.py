"""Incident objects as an API server has them."""

from __future__ import annotations

from typing import Any

from kcover_ebpf.api.incident import Incident, JobRef, Phase, Status, object_of, status_of


def incident(namespace: str, name: str, *finalizers: str) -> dict[str, Any]:
    ref = JobRef("Job", name, f"job-{name}", "batch/v1")
    made = Incident(namespace, name, ref, {"job": name}, status=Status(Phase.SHUTTING_DOWN))
    raw = object_of(made)
    raw["metadata"] |= {"uid": f"{namespace}-{name}", "finalizers": list(finalizers)}
    assert made.status is not None
    return raw | {"status": status_of(made.status)}
