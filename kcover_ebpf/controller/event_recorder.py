"""Events about incidents and nodes, for `kubectl describe`: one for each series and object, out of the way.

What is said again soon is reported once, with the last text. So a restart of a job, which goes through five phases,
costs two requests, and none while 150 jobs wait for a decision.
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
"""Annotation of an Event of kcover's that asks for a restart; ours about pods have it for what reads kcover's."""
_MOST_WAITING = 5_000
_MOST_KNOWN = 5_000


@dataclass(frozen=True, slots=True)
class PendingEvent:
    """One Event as it was sent last."""

    about: Mapping[str, str]
    """`apiVersion`, `kind`, `name`, `uid`, and `namespace` unless it is a node."""
    name: str
    """Of the Event; the same for all that is said in one series about one object."""
    reason: str
    text: str
    warning: bool
    """The Event is of type Warning."""
    first_s: float
    last_s: float
    count: int = 1
    is_known: bool = False
    """The API server has it already, from an earlier word."""


Send = Callable[[PendingEvent], None]


class EventRecorder:
    """Takes what is to be reported, at once, and reports it in its own thread."""

    def __init__(self, send: Send, wall: Callable[[], float]) -> None:
        """`send`: writes an Event, in place of one of that name; raises `KcoverError`."""
        self._send, self._wall = send, wall
        self._waiting: OrderedDict[str, PendingEvent] = OrderedDict()
        self._known: OrderedDict[str, PendingEvent] = OrderedDict()
        """What was sent, to continue counting."""
        self._lock = threading.Lock()
        self._added = threading.Event()
        self._closing = False
        self.thread = threading.Thread(target=self._run, name="events", daemon=True)
        self.lost_count = 0
        """Events that never reached the API server: one too many, or refused."""

    def start(self) -> None:
        """Begin to send."""
        self.thread.start()

    def publish(
        self, series: str, about: Mapping[str, str], reason: str, text: str, warning: bool
    ) -> None:
        """Publish something about an object; `series` is an incident's name, or what else its Events are counted by."""
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
        """What is to be sent now; else seconds until there will be something, None if nothing waits."""
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
        """Send what waits, without waiting any longer, and no later than `within_s` from now."""
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
            _LOG.debug("event: %s", error)


def name_of(series: str, about: Mapping[str, str]) -> str:
    """A name that is the same after a restart of the controller."""
    digest = hashlib.sha256(f"{series} {about.get('kind')} {about.get('uid')}".encode()).hexdigest()
    return f"{about.get('name', '')[:200].rstrip('-.')}.{digest[:16]}"
