"""When a job made which step, by the note that its rank 0 leaves in a folder (testbed/cluster/train.py)."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Self

from testbed.driver.cluster import until

_PERIOD_S = 0.05
_LEAST_GAP_S = 2.0
"""Four steps of the example: what is shorter is a busy machine."""


@dataclass(frozen=True)
class Gap:
    """A time without a step."""

    before: int
    after: int
    """Steps: the last before it, and the first after."""
    end_s: float
    """Unix seconds."""


class StepLog:
    """Reads the notes while the block lasts."""

    def __init__(self, folder: Path) -> None:
        """`folder` is made; pods get it as a hostPath, which all nodes of the test bed share with this host."""
        self.folder = folder
        self._notes: list[tuple[float, int]] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self.folder.mkdir()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(10)

    def wait_for(self, count: int) -> None:
        """Until so many more steps were made."""
        seen = len(self._notes)
        until(lambda: len(self._notes) >= seen + count, f"{count} more steps")

    def gap(self, since_s: float) -> Gap | None:
        """The longest gap that ended after this moment (unix seconds); None before there is one."""
        notes = list(self._notes)
        gaps = [
            (end_s - begin_s, Gap(before, after, end_s))
            for (begin_s, before), (end_s, after) in pairwise(notes)
            if end_s > since_s and end_s - begin_s > _LEAST_GAP_S
        ]
        return max(gaps, key=lambda found: found[0])[1] if gaps else None

    def _read(self) -> None:
        path = self.folder / "step"
        while not self._end.wait(_PERIOD_S):
            try:
                note = (path.stat().st_mtime, int(path.read_text()))
            except (OSError, ValueError):
                continue
            if not self._notes or self._notes[-1][1] != note[1]:
                self._notes.append(note)
