"""Who reads what the ranks of a job have written: this process where the job is its user's, else confined readers."""

from __future__ import annotations

import os
from dataclasses import field
from typing import TYPE_CHECKING

from kcover_ebpf.confined.helper import Confinement
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.host.thread_reader import ThreadReadings, ThreadSource
from kcover_ebpf.watching import py_spy

if TYPE_CHECKING:
    from kcover_ebpf.collectives.ras.client import RasSource
    from kcover_ebpf.collectives.recorder.dump_request import RecorderSource


def _here() -> ThreadSource:
    return ThreadReadings(os.uname().machine)


@dataclass(frozen=True, slots=True)
class RankSources:
    """One for all jobs of a program."""

    threads: ThreadSource = field(default_factory=_here)
    recorders: RecorderSource | None = None
    """PyTorch's flight recorders; None: this process."""
    ras: RasSource | None = None
    """NCCL's RAS; None: this process."""
    confinement: Confinement = py_spy.SPY
    """Of py-spy."""
