"""What a futex word reveals about the lock around it: its kind, and the thread that owns it. Pure.

Sources: glibc's nptl/lowlevellock.h (a locked mutex with waiters has the value 2, and waiters wait for 2), the layout
of struct __pthread_mutex_s (sysdeps/nptl/bits/struct_mutex.h: lock, count, owner, nusers, kind), nptl/sem_waitcommon.c,
nptl/pthread_join_common.c (waits until the kernel clears the joined thread's tid), futex(2) for the words of
priority-inheriting locks.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from kcover_ebpf.dataclass import dataclass

_COMMAND = 0x7F
_PRIVATE = 0x80
_WAIT, _WAIT_BITSET, _LOCK_PI, _LOCK_PI2, _WAIT_REQUEUE_PI = 0, 9, 6, 13, 11
_TID_MASK = 0x3FFFFFFF
_KIND_LIMIT = 512


@dataclass(frozen=True, slots=True)
class Lock:
    """A futex that a thread waits on."""

    kind: str
    """One of mutex, thread (a join), semaphore, condition, unknown."""
    private: bool
    """Only threads of one process can release it."""
    holder: int | None
    """The thread that owns it (or is joined), by its number on this host; None if the word does not show it."""


def owner(operation: int, expected: int, memory: bytes) -> int | None:
    """The thread that owns the lock of a futex call, or is joined, by its number in its own pid namespace.

    Arguments as for `describe`. None if the word does not show it. If no thread has this number, it is a
    coincidence.
    """
    command = operation & _COMMAND
    if len(memory) < 4:
        return None
    (word,) = struct.unpack_from("=I", memory)
    if command in (_LOCK_PI, _LOCK_PI2):
        return int(word & _TID_MASK) or None
    is_join = command == _WAIT_BITSET and not operation & _PRIVATE
    if is_join and word == expected & 0xFFFFFFFF and word:
        return int(word)
    return _mutex_owner(word, expected, memory) if command in (_WAIT, _WAIT_BITSET) else None


def describe(
    operation: int, expected: int, memory: bytes, threads: Mapping[int, int]
) -> Lock | None:
    """The lock of a futex call, from its `operation` and value and the `memory` from the word on.

    `threads` are the threads that could hold it: number in their own pid namespace -> number here.
    None if the call is no wait.
    """
    command, private = operation & _COMMAND, bool(operation & _PRIVATE)
    if command not in (_WAIT, _WAIT_BITSET, _LOCK_PI, _LOCK_PI2, _WAIT_REQUEUE_PI):
        return None
    if len(memory) < 4:
        return Lock("unknown", private, None)
    (word,) = struct.unpack_from("=I", memory)
    if command in (_LOCK_PI, _LOCK_PI2):
        return Lock("mutex", private, threads.get(word & _TID_MASK))
    if word == expected & 0xFFFFFFFF and word in threads and not private:
        return Lock("thread", private, threads[word])
    owner = _mutex_owner(word, expected, memory)
    if owner is not None:
        return Lock("mutex", private, threads.get(owner))
    if expected & 0xFFFFFFFF == 0 and command == _WAIT_BITSET:
        waiters = struct.unpack_from("=I", memory, 4)[0] if len(memory) >= 8 else 0
        kind = "semaphore" if word == 0 and 0 < waiters < _KIND_LIMIT else "condition"
        return Lock(kind, private, None)
    return Lock("unknown", private, None)


def _mutex_owner(word: int, expected: int, memory: bytes) -> int | None:
    if expected & 0xFFFFFFFF != 2 or word != 2 or len(memory) < 20:
        return None
    _count, owner, users, kind = struct.unpack_from("=IiIi", memory, 4)
    if owner > 0 and 0 < users < _TID_MASK and 0 <= kind < _KIND_LIMIT:
        return int(owner)
    return None
