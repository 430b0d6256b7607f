"""One job's ranks, counted: their launches as a clock of progress, and who is behind once the job has stalled."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kcover_ebpf.facts.host import CollectivesLaunched, CollectivesSeen
from kcover_ebpf.hardware import ras
from kcover_ebpf.hardware.nccl.counts import account
from kcover_ebpf.hardware.nccl.probes import NcclProbes
from kcover_ebpf.hardware.ras import RasRank, RasReport, said
from kcover_ebpf.host import procfs
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.tunables.hardware import NCCL_ANSWER_PAUSE_NS, NCCL_FIRST_PAUSE_S, NCCL_PAUSE_SHARE

_MOST_RANKS = 16
"""Of one job on this host: the tables have room for 24 processes, and no job takes it all."""


@dataclass(slots=True)
class _Search:
    began_ns: int
    due_ns: int


class NcclWatch:
    """`follow` and `joined` never wait."""

    def __init__(self, probes: NcclProbes) -> None:
        self._probes = probes
        self._searches: dict[Pid, _Search] = {}
        self._launched: dict[Pid, int] = {}
        self._host = os.uname().nodename
        self._readings: list[tuple[int, RasReport]] = []
        self._reading_count = 0
        self._ras: CollectivesSeen | None = None
        self._own: CollectivesSeen | None = None

    def follow(self, ranks: Mapping[Pid, object]) -> list[CollectivesLaunched]:
        """Count these processes and no others; what they launched since the last call."""
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
        """It ended, or became another program."""
        if self._searches.pop(pid, None) is not None:
            self._launched.pop(pid, None)
            self._probes.forget(pid)

    def close(self) -> None:
        """Count none of them any more."""
        for pid in list(self._searches):
            self.forget(pid)

    def joined(
        self,
        asks: bool,
        ras_facts: Sequence[CollectivesSeen],
        ranks: Mapping[Pid, object],
        world_size: int | None,
    ) -> list[CollectivesSeen]:
        """What RAS and the counts say together, as one answer, if either said something new.

        `asks`: there is reason to ask now.
        """
        if not asks:
            self._readings, self._reading_count = [], 0
            self._ras = self._own = None
            return []
        own = self._answer(ranks, world_size)
        if own is None and not ras_facts:
            return []
        self._own, self._ras = own or self._own, ras_facts[-1] if ras_facts else self._ras
        answer = chosen(self._ras, self._own)
        return [] if answer is None else [answer]

    def _answer(
        self, ranks: Mapping[Pid, object], world_size: int | None
    ) -> CollectivesSeen | None:
        """What the counts say; None where it is too early to say anything new."""
        now_ns = procfs.boottime_ns()
        if self._readings and now_ns - self._readings[-1][0] < NCCL_ANSWER_PAUSE_NS:
            return None
        counted = [pid for pid in ranks if (each := self._probes.attempt(pid)) and each.links]
        if not counted:
            self._readings = []
            return CollectivesSeen(now_ns, now_ns, trouble=self._why_none(ranks))
        whole = world_size == len(ranks) == len(counted)
        found = account(self._probes.read(counted), self._host, all_here=whole)
        # the first and the last since a count changed: all between were alike
        first = [each for each in self._readings[:1] if _names(each[1]) == _names(found.report)]
        self._readings = [*first, (now_ns, found.report)]
        self._reading_count = self._reading_count + 1 if first else 1
        if not found.report.communicators:
            return CollectivesSeen(now_ns, now_ns, trouble=found.unseen or "none was launched")
        reading = ras.read([report for _, report in self._readings])
        if reading is None:
            return None
        if reading.moving:
            began_ns = self._readings[0][0]
            self._readings, self._reading_count = self._readings[-1:], 1
            return CollectivesSeen(now_ns, began_ns, moving=True)
        sure = tuple(each for each in reading.behind if Pid(each[0].pid) not in found.hidden)
        reading = replace(reading, behind=sure)
        if not (reading.behind or reading.sides or reading.complete):
            return None
        times_ns = self._readings[0][0], now_ns
        fact = said.fact(times_ns, reading, self._reading_count, _here)
        return replace(fact, unseen=found.unseen)

    def _why_none(self, ranks: Mapping[Pid, object]) -> str:
        if any(pid in self._probes.stuck for pid in ranks):
            return "reading NCCL's library has not returned"
        tried = [each for pid in ranks if (each := self._probes.attempt(pid)) is not None]
        return next((each.reason for each in tried if each.reason), "its NCCL is not counted")


def _names(report: RasReport) -> set[str]:
    return {each.name for each in report.communicators}


def _here(rank: RasRank) -> Pid:
    return Pid(rank.pid)


def chosen(ras_said: CollectivesSeen | None, own: CollectivesSeen | None) -> CollectivesSeen | None:
    """One answer of two about the same operations: they are one kind of evidence.

    NCCL's own counts come first, for they are of all hosts. They leave out messages between two ranks: so where all
    launched the same collectives, who is behind with messages is named.
    """
    if own is None or ras_said is None:
        return ras_said or own
    if ras_said.trouble:
        return ras_said if own.trouble else own
    if own.trouble:
        return ras_said
    if own.moving:
        return own if own.boottime_ns > ras_said.boottime_ns else ras_said
    if ras_said.moving:
        return own if own.since_ns > ras_said.boottime_ns else ras_said
    if ras_said.behind or ras_said.missing or ras_said.failed or ras_said.sides:
        return ras_said
    return own if own.behind or own.sides else ras_said
