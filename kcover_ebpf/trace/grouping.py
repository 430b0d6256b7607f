"""Merges equal rows and stacks: the odd one out first. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TypeVar

from kcover_ebpf.model.traced import Stack
from kcover_ebpf.trace.records import TracedThread
from kcover_ebpf.tunables.trace import SHOWN_BUSY_SHARE

_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+")
T = TypeVar("T")


def together(items: Iterable[T], key: Callable[[T], object]) -> list[list[T]]:
    """Groups of equal key, the smallest first; groups of equal size stay in order."""
    found: dict[object, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return sorted(found.values(), key=len)


def wait_key(thread: TracedThread) -> tuple[object, ...]:
    """Equal for threads that wait in the same way, ignoring addresses, ranks and times."""
    return (
        thread.role,
        thread.lead,
        thread.state,
        thread.call,
        _NUMBERS.sub("N", thread.text.partition("(")[0]),
    )


def stack_key(stack: Stack) -> tuple[object, ...]:
    """Equal for threads at the same position in the program."""
    if stack.python:
        return "python", *stack.python
    return "native", *stack.native, *stack.kernel


def interesting(thread: TracedThread, rows_by_tid: dict[int, TracedThread]) -> bool:
    """True if a thread other than the lead deserves a line: it works, is stopped, or owns what others wait for."""
    stuck = thread.state in ("D", "T", "t")
    busy = thread.cpu_share is not None and thread.cpu_share >= SHOWN_BUSY_SHARE
    known = any(
        target.kind in ("lock", "thread") and target.tid in rows_by_tid
        for target in thread.waits_for
    )
    return stuck or busy or known


def lock_holders(rows: Iterable[TracedThread]) -> set[int]:
    """Threads that own a lock that others wait for."""
    targets = (target for row in rows for target in row.waits_for)
    return {
        target.tid
        for target in targets
        if target.kind in ("lock", "thread") and target.tid is not None
    }
