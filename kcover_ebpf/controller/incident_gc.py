"""Closes incidents whose fault is over, and deletes those whose retention time is over."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from kcover_ebpf.api.incident import Incident, Status
from kcover_ebpf.controller.api_writer import ApiWriter
from kcover_ebpf.controller.avoidance import NodeAvoidance
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.controller.owners import Owners
from kcover_ebpf.controller.quota import close
from kcover_ebpf.errors import KcoverError
from kcover_ebpf.recovery import closing
from kcover_ebpf.tunables.controller import GC_PERIOD_S

_LOG = logging.getLogger(__name__)
_MOST_DELETED = 100
"""The most deletions in one pass, so that a leader with thousands to delete also does its other work."""


class IncidentCollector:
    """Goes through all incidents at intervals, in its own thread."""

    def __init__(
        self,
        cache: ObjectCache,
        owners: Owners,
        writer: ApiWriter,
        leads: Callable[[], bool],
        also: Callable[[], None] = lambda: None,
    ) -> None:
        """`leads`: true while this replica may write. `also`: called in each pass as well."""
        self._also = also
        self._store, self._owners, self._writer, self._leads = cache, owners, writer, leads
        self._avoidance = NodeAvoidance(cache, writer)
        self._stop = threading.Event()
        self.thread = threading.Thread(target=self._run, name="archive", daemon=True)
        """The thread, so that its liveness can be checked."""
        self._tried_s: dict[tuple[str, str], float] = {}
        """Incidents that still exist -> when their deletion was last requested (unix seconds)."""

    def start(self) -> None:
        """Start the thread; returns at once."""
        self.thread.start()

    def stop(self) -> None:
        """Ask the thread to end; does not wait for it."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(GC_PERIOD_S):
            if self._leads():
                self.collect()
                self._also()

    def collect(self) -> None:
        """One pass: close and delete incidents that are due."""
        known = list(self._store.incidents.values())
        for incident in known:
            self._try(self._close, incident)
            self._try(self._avoidance.lift, incident)
        window_s = self._store.policies.longest_window_s
        old = closing.outdated(known, self._store.wall(), window_s)
        # another finalizer or a webhook may delay some deletions: the others must not wait for them
        left = [other_incident for other_incident in old if not other_incident.is_leaving]
        left.sort(key=lambda other_incident: self._tried_s.get(other_incident.key, 0.0))
        self._tried_s = {
            other_incident.key: self._tried_s.get(other_incident.key, 0.0)
            for other_incident in left
        }
        for incident in left[:_MOST_DELETED]:
            self._tried_s[incident.key] = self._store.wall()
            self._try(self._writer.delete_incident, incident)

    def _try(self, what: Callable[[Incident], None], incident: Incident) -> None:
        try:
            what(incident)
        except KcoverError as error:
            # it was written meanwhile, or the server is down: try again later
            _LOG.info(
                "cannot close or delete incident %s/%s: %s",
                incident.namespace,
                incident.name,
                error,
            )

    def _close(self, known_incident: Incident) -> None:
        status = known_incident.status
        if status is None or not status.phase.is_over or status.is_closed:
            return
        why = self._why_over(known_incident, status)
        if why is None:
            return
        close(self._store, self._writer, known_incident, why)

    def _why_over(self, known_incident: Incident, status: Status) -> str | None:
        now_s = self._store.wall()
        seen = self._store.seen(known_incident.gang)
        reported = [received for received in seen if not received.is_stale(now_s)]
        if reported:
            return closing.why_calm(status, reported)
        # agents report about every existing job, so only a job without reports is looked up
        found = self._owners.of_ref(known_incident.namespace, known_incident.job)
        return closing.why_gone(status, found.top if found is not None else None, now_s)
