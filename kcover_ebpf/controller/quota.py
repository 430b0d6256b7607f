"""Limits of incidents: one per gang that is not closed, and a number per namespace."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from kcover_ebpf.api.incident import Incident
from kcover_ebpf.api.job_kinds import GangId
from kcover_ebpf.controller.api_writer import ApiWriter
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.errors import KcoverError
from kcover_ebpf.recovery import closing
from kcover_ebpf.tunables.controller import QUOTA_LOGGED_S

_LOG = logging.getLogger(__name__)


class Quota:
    """Makes room by closing finished incidents; thread-safe as far as `ObjectCache` is."""

    def __init__(self, cache: ObjectCache, writer: ApiWriter, most: int) -> None:
        """`most`: incidents of a namespace that are not closed."""
        self._store, self._writer, self._most = cache, writer, most
        self._logged_s: dict[str, float] = {}
        self._lock = threading.Lock()
        self._kept: Counter[str] = Counter()
        """Namespace -> number of places kept for incidents that are being created."""
        self._closing: set[str] = set()
        """Uids of incidents that are being closed."""

    def may_reopen(self, known_incident: Incident) -> bool:
        """True if there is room for an incident without closing another: two reported ones would alternate.

        A place freed by closing an incident is kept for the incident that it was closed for.
        """
        with self._lock:
            taken = (
                len(self._opened(known_incident.namespace)) + self._kept[known_incident.namespace]
            )
        return not _is_closed(known_incident) or taken < self._most

    @contextmanager
    def place(self, gang_id: GangId) -> Iterator[bool]:
        """True if an incident of this gang may be created in the `with` block, for which a place is kept.

        Closes the oldest finished incidents if that is needed; raises `ApiError` if it fails.
        """
        chosen = self._take(gang_id)
        if chosen is None:
            yield False
            return
        try:
            for oldest in chosen:
                close(self._store, self._writer, oldest, "too many open incidents in the namespace")
            yield True
        finally:
            with self._lock:
                self._kept[gang_id.namespace] -= 1
                self._closing.difference_update(incident.uid for incident in chosen)

    def _take(self, gang_id: GangId) -> list[Incident] | None:
        """Keep a place; returns incidents to close for it, None if there is no room."""
        with self._lock:
            opened = [e for e in self._opened(gang_id.namespace) if e.uid not in self._closing]
            excess = max(0, len(opened) + self._kept[gang_id.namespace] - self._most + 1)
            over = [
                incident for incident in opened if incident.status and incident.status.phase.is_over
            ]
            over.sort(key=lambda incident: incident.created_s)
            if len(over) >= excess:
                self._kept[gang_id.namespace] += 1
                self._closing.update(incident.uid for incident in over[:excess])
                return over[:excess]
        now_s = self._store.wall()
        if now_s - self._logged_s.get(gang_id.namespace, 0.0) >= QUOTA_LOGGED_S:
            self._logged_s[gang_id.namespace] = now_s
            _LOG.warning(
                "no incident opened for %s: its namespace already has %d open", gang_id, len(opened)
            )
        return None

    def _opened(self, namespace: str) -> list[Incident]:
        return [
            incident
            for incident in list(self._store.incidents.values())
            if incident.namespace == namespace and not _is_closed(incident)
        ]

    def supersede(self, known: Iterable[Incident], by: str) -> None:
        """Close finished incidents of a gang: a newer one describes its state."""
        for incident in known:
            if (
                incident.status is not None
                and incident.status.phase.is_over
                and not _is_closed(incident)
            ):
                try:
                    close(self._store, self._writer, incident, f"{by} is newer")
                except KcoverError as error:
                    # the collector will close it later
                    _LOG.info(
                        "incident %s/%s stays open: %s", incident.namespace, incident.name, error
                    )


def close(cache: ObjectCache, writer: ApiWriter, known_incident: Incident, why: str) -> None:
    """Write that an incident is closed; raises `ApiError`."""
    assert known_incident.status is not None
    closed = closing.close(known_incident.status, why, cache.wall())
    written = cache.read_incident(writer.status(known_incident, closed))
    if written is not None:
        cache.put(written)
    _LOG.info("%s/%s closed: %s", known_incident.namespace, known_incident.name, why)


def _is_closed(incident: Incident) -> bool:
    return incident.status is not None and incident.status.is_closed
