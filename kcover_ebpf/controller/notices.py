"""Which targets are notified of which incidents: the rules of policies, and a record that prevents repetition."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kcover_ebpf.api.fault_policy import NotifyRule
from kcover_ebpf.api.incident import Incident, Status
from kcover_ebpf.controller.api_writer import ApiWriter
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.errors import KcoverError
from kcover_ebpf.notify.metrics_pusher import MetricsPusher
from kcover_ebpf.notify.notifier import Notifier
from kcover_ebpf.notify.sending import Sender
from kcover_ebpf.notify.target import NotifyTarget
from kcover_ebpf.tunables.sending import CAUGHT_UP_S

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

_LOG = logging.getLogger(__name__)


class Notices:
    """Connects incidents to the `Notifier`."""

    def __init__(
        self,
        cache: ObjectCache,
        writer: ApiWriter,
        targets: Sequence[NotifyTarget],
        secrets: Path | None,
        collect: Callable[[], Iterable[Family]] = tuple,
        instance: str = "",
    ) -> None:
        """`secrets`: the folder with the secrets of the targets; None: they have none.

        `collect`: the metrics for targets that want them; `instance`: the name of this replica.
        """
        self._store, self._writer = cache, writer
        self._noting = threading.Lock()
        sender = Sender(secrets)
        self.notifier = Notifier(targets, sender.send, self._note)
        self._pushers = [
            MetricsPusher(target, collect, sender, instance)
            for target in targets
            if target.metrics_s
        ]

    @property
    def threads(self) -> list[threading.Thread]:
        """The sending threads: one per target, and one more per target of metrics."""
        return [*self.notifier.threads, *(pusher.thread for pusher in self._pushers)]

    def start(self) -> None:
        """Start the sending threads."""
        self.notifier.start()
        for pusher in self._pushers:
            pusher.start()

    def close(self, within_s: float) -> None:
        """Deliver what is due and drop the rest, within `within_s` seconds for each target."""
        self.notifier.close(within_s)
        for pusher in self._pushers:
            pusher.close(within_s)

    def publish(self, incident: Incident, status: Status) -> None:
        """Notify targets that an incident entered a phase; returns at once."""
        self.notifier.publish(incident, status, self._rules(incident))

    def catch_up(self) -> None:
        """Notify targets of recently ended incidents without a record of it: an earlier leader may have died."""
        since_s = self._store.wall() - CAUGHT_UP_S
        for incident in list(self._store.incidents.values()):
            status = incident.status
            if status is not None and status.phase.is_over and status.last_s > since_s:
                self.publish(incident, status)

    def _rules(self, incident: Incident) -> tuple[NotifyRule, ...]:
        if incident.policy is None:
            return ()
        named = self._store.policies.named(incident.namespace, incident.policy)
        return named.policy.notify if named is not None else ()

    def _note(self, incident: Incident, notified: str) -> None:
        # threads of several targets may report the end of one incident at the same time
        with self._noting:
            known = self._store.incidents.get(incident.key)
            if known is None or known.uid != incident.uid or notified in known.notified:
                return
            try:
                raw = self._writer.note_notified(known, " ".join((*known.notified, notified)))
            except KcoverError as error:
                _LOG.info("cannot record who was notified of incident %s: %s", incident.name, error)
                return
            written = self._store.read_incident(raw)
            if written is not None:
                self._store.put(written)
