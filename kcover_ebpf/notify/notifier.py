"""Queues of messages, with one thread per target. Code that makes decisions never waits for a delivery."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import Any

from prometheus_client.core import CounterMetricFamily

from kcover_ebpf.api.fault_policy import NotifyRule
from kcover_ebpf.api.incident import Incident, Status
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import NotSent
from kcover_ebpf.notify.message import Message, message_of
from kcover_ebpf.notify.target import NotifyTarget
from kcover_ebpf.tunables.sending import (
    GIVE_UP_S,
    LONGEST_RETRY_S,
    MESSAGES_REMEMBERED,
    RETRY_S,
    WAITING,
)

_LOG = logging.getLogger(__name__)
RESULTS = ("sent", "failed", "dropped")
Send = Callable[[NotifyTarget, Message], bool]
"""Delivers a message; returns whether there was a recipient. Raises `NotSent`."""
Done = Callable[[Incident, str], None]
"""Called with the incident and TARGET:PHASE after the message about an incident's end was handled."""


@dataclass(slots=True)
class _Waiting:
    """One undelivered message; times are monotonic seconds."""

    incident: Incident
    message: Message
    is_end: bool
    first_s: float
    due_s: float
    tries: int = 0


@dataclass(slots=True)
class _Queue:
    """Undelivered messages for one target, in order."""

    target: NotifyTarget
    waiting: deque[_Waiting] = field(default_factory=deque)
    added: threading.Condition = field(default_factory=threading.Condition)
    is_closing: bool = False


class Notifier:
    """Accepts messages without waiting, and delivers them in its threads."""

    def __init__(
        self,
        targets: Sequence[NotifyTarget],
        send: Send,
        done: Done = lambda *_: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send, self._done, self._clock = send, done, clock
        self._queues = {target.name: _Queue(target) for target in targets}
        self._known: OrderedDict[tuple[str, str, str], None] = OrderedDict()
        """(target, incident, phase or empty) of accepted messages."""
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()
        self.unknown_count = 0
        """Rules that name a target which is not in the operator's list or not for their namespace."""
        self.threads = [
            threading.Thread(target=self._run, args=(queue,), name=f"notify {name}", daemon=True)
            for name, queue in self._queues.items()
        ]

    def start(self) -> None:
        """Start one thread per target."""
        for thread in self.threads:
            thread.start()

    def close(self, within_s: float) -> None:
        """Deliver what is due and give up the rest, within `within_s` seconds."""
        for queue in self._queues.values():
            with queue.added:
                queue.is_closing = True
                queue.added.notify()
        until_s = time.monotonic() + within_s
        for thread in self.threads:
            thread.join(max(0.0, until_s - time.monotonic()))

    def publish(self, incident: Incident, status: Status, rules: Sequence[NotifyRule]) -> None:
        """Queue the messages for an incident that entered a phase. Returns at once; nothing is sent twice."""
        every = [
            NotifyRule(queue.target.name)
            for queue in self._queues.values()
            if queue.target.every_incident
        ]
        for rule in (*rules, *every):
            queue = self._queues.get(rule.target)
            if queue is None or not queue.target.serves(incident.namespace):
                if rule not in every and self._is_first([(rule.target, incident.uid, "?")]):
                    self.unknown_count += 1
                continue
            if rule.means(status, queue.target.ends) and self._is_new(incident, status, rule):
                self._add(queue, incident, status)

    def _is_new(self, incident: Incident, status: Status, rule: NotifyRule) -> bool:
        phase, notified = status.phase.value, incident.notified
        if f"{rule.target}:{phase}" in notified:
            return False
        if not rule.phases and any(text.startswith(f"{rule.target}:") for text in notified):
            return False
        # a rule without phases sends only one message per incident, whatever follows
        words = (phase,) if rule.phases else (phase, "")
        return self._is_first([(rule.target, incident.uid, word) for word in words])

    def _is_first(self, keys: Sequence[tuple[str, str, str]]) -> bool:
        with self._lock:
            if any(key in self._known for key in keys):
                return False
            for key in keys:
                self._known[key] = None
            while len(self._known) > MESSAGES_REMEMBERED:
                self._known.popitem(last=False)
        return True

    def _add(self, queue: _Queue, incident: Incident, status: Status) -> None:
        now_s = self._clock()
        message = message_of(incident, status)
        with queue.added:
            if len(queue.waiting) >= WAITING:
                self._count(queue.target, "dropped")
                return
            queue.waiting.append(_Waiting(incident, message, status.phase.is_over, now_s, now_s))
            queue.added.notify()

    def _count(self, target: NotifyTarget, result: str) -> None:
        with self._lock:
            self._counts[target.name, result] += 1

    def _run(self, queue: _Queue) -> None:
        while True:
            with queue.added:
                wait_s = queue.waiting[0].due_s - self._clock() if queue.waiting else None
                if wait_s is None or wait_s > 0:
                    if queue.is_closing:
                        return
                    queue.added.wait(wait_s)
                    continue
                waiting = queue.waiting[0]
            is_done = self._deliver(queue.target, waiting)
            with queue.added:
                if is_done:
                    queue.waiting.popleft()

    def _deliver(self, target: NotifyTarget, waiting: _Waiting) -> bool:
        """One delivery attempt; True if no other attempt follows."""
        try:
            if self._send(target, waiting.message):
                self._count(target, "sent")
        except NotSent as error:
            pause_s = min(RETRY_S * 2.0**waiting.tries, LONGEST_RETRY_S)
            waiting.tries += 1
            waiting.due_s = self._clock() + pause_s
            if not error.is_final and waiting.due_s - waiting.first_s < GIVE_UP_S:
                _LOG.info("target %s: %s; again in %.0f s", target.name, error, pause_s)
                return False
            _LOG.warning(
                "target %s: %s; the message about %s is given up",
                target.name,
                error,
                waiting.message.incident,
            )
            self._count(target, "failed")
        except Exception:  # noqa: BLE001
            # a message that cannot be converted must not block those after it
            _LOG.exception("target %s: internal error, please report it", target.name)
            self._count(target, "failed")
        if waiting.is_end:
            self._done(waiting.incident, f"{target.name}:{waiting.message.phase}")
        return True

    def collect(self) -> Iterator[Any]:
        """Metrics in the form that prometheus_client collects."""
        family = CounterMetricFamily(
            "kcover_notifications",
            "Messages about incidents: delivered, given up, or dropped because too many waited.",
            labels=("target", "result"),
        )
        with self._lock:
            counts = dict(self._counts)
        for name in self._queues:
            for result in RESULTS:
                family.add_metric([name, result], counts.get((name, result), 0))
        yield family
        unknown = CounterMetricFamily(
            "kcover_notifications_unknown",
            "Messages that a policy wanted sent to a target that is not on the operator's list, or not for its "
            "namespace.",
        )
        unknown.add_metric([], self.unknown_count)
        yield unknown
