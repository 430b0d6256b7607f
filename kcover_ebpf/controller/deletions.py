"""Finalizer: resumes a job whose Incident is deleted while we have it suspended.

The finalizer keeps the Incident until the job is resumed, whichever controller leads by then.
"""

from __future__ import annotations

from kcover_ebpf.api.incident import Incident
from kcover_ebpf.api.job_kinds import GangId
from kcover_ebpf.controller.api_writer import ApiWriter
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.controller.context_builder import ContextBuilder
from kcover_ebpf.recovery.restart.context import Suspension


class Deletions:
    """Thread-safe as long as no two threads work on the same gang."""

    def __init__(self, cache: ObjectCache, contexts: ContextBuilder, writer: ApiWriter) -> None:
        self._store, self._contexts, self._writer = cache, contexts, writer

    def guard(self, known_incident: Incident, wanted: bool) -> Incident:
        """The incident after our finalizer was added or removed, as its phase requires."""
        if known_incident.is_guarded is wanted:
            return known_incident
        raw = self._writer.guard(known_incident, wanted)
        incident = self._store.read_incident(raw) if raw else None
        if incident is not None:
            self._store.put(incident)
        return incident or known_incident

    def finish(self, gang_id: GangId) -> None:
        """Resume the job of each incident of a gang that was deleted during a restart."""
        for incident in self._store.of_gang(gang_id):
            if incident.is_leaving and incident.is_guarded:
                # a job that was suspended for good stays suspended: its incident says so, and is over
                if incident.status is not None and incident.status.phase.is_acting:
                    self.resume(gang_id, incident)
                self.guard(incident, wanted=False)
        # deleted without the resumption: the finalizer was removed by hand
        orphan = self._store.orphans.get(gang_id)
        if orphan is not None:
            self.resume(gang_id, orphan)
            self._store.orphans.pop(gang_id, None)

    def resume(self, gang_id: GangId, orphan_incident: Incident) -> None:
        """Resume the job of an incident, unless another one, or another client, suspended it. Raises `ApiError`."""
        found = self._contexts.found(gang_id, orphan_incident, ())
        target = found.top.target if found is not None else None
        mark = f"{orphan_incident.namespace}/{orphan_incident.name}"
        if target is not None and target.suspended_by == mark:
            self._writer.perform(gang_id.namespace, Suspension(target, suspended=False), mark)
