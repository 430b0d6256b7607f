"""Reads what the processes of a gang are doing, within seconds and without stopping them: threads, stacks, pressure.

Nothing here reads an argument, a variable or an environment. Items that could not be read in time are named.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

from kcover_ebpf.agent.containers import RunningContainer, processes
from kcover_ebpf.archive.node_part import ArchivedThread, GroupPressure
from kcover_ebpf.confined.helper import Confinement
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.facts.syscalls import SyscallTable
from kcover_ebpf.host import bounded
from kcover_ebpf.host.proc_text import split_stat
from kcover_ebpf.host.procfs import thread_ids
from kcover_ebpf.ids import Pid
from kcover_ebpf.model.rank_snapshot import RankSnapshot
from kcover_ebpf.model.traced import Stack
from kcover_ebpf.trace.rank_stacks import StackReading, wait_channel

_THREADS_OF_ONE, _THREADS_OF_ALL = 64, 2048
_THROTTLED = re.compile(r"^(?:nr_throttled|throttled_usec) \d+$", re.MULTILINE)
_NUMBER = re.compile(r"\d+\s*")


@dataclass(slots=True)
class Readings:
    """What was read, and what was left out."""

    threads: tuple[ArchivedThread, ...] = ()
    pressure: tuple[GroupPressure, ...] = ()
    stacks: tuple[Stack, ...] = ()
    unobserved: list[str] = field(default_factory=list)


class EvidenceReading:
    """Reads from containers: stack readers start at once, everything else is read by `finish`."""

    def __init__(
        self,
        found: Sequence[RunningContainer],
        known_ranks: Sequence[RankSnapshot],
        confinement: Confinement | None = None,
    ) -> None:
        """`known_ranks`: ranks known now; `confinement`: of py-spy, None: its default."""
        self._found = found
        self._pids = sorted(processes(found))
        self._stacks = StackReading(self._pids, known_ranks, confinement)

    def finish(
        self, ranks: Sequence[RankSnapshot], names: Mapping[str, str], end_s: float
    ) -> Readings:
        """Read everything until `end_s` (CLOCK_MONOTONIC).

        `ranks`: of the last report; `names`: uid of a pod -> its name.
        """
        readings = Readings()
        readings.pressure = tuple(_pressure(container, names) for container in self._found)
        readings.threads = tuple(_threads(self._pids, ranks, end_s, readings.unobserved))
        readings.stacks, unread = self._stacks.finish(ranks, end_s)
        readings.unobserved += unread
        return readings


def _threads(
    pids: Sequence[int], ranks: Sequence[RankSnapshot], end_s: float, unobserved: list[str]
) -> Iterator[ArchivedThread]:
    known = {rank.pid: rank for rank in ranks}
    table = SyscallTable(os.uname().machine)
    left, skipped = _THREADS_OF_ALL, 0
    for pid in pids:
        rank = known.get(Pid(pid))
        for number, tid in enumerate(thread_ids(pid, _THREADS_OF_ALL)):
            if number >= _THREADS_OF_ONE or left <= 0 or time.monotonic() > end_s:
                skipped += 1
                continue
            left -= 1
            yield _thread(pid, tid, rank, table)
    if skipped:
        unobserved.append(f"{skipped} more threads: there are too many, or no time was left")


def _thread(pid: int, tid: int, rank: RankSnapshot | None, table: SyscallTable) -> ArchivedThread:
    task = f"/proc/{pid}/task/{tid}"
    comm, words = split_stat(bounded.read_text(f"{task}/stat"))
    # only the first word: the others are arguments
    number = bounded.read_text(f"{task}/syscall").partition(" ")[0].strip()
    call = table.name(int(number)) if number.isdigit() else ""
    channel = wait_channel(pid, tid)
    is_lead = rank is not None and tid == (rank.tid or rank.pid)
    return ArchivedThread(
        pid=pid,
        tid=tid,
        comm=comm,
        state=words[0] if words else "?",
        wait=f"{call} in {channel}" if call and channel else call or channel,
        rank=None if rank is None else rank.rank,
        role="" if rank is None else rank.role.value,
        since_s=rank.age_s if rank is not None and is_lead else None,
    )


def _pressure(container: RunningContainer, names: Mapping[str, str]) -> GroupPressure:
    def text(name: str) -> str:
        return bounded.read_text(container.path / name).strip()

    def number(name: str) -> int | None:
        found = text(name)
        return int(found) if _NUMBER.fullmatch(found) else None

    pod = names.get(container.pod_uid, container.pod_uid)
    return GroupPressure(
        name=f"{pod} {container.id[:12]}",
        cpu=text("cpu.pressure"),
        memory=text("memory.pressure"),
        io=text("io.pressure"),
        throttled="\n".join(_THROTTLED.findall(text("cpu.stat"))),
        events=text("memory.events"),
        memory_bytes=number("memory.current"),
        memory_most_bytes=number("memory.max"),
    )
