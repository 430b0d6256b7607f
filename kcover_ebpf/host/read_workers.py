"""Reads that may never return, in threads that may be left behind.

Reading the memory, command line or environment of a process blocks for as long as something in the kernel holds
its memory lock, which a call into a driver or a file system that does not answer may do for ever; a file of sysfs
waits for firmware. So whoever must continue asks here, and takes what is there.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from kcover_ebpf.tunables.host import READ_STUCK_S

_WORKERS = 3
_MOST_WORKERS = 16
"""Two for each rank of a node with eight GPUs. Each stuck one is a thread of ours in state D."""

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


@dataclass(slots=True, eq=False)
class _Task(Generic[_Key, _Value]):
    key: _Key
    read: Callable[[], _Value]
    began_s: float = 0.0
    dropped: bool = False


class Readers(Generic[_Key, _Value]):
    """At most one read of each key is under way. Used by one thread; its workers live until `close`."""

    def __init__(self, name: str) -> None:
        """`name`: of the threads."""
        self._name = name
        self._tasks: dict[_Key, _Task[_Key, _Value]] = {}
        self._asked: SimpleQueue[_Task[_Key, _Value] | None] = SimpleQueue()
        self._done: SimpleQueue[tuple[_Task[_Key, _Value], _Value | None]] = SimpleQueue()
        self._running: set[_Task[_Key, _Value]] = set()
        self._worker_count = 0

    def ask(self, key: _Key, read: Callable[[], _Value]) -> bool:
        """Begin a read; False if one of this key is under way, or all threads are stuck."""
        if key in self._tasks or not self._has_worker():
            return False
        task = self._tasks[key] = _Task(key, read)
        self._asked.put(task)
        return True

    def take(self, wanted: Collection[_Key], timeout_s: float) -> list[tuple[_Key, _Value | None]]:
        """All that is done, None for what could not be read; waits for `wanted` alone."""
        found: list[tuple[_Key, _Value | None]] = []
        if self._tasks:
            self._has_worker()  # what was asked before may wait behind what is stuck now
        waiting = set(wanted) & self._tasks.keys()
        deadline_s = time.monotonic() + timeout_s
        while self._tasks:
            left_s = max(0.0, deadline_s - time.monotonic()) if waiting else 0.0
            try:
                task, value = self._done.get(timeout=left_s)
            except Empty:
                break
            if self._tasks.get(task.key) is task:
                waiting.discard(task.key)
                del self._tasks[task.key]
                found.append((task.key, value))
        return found

    def stuck(self) -> dict[_Key, float]:
        """Keys whose reads are under way for longer than `READ_STUCK_S`, and since when (monotonic)."""
        now_s = time.monotonic()
        return {
            task.key: task.began_s
            for task in list(self._running)
            if now_s - task.began_s > READ_STUCK_S and not task.dropped
        }

    @property
    def is_asking(self) -> bool:
        """Some read is under way, or its result was not taken yet."""
        return bool(self._tasks)

    def is_asked(self, key: _Key) -> bool:
        """A read of this key is under way, or its result was not taken yet."""
        return key in self._tasks

    def forget(self, key: _Key) -> None:
        """What is being read of this key is not wanted any more."""
        task = self._tasks.pop(key, None)
        if task is not None:
            task.dropped = True

    def close(self) -> None:
        """Nothing is asked any more: the workers end, those that are stuck once they return."""
        for _ in range(self._worker_count):
            self._asked.put(None)

    def _has_worker(self) -> bool:
        now_s = time.monotonic()
        stuck_count = sum(now_s - task.began_s > READ_STUCK_S for task in list(self._running))
        while self._worker_count < min(_WORKERS + stuck_count, _MOST_WORKERS):
            with contextlib.suppress(
                RuntimeError
            ):  # no more threads: those that are there continue
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
                self._worker_count += 1
                continue
            break
        return self._worker_count > stuck_count

    def _work(self) -> None:
        while True:
            task = self._asked.get()
            if task is None:
                return
            if task.dropped:
                continue
            task.began_s = time.monotonic()
            self._running.add(task)
            value = None
            with contextlib.suppress(Exception):
                value = task.read()
            self._running.discard(task)
            self._done.put((task, value))
