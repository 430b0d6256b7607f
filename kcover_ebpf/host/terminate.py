"""End all processes of a job together: stop every one, so that none sees another die, then kill.

A rank that sees its peer die writes misleading errors and leaves with its own exit code,
which a job controller takes for the fault.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from kcover_ebpf.host import cgroups
from kcover_ebpf.tunables.host import KILL_POLL_S

_BATCH = 256
"""Processes pinned by a descriptor at a time, far below any limit of open files."""

Members = Callable[[], set[int]]
Pinned = Mapping[int, int]
"""A descriptor of each process (pidfd), by its number."""


def send(
    members: Members,
    pids: set[int],
    number: signal.Signals,
    before: Callable[[Pinned], None] = lambda _: None,
) -> None:
    """Send a signal to those of `pids` that are members, never to a process with a recycled pid.

    Processes we may not signal, or that are gone, are passed over: the caller checks which are left. `before`: is given
    those that are about to get it; what it raises keeps them from it.
    """
    waiting = sorted(pids)
    for start in range(0, len(waiting), _BATCH):
        with contextlib.ExitStack() as stack:
            pinned = dict(_pin(waiting[start : start + _BATCH], stack))
            those = {pid: pinned[pid] for pid in pinned.keys() & members()}
            before(those)
            for pid in those:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    signal.pidfd_send_signal(pinned[pid], number)


def _pin(pids: list[int], stack: contextlib.ExitStack) -> Iterator[tuple[int, int]]:
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except OSError as error:
            # EINVAL: Linux 5.10 to 6.14, for a leader that is gone while its process group or session lives on
            if error.errno not in (errno.ESRCH, errno.EINVAL):
                raise
            continue
        stack.callback(os.close, descriptor)
        yield pid, descriptor


def ask_to_end(members: Members) -> None:
    """SIGTERM to every member; stopped ones are continued, or they would not see it."""
    pids = members()
    send(members, pids, signal.SIGTERM)
    send(members, pids, signal.SIGCONT)


def kill_whole(members: Members, group: Path | None, wait_s: float) -> set[int]:
    """Stop, then kill every member; returns those still there after `wait_s` seconds.

    Those are in an uninterruptible call, or we lack the privilege to kill them.
    `group` is the control group that holds the members and no other process, or None.
    """
    deadline_s = time.monotonic() + wait_s
    try:
        if group is None or not cgroups.can_kill(group):
            raise FileNotFoundError(group)
        cgroups.kill_as_one(group)
    except OSError:  # cgroup v1, Linux before 5.14, a group just removed
        stop_all(members, deadline_s)
    while (left := members()) and time.monotonic() < deadline_s:
        send(members, left, signal.SIGKILL)
        time.sleep(KILL_POLL_S)
    return members()


def stop_all(
    members: Members, deadline_s: float, before: Callable[[Pinned], None] = lambda _: None
) -> set[int]:
    """SIGSTOP to every member, until no new one appears or `deadline_s` (time.monotonic) is over; those it was sent to.

    A process that has not stopped yet may fork. `before`: as of `send`.
    """
    stopped: set[int] = set()
    while (fresh := members() - stopped) and time.monotonic() < deadline_s:
        send(members, fresh, signal.SIGSTOP, before)
        stopped |= fresh
    return stopped
