"""A fault that a drill injects into one process of a pod, or into its containers, and its removal.

It runs in the agent's container, in a separate process that an operator starts there. A stopped process is resumed
when its time is over, when the operator's connection ends, when this process is gone (the `Resumer` has its
descriptor), and when the whole container was killed: the next agent reads the record and resumes it
(`finish_left`). The same holds for faults injected into containers (`drill_means`).
"""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import Self

from kcover_ebpf.agent import containers
from kcover_ebpf.agent.drill_lock import HeldLock
from kcover_ebpf.agent.drill_means import (
    Means,
    Partition,
    Slowdown,
    are_changed,
    cpu_ticks,
    print_error,
    write_back,
)
from kcover_ebpf.agent.drill_note import DrillNote
from kcover_ebpf.agent.orders.resumer import Resumer
from kcover_ebpf.api.codec import decode, encode
from kcover_ebpf.api.drill import DrillEnd, DrillFault, DrillOver, Injected
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import CannotObserve, ObjectError, UsageError
from kcover_ebpf.host import procfs, terminate
from kcover_ebpf.host.bounded import read_bytes
from kcover_ebpf.host.process_tree import is_same_alive, read_stat
from kcover_ebpf.ids import Pid
from kcover_ebpf.tunables.agent import DRILL_POLL_S

RECORD = "drill.json"
"""File in the agent's state directory; exists while a drill has stopped a process."""
_RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
_KEY = "drill"
_ENVIRON_BYTES = 64 << 10
Members = Callable[[], set[int]]


@dataclass(frozen=True, slots=True)
class _Record:
    """The target process. Its start time distinguishes it from a later process with the same pid."""

    pid: int
    start_ticks: int
    limits: Mapping[str, str] = field(default_factory=dict)
    """Original CPU limits by file; empty unless the drill changed them."""


class Drill:
    """One injected fault. A context manager: leaving it undoes the fault."""

    def __init__(
        self,
        members: Members,
        state_dir: Path,
        longest_s: float,
        groups: Callable[[], list[Path]] = list,
    ) -> None:
        """`members`: the processes of the pod's ranks now; `groups`: the control groups of their containers.

        `longest_s`: no fault lasts longer.
        """
        self._members, self._path, self._longest_s = members, state_dir / RECORD, longest_s
        self._groups = groups
        self._means: Means | None = None
        self._resumer = Resumer(longest_s)
        self._record: _Record | None = None
        self._is_kept = self._is_stopping = False
        self._stop = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._take_back()
        self._resumer.close()

    def inject(self, fault: DrillFault) -> Injected:
        """Inject into the rank of the pod; raises `UsageError` without one, `ActionError` if it could not be undone."""
        pid = _busiest(self._members())
        stat = read_stat(pid) if pid is not None else None
        if pid is None or stat is None:
            raise UsageError("no process runs in the pod's containers; name a pod that trains")
        record, rank = _Record(pid, stat.start_ticks), _rank(pid)
        match fault:
            case DrillFault.KILL:
                terminate.send(self._members, {pid}, signal.SIGKILL)
            case DrillFault.LOG:
                print_error(pid)
                terminate.send(self._members, {pid}, signal.SIGKILL)
            case DrillFault.STOP:
                self._keep(record)
                self._stop_process(pid)
            case DrillFault.LOCK:
                self._keep(record)
                self._means = HeldLock(pid)
            case DrillFault.XID_NOTE:
                DrillNote(self._path.parent).leave(Pid(pid))
            case DrillFault.PARTITION:
                self._keep(record)
                self._means = Partition(self._own_groups())
            case DrillFault.SLOW:
                slowdown = Slowdown(self._own_groups())
                limits = {str(path): text for path, text in slowdown.before.items()}
                self._keep(replace(record, limits=limits))
                self._means = slowdown
                slowdown.begin()
        self._record = record
        return Injected(fault, pid, time.time(), rank)

    def _stop_process(self, pid: int) -> None:
        self._is_stopping = True
        terminate.send(
            self._members,
            {pid},
            signal.SIGSTOP,
            partial(self._resumer.hold, _KEY),
        )

    def _own_groups(self) -> list[Path]:
        groups = self._groups()
        if not groups:
            raise CannotObserve("the containers of the pod have no control group here")
        return groups

    def stop(self) -> None:
        """End soon; may be called from another thread or a signal handler."""
        self._stop.set()

    def wait(self) -> DrillOver:
        """Wait until the process is gone, the time is over or `stop` is called; then undo the fault."""
        record = self._record
        assert record is not None
        deadline_s = time.monotonic() + self._longest_s
        while is_same_alive(record.pid, record.start_ticks):
            if time.monotonic() >= deadline_s or self._stop.wait(DRILL_POLL_S):
                self._take_back()
                return DrillOver(DrillEnd.RESUMED, time.time())
        self._take_back()
        return DrillOver(DrillEnd.GONE, time.time())

    def _keep(self, record: _Record) -> None:
        """Write the record to disk before the process is stopped; one drill at a time on a node."""
        left = _read(self._path)
        if left is not None and (_is_stopped(left) or are_changed(left.limits)):
            raise UsageError("another drill is in progress on this node; wait until it is over")
        try:
            self._path.write_text(json.dumps(encode(record)), encoding="utf-8")
        except OSError as error:
            raise CannotObserve(f"cannot write {self._path}: {error.strerror}") from error
        self._is_kept = True

    def _take_back(self) -> None:
        record, self._record = self._record, None
        means, self._means = self._means, None
        if means is not None:
            means.take_back()
        is_there = record is not None and is_same_alive(record.pid, record.start_ticks)
        if record is not None and is_there and self._is_stopping:
            terminate.send(self._members, {record.pid}, signal.SIGCONT)
        self._resumer.drop(_KEY)
        if self._is_kept:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)


def finish_left(state_dir: Path) -> int | None:
    """Resume a process that a drill left stopped or slowed when its container was killed; None if there is none."""
    path = state_dir / RECORD
    left = _read(path)
    is_slow = left is not None and are_changed(left.limits)
    if left is not None and is_slow:
        write_back(left.limits)
    found = is_slow or (left is not None and _is_stopped(left))
    if left is not None and _is_stopped(left):
        terminate.send(lambda: {left.pid}, {left.pid}, signal.SIGCONT)
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
    return left.pid if left is not None and found else None


def _is_stopped(record: _Record) -> bool:
    same = is_same_alive(record.pid, record.start_ticks)
    return same and containers.is_stopped(record.pid)


def _read(path: Path) -> _Record | None:
    try:
        return decode(_Record, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError, ObjectError):
        return None


def _busiest(pids: set[int]) -> int | None:
    """The process with a rank number in its environment that used most CPU time; if none has one, of all processes."""
    ranks = {pid for pid in pids if _rank(pid) is not None}
    return max(ranks or pids, key=cpu_ticks, default=None)


def _rank(pid: int) -> int | None:
    try:
        raw = read_bytes(f"/proc/{pid}/environ", _ENVIRON_BYTES)
    except OSError:
        return None
    found = procfs.parse_environ(raw, _RANK_VARIABLES)
    for name in _RANK_VARIABLES:
        if found.get(name, "").isdecimal():
            return int(found[name])
    return None
