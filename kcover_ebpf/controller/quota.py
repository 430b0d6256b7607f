"""How many incidents there may be: one of a gang that is not closed, and so many of a namespace."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from kcover_ebpf.api.gang_id import GangId
from kcover_ebpf.api.incident import Incident
from kcover_ebpf.controller.api_writer import ApiWriter
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.errors import KcoverError
from kcover_ebpf.recovery import closing
from kcover_ebpf.tunables.controller import QUOTA_LOGGED_S

_LOG = logging.getLogger(__name__)


class Quota:
    """Makes room by closing what is over; thread-safe as far as `ObjectCache` is."""

    def __init__(self, store: ObjectCache, writer: ApiWriter, most: int) -> None:
        """`most`: incidents of a namespace that are not closed."""
        self._store, self._writer, self._most = store, writer, most
        self._logged_s: dict[str, float] = {}
        self._lock = threading.Lock()
        self._kept: Counter[str] = Counter()
        """By namespace: places of incidents that are being made."""
        self._closing: set[str] = set()
        """Incidents that are being closed, by uid."""

    def may_reopen(self, known: Incident) -> bool:
        """True if there is room for an incident without closing another: two that are reported would alternate.

        What was just closed is no room: the place is kept for the incident that it was closed for.
        """
        with self._lock:
            taken = len(self._opened(known.namespace)) + self._kept[known.namespace]
        return not _is_closed(known) or taken < self._most

    @contextmanager
    def place(self, key: GangId) -> Iterator[bool]:
        """True if an incident of this gang may be made in the block: its place is kept meanwhile.

        Closes the oldest that are over, if that is needed for it; raises `ApiError` where that fails.
        """
        chosen = self._take(key)
        if chosen is None:
            yield False
            return
        try:
            for oldest in chosen:
                close(self._store, self._writer, oldest, "too many open incidents in the namespace")
            yield True
        finally:
            with self._lock:
                self._kept[key.namespace] -= 1
                self._closing.difference_update(each.uid for each in chosen)

    def _take(self, key: GangId) -> list[Incident] | None:
        """Keep a place: what is to be closed for it; None if there is none."""
        with self._lock:
            opened = [e for e in self._opened(key.namespace) if e.uid not in self._closing]
            excess = max(0, len(opened) + self._kept[key.namespace] - self._most + 1)
            over = [each for each in opened if each.status and each.status.phase.is_over]
            over.sort(key=lambda each: each.created_s)
            if len(over) >= excess:
                self._kept[key.namespace] += 1
                self._closing.update(each.uid for each in over[:excess])
                return over[:excess]
        now_s = self._store.wall()
        if now_s - self._logged_s.get(key.namespace, 0.0) >= QUOTA_LOGGED_S:
            self._logged_s[key.namespace] = now_s
            _LOG.warning(
                "no incident opened for %s: its namespace already has %d open", key, len(opened)
            )
        return None

    def _opened(self, namespace: str) -> list[Incident]:
        return [
            each
            for each in list(self._store.incidents.values())
            if each.namespace == namespace and not _is_closed(each)
        ]

    def supersede(self, known: Iterable[Incident], by: str) -> None:
        """Close what is over among the incidents of a gang: a newer one says what is so now."""
        for each in known:
            if each.status is not None and each.status.phase.is_over and not _is_closed(each):
                try:
                    close(self._store, self._writer, each, f"{by} is newer")
                except KcoverError as error:
                    # the archive closes it some time
                    _LOG.info("incident %s/%s stays open: %s", each.namespace, each.name, error)


def close(store: ObjectCache, writer: ApiWriter, known: Incident, why: str) -> None:
    """Write that an incident is over for good; raises `ApiError`."""
    assert known.status is not None
    closed = closing.close(known.status, why, store.wall())
    written = store.read_incident(writer.status(known, closed))
    if written is not None:
        store.put(written)
    _LOG.info("%s/%s closed: %s", known.namespace, known.name, why)


def _is_closed(each: Incident) -> bool:
    return each.status is not None and each.status.is_closed
