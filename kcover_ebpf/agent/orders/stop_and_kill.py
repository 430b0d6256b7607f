"""Stops, continues and kills the processes of containers, never any other.

Each process is pinned by a descriptor and looked up again in its container's group before it is sent anything
(`host.terminate.send`), so a reused pid harms no other process.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from kcover_ebpf.agent import containers
from kcover_ebpf.agent.containers import RunningContainer
from kcover_ebpf.agent.orders.order_journal import ProcessRef
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.host import procfs, terminate
from kcover_ebpf.ids import Pid
from kcover_ebpf.tunables.agent import KILL_WAIT_S, STOP_POLL_S, STOP_WAIT_S


@dataclass(frozen=True, slots=True)
class StopOutcome:
    """How many processes were signalled, and which did not obey."""

    count: int
    """Number of processes that were signalled."""
    left: tuple[int, ...] = ()
    """Pids that did not stop, or did not end."""


def already_stopped(found: Sequence[RunningContainer]) -> set[ProcessRef]:
    """Processes that something else has stopped: they stay stopped when ours are resumed."""
    return {
        ProcessRef(pid, start)
        for pid in containers.processes(found)
        if containers.is_stopped(pid) and (start := containers.start_ticks(pid)) is not None
    }


def stop(
    found: Sequence[RunningContainer],
    hold: Callable[[Mapping[int, int]], None],
    keep: Collection[int] = (),
) -> StopOutcome:
    """Send SIGSTOP until a pass finds no new process; returns once all are stopped, or after a second.

    `hold`: given all but those in `keep` (pid -> pidfd), before they are stopped; if it raises, they keep running.
    """
    deadline_s = time.monotonic() + STOP_WAIT_S
    stopped = terminate.stop_all(
        lambda: containers.processes(found),
        deadline_s,
        lambda pinned: hold({pid: pidfd for pid, pidfd in pinned.items() if pid not in keep}),
    )
    while (left := _moving(containers.processes(found))) and time.monotonic() < deadline_s:
        time.sleep(STOP_POLL_S)
    return StopOutcome(len(stopped), tuple(sorted(left)))


def _moving(pids: Collection[int]) -> set[int]:
    return {pid for pid in pids if not containers.is_stopped(pid)}


def resume(found: Sequence[RunningContainer], keep: Collection[int] = ()) -> StopOutcome:
    """Send SIGCONT to all but those in `keep`."""
    pids = containers.processes(found) - set(keep)
    terminate.send(lambda: containers.processes(found), pids, signal.SIGCONT)
    return StopOutcome(len(pids))


def kill_all(found: Sequence[RunningContainer]) -> StopOutcome:
    """As `kill`, and SIGKILL to every process that survives it; `left`: those still running after half a second.

    PID 1 of a container ends the others when it ends, but one in an uninterruptible call does not.
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
    """Send SIGKILL to PID 1 of each container, which ends all its processes."""
    pids = {pid for container in found for pid in containers.inits(container)}
    terminate.send(lambda: containers.processes(found), pids, signal.SIGKILL)
    return StopOutcome(len(pids))
