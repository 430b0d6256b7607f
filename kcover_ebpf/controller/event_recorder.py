"""Events about incidents and nodes, for `kubectl describe`: one per series and object, sent by a separate thread.

Repetitions within a short time are sent once, with the last text. So a restart of a job, which goes through five
phases, costs two requests, and none while 150 jobs wait for a decision.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import KcoverError
from kcover_ebpf.tunables.controller import EVENT_PAUSE_S, EVENT_SETTLE_S

_LOG = logging.getLogger(__name__)
NEED_RECOVERY = "kcover.io/need-recovery"
"""Annotation with which kcover's Events ask for a restart; ours about pods carry it for programs that read kcover's."""
_MOST_WAITING = 5_000
_MOST_KNOWN = 5_000


@dataclass(frozen=True, slots=True)
class PendingEvent:
    """One Event as it was last sent."""

    about: Mapping[str, str]
    """`apiVersion`, `kind`, `name`, `uid`, and `namespace` unless it is a node."""
    name: str
    """Name of the Event; the same for all events of one series about one object."""
    reason: str
    text: str
    warning: bool
    """True for an Event of type Warning."""
    first_s: float
    last_s: float
    count: int = 1
    is_known: bool = False
    """True if the API server already has the Event."""


Send = Callable[[PendingEvent], None]


class EventRecorder:
    """Takes Events without waiting, and sends them in its own thread."""

    def __init__(self, send: Send, wall: Callable[[], float]) -> None:
        """`send`: creates an Event or replaces the one with its name; raises `KcoverError`."""
        self._send, self._wall = send, wall
        self._waiting: OrderedDict[str, PendingEvent] = OrderedDict()
        self._known: OrderedDict[str, PendingEvent] = OrderedDict()
        """Events that were sent, to continue their counts."""
        self._lock = threading.Lock()
        self._added = threading.Event()
        self._closing = False
        self.thread = threading.Thread(target=self._run, name="events", daemon=True)
        self.lost_count = 0
        """Number of Events that never reached the API server: too many at once, or refused."""

    def start(self) -> None:
        """Start the sending thread; returns at once."""
        self.thread.start()

    def publish(
        self, series: str, about: Mapping[str, str], reason: str, text: str, warning: bool
    ) -> None:
        """Queue an Event about an object; `series`: the incident's name, or another key by which Events are counted."""
        now_s = self._wall()
        name = name_of(series, about)
        with self._lock:
            before = self._waiting.pop(name, None) or self._known.get(name)
            event = PendingEvent(about, name, reason, text, warning, now_s, now_s)
            if before is not None:
                count, is_known = before.count + 1, name in self._known
                event = replace(event, first_s=before.first_s, count=count, is_known=is_known)
            if len(self._waiting) >= _MOST_WAITING:
                self._waiting.popitem(last=False)
                self.lost_count += 1
            self._waiting[name] = event
        self._added.set()

    def due(self) -> tuple[PendingEvent | None, float | None]:
        """Events to send now; otherwise the seconds until the next is due, None if none waits."""
        with self._lock:
            if not self._waiting:
                return None, None
            name, event = next(iter(self._waiting.items()))
            wait_s = event.last_s + EVENT_SETTLE_S - self._wall()
            if 0.0 < wait_s <= EVENT_SETTLE_S and not self._closing:
                return None, wait_s
            del self._waiting[name]
            self._known.pop(name, None)
            self._known[name] = event
            if len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)
            return event, None

    def close(self, within_s: float) -> None:
        """Send the waiting Events without further delay, within `within_s` seconds."""
        self._closing = True
        self._added.set()
        self.thread.join(within_s)

    def _run(self) -> None:
        while True:
            event, wait_s = self.due()
            if event is not None:
                self._try(event)
                time.sleep(EVENT_PAUSE_S)
            elif self._closing:
                return
            else:
                self._added.wait() if wait_s is None else time.sleep(wait_s)
                self._added.clear()

    def _try(self, event: PendingEvent) -> None:
        try:
            self._send(event)
        except KcoverError as error:
            self.lost_count += 1
            _LOG.debug("cannot write an Event: %s", error)


def name_of(series: str, about: Mapping[str, str]) -> str:
    """A name that stays the same after a restart of the controller."""
    digest = hashlib.sha256(f"{series} {about.get('kind')} {about.get('uid')}".encode()).hexdigest()
    return f"{about.get('name', '')[:200].rstrip('-.')}.{digest[:16]}"
