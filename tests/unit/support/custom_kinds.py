"""A kind of job that no one has seen before, as an operator describes it."""

from typing import Any

TRAINING = "acme.example/training"


def job_kind(name: str = "trainings", **changes: Any) -> dict[str, Any]:
    """A JobKind object; `changes`: of its spec, None removes a key."""
    spec: dict[str, Any] = {
        "group": "acme.example",
        "kind": "Training",
        "plural": "trainings",
        "podLabels": [TRAINING],
        "owners": [{"group": "acme.example", "kind": "Crew", "plural": "crews"}],
        "podCount": ["/spec/workers", "/spec/chiefs"],
        "suspend": {"path": "/spec/mode", "suspended": "Paused", "running": "Active"},
        "ended": {"path": "/status/phase", "succeeded": ["Done"], "failed": ["Broken"]},
    }
    spec = {key: value for key, value in (spec | changes).items() if value is not None}
    metadata = {"name": name, "uid": f"u-{name}", "generation": 3}
    return {"metadata": metadata, "spec": spec}


def training(**spec: Any) -> dict[str, Any]:
    """A job of that kind."""
    metadata = {
        "name": "run",
        "namespace": "ml",
        "uid": "u-run",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "resourceVersion": "7",
        "labels": {},
    }
    made = {"workers": 3, "chiefs": 1, "mode": "Active"} | spec
    return {"metadata": metadata, "spec": made, "status": {}}
