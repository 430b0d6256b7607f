"""Ends all processes of a job together: stops every one, so that none sees another die, then kills them.

A rank that sees a peer die writes misleading errors and exits with a code that a job controller takes
for the fault.
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
"""Processes with an open descriptor at a time, far below any limit of open files."""

Members = Callable[[], set[int]]
Pinned = Mapping[int, int]
"""Pid -> descriptor of the process (pidfd)."""


def send(
    members: Members,
    pids: set[int],
    number: signal.Signals,
    before: Callable[[Pinned], None] = lambda _: None,
) -> None:
    """Send a signal to those of `pids` that are members, never to a process that reuses a pid.

    Processes that we may not signal or that no longer exist are skipped; the caller checks which are left.
    `before`: called with those that are about to get the signal; if it raises, none of them gets it.
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
            # EINVAL: Linux 5.10 to 6.14, for a leader that has ended while its process group or
            # session exists
            if error.errno not in (errno.ESRCH, errno.EINVAL):
                raise
            continue
        stack.callback(os.close, descriptor)
        yield pid, descriptor


def ask_to_end(members: Members) -> None:
    """Send SIGTERM to every member; stopped ones are continued, because otherwise they would not handle it."""
    pids = members()
    send(members, pids, signal.SIGTERM)
    send(members, pids, signal.SIGCONT)


def kill_whole(members: Members, group: Path | None, wait_s: float) -> set[int]:
    """Stop, then kill every member; returns those that still exist after `wait_s` seconds.

    Those are in an uninterruptible call, or we lack the privilege to kill them. `group` is the control group with
    these members and no other process, or None.
    """
    deadline_s = time.monotonic() + wait_s
    try:
        if group is None or not cgroups.can_kill(group):
            raise FileNotFoundError(group)
        cgroups.kill_as_one(group)
    except OSError:  # cgroup v1, Linux before 5.14, or the group was just removed
        stop_all(members, deadline_s)
    while (left := members()) and time.monotonic() < deadline_s:
        send(members, left, signal.SIGKILL)
        time.sleep(KILL_POLL_S)
    return members()


def stop_all(
    members: Members, deadline_s: float, before: Callable[[Pinned], None] = lambda _: None
) -> set[int]:
    """Send SIGSTOP to every member, until no new one appears or `deadline_s` (time.monotonic) passes; returns those.

    A process that has not stopped yet may fork. `before`: see `send`.
    """
    stopped: set[int] = set()
    while (fresh := members() - stopped) and time.monotonic() < deadline_s:
        send(members, fresh, signal.SIGSTOP, before)
        stopped |= fresh
    return stopped
