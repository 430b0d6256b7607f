"""Incidents that are deleted while their job is suspended: it is resumed, for nothing else would ever do that.

A finalizer keeps such an incident until it is done, whichever controller leads by then.
"""

from __future__ import annotations

from kcover_ebpf.api.gang_id import GangId
from kcover_ebpf.api.incident import Incident
from kcover_ebpf.controller.api_writer import ApiWriter
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.controller.context_builder import ContextBuilder
from kcover_ebpf.recovery.context import Suspension


class Deletions:
    """Thread-safe as long as no gang is worked on twice at a time."""

    def __init__(self, store: ObjectCache, contexts: ContextBuilder, writer: ApiWriter) -> None:
        self._store, self._contexts, self._writer = store, contexts, writer

    def guard(self, known: Incident, wanted: bool) -> Incident:
        """The incident with our finalizer, or without it."""
        if known.is_guarded is wanted:
            return known
        raw = self._writer.guard(known, wanted)
        found = self._store.read_incident(raw) if raw else None
        if found is not None:
            self._store.put(found)
        return found or known

    def finish(self, key: GangId) -> None:
        """Resume the job of each incident of a gang that was deleted under way."""
        for each in self._store.of_gang(key):
            if each.is_leaving and each.is_guarded:
                # a job that was suspended for good stays so: its incident says that, and is over
                if each.status is not None and each.status.phase.is_acting:
                    self._resume(key, each)
                self.guard(each, wanted=False)
        # gone without that: the finalizer was removed
        orphan = self._store.orphans.get(key)
        if orphan is not None:
            self._resume(key, orphan)
            self._store.orphans.pop(key, None)

    def _resume(self, key: GangId, orphan: Incident) -> None:
        found = self._contexts.found(key, orphan, ())
        target = found.top.target if found is not None else None
        mark = f"{orphan.namespace}/{orphan.name}"
        if target is not None and target.suspended_by == mark:
            self._writer.perform(key.namespace, Suspension(target, suspended=False), mark)
