"""Has NCCL Inspector's files read while a job is slow or has stalled, beside the sensor's loop and never in it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial

from kcover_ebpf.collectives.inspector.ranks import InspectorHere, InspectorSource
from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.diagnosis.membership.rank_numbers import INSPECTOR_FOLDER
from kcover_ebpf.errors import ReaderError
from kcover_ebpf.facts.inspector import InspectorSeen, SlowCollective
from kcover_ebpf.host import procfs
from kcover_ebpf.host.read_workers import Readers
from kcover_ebpf.ids import Pid
from kcover_ebpf.tunables.collectives import INSPECTOR_PAUSE_S, INSPECTOR_RANKS

_Slow = tuple[SlowCollective, ...]
_ALL = "inspector"


class InspectorWatch:
    """One job's files. `tick` never waits."""

    def __init__(self, source: InspectorSource | None = None) -> None:
        """`source`: who reads; None: this process."""
        self._source = source or InspectorHere()
        self._readers: Readers[str, _Slow] | None = None
        self._next_s = 0.0

    def tick(self, asks: bool, ranks: Mapping[Pid, ProcessHistory]) -> list[InspectorSeen]:
        """What was read since the last call; `asks`: the job is slow or has stalled."""
        news: list[InspectorSeen] = []
        if self._readers is not None:
            taken = self._readers.take((), 0.0)
            news = [InspectorSeen(procfs.boottime_ns(), slow) for _, slow in taken if slow]
        now_s = time.monotonic()
        if not asks or now_s < self._next_s:
            return news
        writers = [pid for pid, process in ranks.items() if writes(process)][:INSPECTOR_RANKS]
        if writers:
            self._readers = self._readers or Readers("kcover-inspector")
            self._readers.ask(_ALL, partial(_read, self._source, writers))
            self._next_s = now_s + INSPECTOR_PAUSE_S
        return news

    def close(self) -> None:
        """Nothing more is read."""
        if self._readers is not None:
            self._readers.forget(_ALL)
            self._readers.close()
            self._readers = None


def writes(process: ProcessHistory) -> bool:
    """True if the environment of a rank says where NCCL Inspector writes."""
    return process.seen is not None and INSPECTOR_FOLDER in process.seen.rank_environ


def _read(source: InspectorSource, pids: list[Pid]) -> _Slow:
    try:
        return source.slow_collectives(pids)
    except ReaderError:
        return ()
