"""The readers of an agent: their confinement, and warnings if it is incomplete."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kcover_ebpf.agent.reader import logs, ranks
from kcover_ebpf.agent.reader.client import ConfinedReader
from kcover_ebpf.agent.reader.logs import LogPlan, ReadLogs
from kcover_ebpf.agent.reader.ranks import ReadRanks
from kcover_ebpf.confined import device_group
from kcover_ebpf.errors import LoadError
from kcover_ebpf.watching import py_spy
from kcover_ebpf.watching.job_watch import RankSources

if TYPE_CHECKING:
    from kcover_ebpf.collectives.nccl.probes import NcclProbes
    from kcover_ebpf.host.open_files import OpenFiles


class ConfinedReaders:
    """Created while all privileges are there, started once they are dropped."""

    def __init__(
        self, plan: LogPlan | None, groups: Iterable[Path], on_error: Callable[[str], None]
    ) -> None:
        """`plan`: None: no logs are read. `groups`: directories in which our own control group may lie."""
        self._on_error = on_error
        self.ends: Counter[str] = Counter()
        """Reader name -> how often it ended."""
        self._group = None
        try:
            self._group = device_group.make(groups)
        except LoadError as error:
            text = "the readers are not denied access to device nodes"
            on_error(f"{text}: {error}")
        entrance = None if self._group is None else self._group.entrance
        threads = ConfinedReader("threads", replace(ranks.THREADS, group=entrance), self._note_end)
        answers = ConfinedReader("answers", replace(ranks.ANSWERS, group=entrance), self._note_end)
        self._readers = [threads, answers]
        # few nodes ever need the reader of answers: the first question starts it
        self._first = [threads]
        self.ranks = ReadRanks(threads, answers)
        self.spies = replace(py_spy.SPY, group=entrance)
        self.logs: ReadLogs | None = None
        if plan is not None:
            reader = ConfinedReader(
                "logs", replace(logs.CONFINEMENT, group=entrance), self._note_end
            )
            self._readers.append(reader)
            self._first.append(reader)
            self.logs = ReadLogs(reader, plan)

    @property
    def sources(self) -> RankSources:
        """Readers of what ranks wrote, for the loop."""
        return RankSources(self.ranks, self.ranks, self.ranks, self.spies, self.ranks)

    @property
    def refuses_devices(self) -> bool:
        """True if the kernel refuses device nodes to all readers."""
        return self._group is not None

    @property
    def names(self) -> list[str]:
        return [reader.name for reader in self._readers]

    def start(self, nccl: NcclProbes | None = None, files: OpenFiles | None = None) -> None:
        """Start the readers; returns at once.

        From now on a reader reads the libraries to probe, and open `files` of processes.
        """
        for reader in self._first:
            reader.start()
        if files is not None:
            files.read_by(self.ranks.open_files)
        if nccl is not None:
            nccl.read_by(self.ranks.functions)

    def close(self) -> None:
        """End all readers."""
        for reader in self._readers:
            reader.close()
        if self._group is not None:
            with contextlib.suppress(OSError):
                self._group.close()

    def _note_end(self, name: str, why: str) -> None:
        self.ends[name] += 1
        self._on_error(f"the reader of {name} ended and is restarted: {why}")
