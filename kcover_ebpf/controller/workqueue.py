"""A queue of keys to reconcile: each once, none by two workers at the same time, with optional delay."""

from __future__ import annotations

import heapq
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Generic, TypeVar

from kcover_ebpf.tunables.controller import EVENT_BURST_S

_Key = TypeVar("_Key")
_MOST_RESTS = 1000


class WorkQueue(Generic[_Key]):
    """Thread-safe queue; times are monotonic seconds."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        share: int | None = None,
        owner_of: Callable[[_Key], str] = lambda _: "",
    ) -> None:
        """`share`: keys of one owner handled at a time, None: no limit."""
        self._clock, self._share, self._owner_of = clock, share, owner_of
        self._running: Counter[str] = Counter()
        self._parked: dict[str, dict[_Key, None]] = {}
        """Owner -> keys that came due while the owner's share was used up, in order."""
        self._heap: list[tuple[float, int, _Key]] = []
        self._due: dict[_Key, float] = {}
        self._busy: set[_Key] = set()
        self._again: set[_Key] = set()
        """Keys that came due while they were being handled."""
        self._rests: dict[_Key, float] = {}
        """Key -> time before which it is not handed out."""
        self._count = 0
        self._ready = threading.Condition()
        self._closed = False

    def add(self, key: _Key, after_s: float = EVENT_BURST_S) -> None:
        """Reconcile a key after this many seconds, or earlier if it is due earlier already."""
        with self._ready:
            now_s = self._clock()
            due_s = max(now_s + after_s, self._rests.get(key, 0.0))
            if key in self._due and self._due[key] <= due_s:
                return
            self._due[key] = due_s
            self._count += 1
            heapq.heappush(self._heap, (due_s, self._count, key))
            self._ready.notify()

    def take(self) -> _Key | None:
        """Wait for the next key and take it; None once the queue is closed. Return it with `done`."""
        with self._ready:
            while not self._closed:
                wait_s = self._next_s()
                if wait_s is not None and wait_s <= 0:
                    _, _, key = heapq.heappop(self._heap)
                    del self._due[key]
                    if key in self._busy:
                        self._again.add(key)
                    elif self._has_room(key):
                        self._busy.add(key)
                        return key
                    continue
                self._ready.wait(wait_s)
            return None

    def _has_room(self, key: _Key) -> bool:
        if self._share is None:
            return True
        owner = self._owner_of(key)
        if self._running[owner] >= self._share:
            self._parked.setdefault(owner, {})[key] = None
            return False
        self._running[owner] += 1
        return True

    def _leave(self, key: _Key) -> _Key | None:
        """Free the share of a handled key; returns the longest waiting key of its owner."""
        if self._share is None:
            return None
        owner = self._owner_of(key)
        self._running[owner] -= 1
        if self._running[owner] <= 0:
            del self._running[owner]
        parked = self._parked.get(owner, {})
        first = next(iter(parked), None)
        if first is not None:
            del parked[first]
        if not parked:
            self._parked.pop(owner, None)
        return first

    def _next_s(self) -> float | None:
        # skip entries that an earlier due time replaced
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] - self._clock() if self._heap else None

    def done(self, key: _Key, rest_s: float = 0.0) -> None:
        """Return a key; if it came due meanwhile, it may be taken again `rest_s` from now."""
        with self._ready:
            self._busy.discard(key)
            waited = self._leave(key)
            if rest_s > 0:
                self._rest(key, rest_s)
            again = key in self._again
            self._again.discard(key)
        if again:
            self.add(key)
        if waited is not None:
            self.add(waited, 0.0)

    def _rest(self, key: _Key, rest_s: float) -> None:
        now_s = self._clock()
        if len(self._rests) > _MOST_RESTS:
            self._rests = {rest: at_s for rest, at_s in self._rests.items() if at_s > now_s}
        self._rests[key] = now_s + rest_s

    def close(self) -> None:
        """Close the queue and release all waiting workers."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()
