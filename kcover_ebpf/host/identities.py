"""Identifies processes without waiting for any of them, so that one slow process does not delay the others."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from functools import partial

from kcover_ebpf.facts.host import ProcessSeen, Unreadable
from kcover_ebpf.host import procfs
from kcover_ebpf.host.read_workers import Readers
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.tunables.host import IDENTITY_WAIT_S


class Identities:
    """Identities of the processes of all jobs on a node; used by one thread."""

    def __init__(self) -> None:
        self._readers: Readers[Pid, ProcessSeen | None] = Readers("kcover-identify")
        self._ready: dict[Pid, ProcessSeen] = {}

    def learn(
        self, pids: Collection[Pid], variables: Collection[str]
    ) -> Iterable[ProcessSeen | Unreadable]:
        """The identities known now; call again for processes that are not among them.

        No process is waited for twice: if its memory lock is taken, it stays unidentified and is reported as
        `Unreadable`.
        """
        self._take((), 0.0)
        asked = [
            pid
            for pid in pids
            if pid not in self._ready
            and self._readers.ask(pid, partial(procfs.read_process, pid, variables))
        ]
        self._take(asked, IDENTITY_WAIT_S)
        stuck = self._readers.stuck()
        now_ns, now_s = procfs.boottime_ns(), time.monotonic()
        for pid in pids:
            if pid in self._ready:
                yield self._ready.pop(pid)
            elif pid in stuck:
                yield Unreadable(now_ns, pid, now_ns - int((now_s - stuck[pid]) * NS))

    def _take(self, asked: Collection[Pid], timeout_s: float) -> None:
        for pid, seen in self._readers.take(asked, timeout_s):
            if seen is not None:
                self._ready[pid] = seen

    def forget(self, pid: Pid) -> None:
        """Forget a process that ended or became another program."""
        self._ready.pop(pid, None)
        self._readers.forget(pid)
