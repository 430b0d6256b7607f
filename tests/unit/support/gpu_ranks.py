"""A scripted job whose ranks wait for GPUs."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

from kcover_ebpf.ids import NS
from kcover_ebpf.model.process_state import State

from .scripted_job import Proc, Stage

SYNCHRONIZE = ("libc.so.6+1", "libcuda.so.1+2", "libtorch.so+3", "python3.11+4")
SAVED = ("python3.11+18ce11", *SYNCHRONIZE)
"""The same where the vDSO's clock saved a register of its caller."""
DOUBTFUL = ("python3.11+18ce11", *SYNCHRONIZE[1:])
"""The same where the library called the vDSO by itself: as well own work, with words left over from a wait."""

NAMES = {"libcuda.so.1": 3, "[vdso]": 12}
"""How often a host thread that waits for its device is found where, in 15 passes."""


class Gpu:
    """Ranks that launch, wait for their devices, and begin anew; each seen at a random moment."""

    def __init__(
        self,
        world: int = 8,
        waits: float = 0.8,
        *,
        here: int | None = None,
        names: Mapping[str, int] = NAMES,
        others: tuple[str, ...] = SYNCHRONIZE,
    ) -> None:
        """`others`: nine of ten readings of a wait."""
        self.stage = Stage(world=world, connected=False, here=here)
        self.random, self.waits, self.names = random.Random(7), waits, names
        self.others = others
        self.readings = 0
        self.stuck: set[int] = set()
        self.left_alone: set[int] = set()
        """Ranks that stay as a test left them."""
        for proc in self.stage.procs.values():
            self.stage.become(proc, "run", called_from=SYNCHRONIZE)

    def run(self, seconds: float) -> Iterator[bool]:
        """Whether something seems wrong, after each pass."""
        end_ns = self.stage.now_ns + int(seconds * NS)
        while self.stage.now_ns < end_ns:
            for proc in self.stage.procs.values():
                if proc.rank not in self.left_alone:
                    self._place(proc)
            self.stage.one_pass(NS // 4 if self.stage.job.urgent else NS)
            yield self.stage.job.attention.suspicious

    def _place(self, proc: Proc) -> None:
        waits = proc.rank in self.stuck or self.random.random() < self.waits
        (proc.module,) = (
            self.random.choices(list(self.names), list(self.names.values()))
            if waits
            else ("python3.11",)
        )
        self.readings += 1
        waiting = self.others if self.readings % 10 else SYNCHRONIZE
        proc.called_from = waiting if waits else ("python3.11+4",)

    def spend(self, seconds: float) -> list[bool]:
        return list(self.run(seconds))

    def states(self) -> set[State]:
        snapshot = self.stage.job.snapshot()
        return {snapshot.processes[pid].state for pid in snapshot.ranks}
