"""Stops, continues and kills the processes of containers, never any other.

Each process is pinned by a descriptor and searched for in its container's group again before it is sent
anything (`host.terminate.send`), so a number that is used again harms no other process.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection, Sequence

from kcover_ebpf.agent import containers
from kcover_ebpf.agent.containers import RunningContainer
from kcover_ebpf.agent.orders.order_journal import ProcessRef
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.host import procfs, terminate
from kcover_ebpf.ids import Pid
from kcover_ebpf.tunables.agent import KILL_WAIT_S, STOP_POLL_S, STOP_WAIT_S


@dataclass(frozen=True, slots=True)
class StopOutcome:
    """What came of it."""

    count: int
    """Processes that were signalled."""
    left: tuple[int, ...] = ()
    """Those that did not do as they were ordered."""


def already_stopped(found: Sequence[RunningContainer]) -> set[ProcessRef]:
    """Processes that something else has stopped: they stay so when ours are let go."""
    return {
        ProcessRef(pid, start)
        for pid in containers.processes(found)
        if containers.is_stopped(pid) and (start := containers.start_ticks(pid)) is not None
    }


def stop(
    found: Sequence[RunningContainer],
    hold: Callable[[Sequence[int]], None],
    keep: Collection[int] = (),
) -> StopOutcome:
    """SIGSTOP to all, again until a pass finds none new; returns once all are stopped, or after a second.

    `hold`: is given pidfds of all but those in `keep`, before they are stopped; what it raises keeps them running.
    """
    deadline_s = time.monotonic() + STOP_WAIT_S
    stopped = terminate.stop_all(
        lambda: containers.processes(found),
        deadline_s,
        lambda pinned: hold([number for pid, number in pinned.items() if pid not in keep]),
    )
    while (left := _moving(containers.processes(found))) and time.monotonic() < deadline_s:
        time.sleep(STOP_POLL_S)
    return StopOutcome(len(stopped), tuple(sorted(left)))


def _moving(pids: Collection[int]) -> set[int]:
    return {pid for pid in pids if not containers.is_stopped(pid)}


def resume(found: Sequence[RunningContainer], keep: Collection[int] = ()) -> StopOutcome:
    """SIGCONT to all but those in `keep`."""
    pids = containers.processes(found) - set(keep)
    terminate.send(lambda: containers.processes(found), pids, signal.SIGCONT)
    return StopOutcome(len(pids))


def kill_all(found: Sequence[RunningContainer]) -> StopOutcome:
    """The same, and to every process that is not ended by that; `left` after half a second still computes.

    PID 1 of a container ends the others when it ends, and one in an uninterruptible call does not.
    """
    first = kill(found)
    deadline_s = time.monotonic() + KILL_WAIT_S
    while (left := _computing(containers.processes(found))) and time.monotonic() < deadline_s:
        time.sleep(STOP_POLL_S)
    if left:
        terminate.send(lambda: containers.processes(found), left, signal.SIGKILL)
        left = _computing(left)
    return StopOutcome(first.count, tuple(sorted(left)))


def _computing(pids: Collection[int]) -> set[int]:
    return {pid for pid in pids if not procfs.is_dying(Pid(pid))}


def kill(found: Sequence[RunningContainer]) -> StopOutcome:
    """SIGKILL to PID 1 of each container, which ends all of it."""
    pids = {pid for container in found for pid in containers.inits(container)}
    terminate.send(lambda: containers.processes(found), pids, signal.SIGKILL)
    return StopOutcome(len(pids))
