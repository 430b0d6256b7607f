"""Runs reads that may block forever in worker threads that can be abandoned.

Reading the memory, command line or environment of a process blocks while its memory lock is taken. A call into a
hanging driver or file system can keep that lock forever. A file of sysfs waits for firmware. So a caller that must
not block requests reads here, and takes those that are done.

Normally one thread reads; when a read is slow, another thread takes over. More threads would only cost time:
threads that run together pass Python's lock to each other at every system call, and threads that wait at one queue
wake each other for nothing.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.tunables.host import READ_SLOW_S, READ_STUCK_S

_MOST_THREADS = 16
"""Two for each rank of a node with eight GPUs. Each blocked one is a thread of ours in state D."""

_Calls = SimpleQueue[bool]
"""Each item wakes one thread; False ends it."""

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


@dataclass(slots=True, eq=False)
class _Task(Generic[_Key, _Value]):
    key: _Key
    read: Callable[[], _Value]
    began_s: float = 0.0
    dropped: bool = False


class Readers(Generic[_Key, _Value]):
    """Runs at most one read per key at a time. Used by one thread; its own threads live until `close`."""

    def __init__(self, name: str) -> None:
        """`name`: prefix of the names of its threads."""
        self._name = name
        self._tasks: dict[_Key, _Task[_Key, _Value]] = {}
        self._asked: deque[_Task[_Key, _Value]] = deque()
        self._done: deque[tuple[_Task[_Key, _Value], _Value | None]] = deque()
        self._idle: SimpleQueue[None] = SimpleQueue()
        """Gets an item each time that nothing is left to read."""
        self._calls: _Calls | None = None
        """Queue of the thread that reads now; None before the first read."""
        self._running: dict[_Calls, _Task[_Key, _Value]] = {}
        """What each thread reads now: the current one, and slow ones that it took over from."""

    def ask(self, key: _Key, read: Callable[[], _Value]) -> bool:
        """Request a read; False if one with this key is in progress, or all threads are blocked."""
        if key in self._tasks or not self._has_thread():
            return False
        task = self._tasks[key] = _Task(key, read)
        self._asked.append(task)
        self._call()
        return True

    def take(self, wanted: Collection[_Key], timeout_s: float) -> list[tuple[_Key, _Value | None]]:
        """All results, with None for a failed read; waits only for those in `wanted`."""
        found: list[tuple[_Key, _Value | None]] = []
        waiting = set(wanted) & self._tasks.keys()
        deadline_s = time.monotonic() + timeout_s
        while self._tasks:
            # a request made earlier may wait behind one that is slow now
            if self._asked and self._has_thread():
                self._call()
            while not self._idle.empty():
                self._idle.get()
            found += self._collect()
            waiting &= self._tasks.keys()
            left_s = deadline_s - time.monotonic()
            if not waiting or left_s <= 0:
                break
            with contextlib.suppress(Empty):
                self._idle.get(timeout=min(left_s, READ_SLOW_S))
        return found

    def _collect(self) -> Iterator[tuple[_Key, _Value | None]]:
        while self._done:
            task, value = self._done.popleft()
            if self._tasks.get(task.key) is task:
                del self._tasks[task.key]
                yield task.key, value

    def stuck(self) -> dict[_Key, float]:
        """Keys whose reads have taken longer than `READ_STUCK_S`, and since when (monotonic)."""
        now_s = time.monotonic()
        return {
            task.key: task.began_s
            for task in list(self._running.values())
            if now_s - task.began_s > READ_STUCK_S and not task.dropped
        }

    @property
    def is_asking(self) -> bool:
        """True while a read is in progress or its result was not taken yet."""
        return bool(self._tasks)

    def is_asked(self, key: _Key) -> bool:
        """True while a read of this key is in progress or its result was not taken yet."""
        return key in self._tasks

    def forget(self, key: _Key) -> None:
        """Drop the result of a read of this key, also if it is still in progress."""
        task = self._tasks.pop(key, None)
        if task is not None:
            task.dropped = True

    def close(self) -> None:
        """Accept no more requests. The threads end; blocked ones do so once they return."""
        self._asked.clear()
        if self._calls is not None:
            self._calls.put(False)

    def _call(self) -> None:
        """Wake the thread that reads, unless it is awake."""
        if self._asked and self._calls is not None and self._calls not in self._running:
            self._calls.put(True)

    def _has_thread(self) -> bool:
        """Let another thread take over if the current one is slow; False if no more threads are allowed."""
        if self._calls is not None:
            task = self._running.get(self._calls)
            if task is None or time.monotonic() - task.began_s < READ_SLOW_S:
                return True
        if len(self._running) >= _MOST_THREADS:
            return False
        calls: _Calls = SimpleQueue()
        thread = threading.Thread(target=self._work, args=(calls,), name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads
            return False
        before, self._calls = self._calls, calls
        if before is not None:
            before.put(False)  # it may have returned at this moment, and would wait forever
        return True

    def _work(self, calls: _Calls) -> None:
        while calls.get():
            # a thread that was slow may return at this moment, and take the last request
            with contextlib.suppress(IndexError):
                while self._calls is calls:
                    self._read(self._asked.popleft(), calls)
            self._idle.put(None)
            if self._calls is not calls:
                return

    def _read(self, task: _Task[_Key, _Value], calls: _Calls) -> None:
        if task.dropped:
            return
        task.began_s = time.monotonic()
        self._running[calls] = task
        value = None
        with contextlib.suppress(Exception):
            value = task.read()
        self._done.append((task, value))
        del self._running[calls]
