"""Counts the launches of one job's ranks: a sign of progress, and in a stall the evidence of which rank is behind."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kcover_ebpf.collectives import ras
from kcover_ebpf.collectives.nccl.counts import account
from kcover_ebpf.collectives.nccl.probes import NcclProbes
from kcover_ebpf.collectives.ras import RasRank, RasReport, said
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.facts.host import CollectivesLaunched, CollectivesSeen
from kcover_ebpf.host import procfs
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.tunables.collectives import (
    NCCL_ANSWER_PAUSE_NS,
    NCCL_FIRST_PAUSE_S,
    NCCL_PAUSE_SHARE,
)

_MOST_RANKS = 16
"""Most counted ranks of one job on this host: the tables have room for 24 processes, and no job
gets them all."""


@dataclass(slots=True)
class _Search:
    began_ns: int
    due_ns: int


class NcclWatch:
    """Follows one job. `follow` and `joined` never wait."""

    def __init__(self, probes: NcclProbes) -> None:
        self._probes = probes
        self._searches: dict[Pid, _Search] = {}
        self._launched: dict[Pid, int] = {}
        self._host = os.uname().nodename
        self._readings: list[tuple[int, RasReport]] = []
        self._reading_count = 0
        self._ras_collectives: CollectivesSeen | None = None
        self._collectives: CollectivesSeen | None = None

    def follow(self, ranks: Mapping[Pid, object]) -> list[CollectivesLaunched]:
        """Count these processes and no others; returns their launches since the last call."""
        now_ns = procfs.boottime_ns()
        self._probes.collect()
        for pid in self._searches.keys() - ranks.keys():
            self.forget(pid)
        for pid in ranks:
            self._search(pid, now_ns)
        if not self._searches:
            return []
        found = []
        for pid, total in self._probes.totals().items():
            if pid in self._searches:
                before = self._launched.get(pid, 0)
                self._launched[pid] = total
                if total > before:
                    found.append(CollectivesLaunched(now_ns, pid, total - before))
        return found

    def _search(self, pid: Pid, now_ns: int) -> None:
        search = self._searches.get(pid)
        if search is None:
            if len(self._searches) >= _MOST_RANKS:
                return
            search = self._searches[pid] = _Search(now_ns, now_ns)
        if now_ns >= search.due_ns:
            pause_ns = NCCL_PAUSE_SHARE * (now_ns - search.began_ns)
            search.due_ns = now_ns + int(max(NCCL_FIRST_PAUSE_S * NS, pause_ns))
            self._probes.attach(pid)

    def forget(self, pid: Pid) -> None:
        """Stop counting a process that ended or became another program."""
        if self._searches.pop(pid, None) is not None:
            self._launched.pop(pid, None)
            self._probes.forget(pid)

    def close(self) -> None:
        """Stop counting all processes of the job."""
        for pid in list(self._searches):
            self.forget(pid)

    def joined(
        self,
        asks: bool,
        ras_facts: Sequence[CollectivesSeen],
        ranks: Mapping[Pid, object],
        world_size: int | None,
    ) -> list[CollectivesSeen]:
        """RAS and the counts combined into one answer, if either has something new.

        `asks`: there is a reason to ask now, usually a stall.
        """
        if not asks:
            self._readings, self._reading_count = [], 0
            self._ras_collectives = self._collectives = None
            return []
        own = self._answer(ranks, world_size)
        if own is None and not ras_facts:
            return []
        self._collectives, self._ras_collectives = (
            own or self._collectives,
            ras_facts[-1] if ras_facts else self._ras_collectives,
        )
        answer = chosen(self._ras_collectives, self._collectives)
        return [] if answer is None else [answer]

    def _answer(
        self, ranks: Mapping[Pid, object], world_size: int | None
    ) -> CollectivesSeen | None:
        """The answer of the counts; None if it is too early for a new one."""
        now_ns = procfs.boottime_ns()
        if self._readings and now_ns - self._readings[-1][0] < NCCL_ANSWER_PAUSE_NS:
            return None
        counted = [pid for pid in ranks if (attempt := self._probes.attempt(pid)) and attempt.links]
        if not counted:
            self._readings = []
            return CollectivesSeen(now_ns, now_ns, trouble=self._why_none(ranks))
        whole = world_size == len(ranks) == len(counted)
        found_account = account(self._probes.read(counted), self._host, all_here=whole)
        # the first and the last reading since a count changed; those in between were equal
        first = [
            pair for pair in self._readings[:1] if _names(pair[1]) == _names(found_account.report)
        ]
        self._readings = [*first, (now_ns, found_account.report)]
        self._reading_count = self._reading_count + 1 if first else 1
        if not found_account.report.communicators:
            return CollectivesSeen(
                now_ns, now_ns, trouble=found_account.unseen or "none was launched"
            )
        reading = ras.read([report for _, report in self._readings])
        if reading is None:
            return None
        if reading.moving:
            began_ns = self._readings[0][0]
            self._readings, self._reading_count = self._readings[-1:], 1
            return CollectivesSeen(now_ns, began_ns, moving=True)
        sure = tuple(
            pair for pair in reading.behind if Pid(pair[0].pid) not in found_account.hidden
        )
        reading = replace(reading, behind=sure)
        if not (reading.behind or reading.sides or reading.complete):
            return None
        times_ns = self._readings[0][0], now_ns
        fact = said.fact(times_ns, reading, self._reading_count, _here)
        return replace(fact, unseen=found_account.unseen)

    def _why_none(self, ranks: Mapping[Pid, object]) -> str:
        if any(pid in self._probes.stuck for pid in ranks):
            return "reading NCCL's library has not returned"
        tried = [attempt for pid in ranks if (attempt := self._probes.attempt(pid)) is not None]
        return next(
            (attempt.reason for attempt in tried if attempt.reason),
            "its NCCL is not counted",
        )


def _names(report: RasReport) -> set[str]:
    return {communicator.name for communicator in report.communicators}


def _here(rank: RasRank) -> Pid:
    return Pid(rank.pid)


def chosen(
    collectives: CollectivesSeen | None, own_collectives: CollectivesSeen | None
) -> CollectivesSeen | None:
    """Chooses between two answers about the same operations, because they are one kind of evidence.

    RAS has priority, because it covers all hosts. But it does not count messages between two ranks: if all ranks
    launched the same collectives, the answer that names the rank behind with messages is used.
    """
    if own_collectives is None or collectives is None:
        return collectives or own_collectives
    if collectives.trouble:
        return collectives if own_collectives.trouble else own_collectives
    if own_collectives.trouble:
        return collectives
    if own_collectives.moving:
        return (
            own_collectives
            if own_collectives.boottime_ns > collectives.boottime_ns
            else collectives
        )
    if collectives.moving:
        return (
            own_collectives if own_collectives.since_ns > collectives.boottime_ns else collectives
        )
    if collectives.behind or collectives.missing or collectives.failed or collectives.sides:
        return collectives
    return own_collectives if own_collectives.behind or own_collectives.sides else collectives
