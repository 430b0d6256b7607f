"""Reads incidents for the verbs of `kubectl kcover`, and the current state of their jobs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.fault_report import API_VERSION
from kcover_ebpf.api.incident import Incident, incident_of
from kcover_ebpf.errors import ApiError, CannotObserve, NotFound, ObjectError
from kcover_ebpf.kube.client import ApiClient

_MOST_JOBS = 200
"""The most jobs that are looked up: one request each."""


def incidents_since(client: ApiClient, namespace: str | None, since_s: float) -> list[Incident]:
    """Readable incidents created since then (unix seconds); `namespace` None: in all namespaces."""
    where = "" if namespace is None else f"/namespaces/{namespace}"
    try:
        items = client.list(f"/apis/{API_VERSION}{where}/incidents").get("items") or []
    except NotFound:
        raise CannotObserve("this cluster has no incidents; is kcover-ebpf installed?") from None
    incidents = []
    for raw in items:
        with contextlib.suppress(ObjectError, ValueError):
            created_s = rfc3339.from_text(str(raw["metadata"].get("creationTimestamp")))
            if created_s >= since_s:
                incidents.append(incident_of(raw, created_s))
    return incidents


class JobFacts:
    """Current facts about the jobs of incidents, by uid of the job; without jobs that are gone or may not be read."""

    def __init__(self, client: ApiClient, incidents: Iterable[Incident]) -> None:
        from kcover_ebpf.controller.owners import Owners

        owners = Owners(client)
        self.created_s: dict[str, float] = {}
        """Uid of a job -> its creation (unix seconds)."""
        self.armed: dict[str, bool] = {}
        """Uid of a job -> whether it or its owner carries the label that arms."""
        jobs = {incident.job.uid: incident for incident in incidents}
        for uid, incident in list(jobs.items())[:_MOST_JOBS]:
            with contextlib.suppress(ApiError):
                owner = owners.of_ref(incident.namespace, incident.job)
                if owner is not None and owner.created_s is not None:
                    self.created_s[uid] = owner.created_s
                    self.armed[uid] = owner.top.armed
