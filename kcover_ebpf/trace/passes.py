"""The passes of one run over a job that may be stuck already, and the verdict after them."""

from __future__ import annotations

import itertools
import time
from collections import Counter, deque
from collections.abc import Iterator

from kcover_ebpf.diagnosis import oneshot
from kcover_ebpf.diagnosis.evidence import odd_stack
from kcover_ebpf.diagnosis.evidence.snapshot import Finding
from kcover_ebpf.diagnosis.oneshot_waits import PassHistory
from kcover_ebpf.host import procfs
from kcover_ebpf.model.verdict import Cause, Verdict, VerdictKind
from kcover_ebpf.tunables.trace import (
    ALIKE_PASSES,
    BUSY_S,
    FAULT_PASSES,
    PASSES,
    PATIENT_S,
    STORAGE_S,
)
from kcover_ebpf.watching.loop import Sensor

_MAY_BE_STORAGE = (Cause.CHECKPOINT, Cause.LOADING)


def passes(sensor: Sensor, history: PassHistory) -> Iterator[int]:
    """Close passes, with a pause between them; yields the number of each, from 1. The caller stops the iteration."""
    for number in itertools.count(1):
        sensor.examine()
        history.note(sensor.job)
        yield number
        sensor.rest()


class Settling:
    """Detects when a verdict can be given: when the finding stays the same, and is not just silence."""

    def __init__(self, history: PassHistory) -> None:
        self._history = history
        self._began_s = time.monotonic()
        self._found: deque[tuple[object, ...]] = deque(maxlen=ALIKE_PASSES)
        self._faults: Counter[tuple[object, ...]] = Counter()

    def is_over(self, sensor: Sensor, number: int) -> bool:
        """Called after each pass, with its number; True if a verdict can be given."""
        finding = oneshot.finding(sensor.job, self._history)
        seen: tuple[object, ...] = ()
        if finding is not None and finding.cause not in oneshot.QUIET:
            seen = finding.kind, finding.cause, finding.pid, finding.rank
        self._found.append(seen)
        if finding is not None and finding.kind.is_fault:
            self._faults[seen] += 1
        if number < PASSES:
            return False
        # a rank that checks its workers every few seconds seems active for a moment each time
        if self._faults[seen] >= FAULT_PASSES:
            return True
        spent_s = time.monotonic() - self._began_s
        if spent_s >= PATIENT_S:
            return True
        if finding is not None and finding.cause in _MAY_BE_STORAGE and spent_s < STORAGE_S:
            return False
        if spent_s < BUSY_S and (
            _computes(finding) or oneshot.undecided(sensor.job, self._history)
        ):
            return False
        silent = finding is not None and finding.cause in oneshot.QUIET
        if silent and oneshot.a_rank_waits(sensor.job, self._history):
            return False
        return len(set(self._found)) == 1


def _computes(finding: Finding | None) -> bool:
    # the other ranks may have waited for longer than was observed yet
    return finding is not None and (finding.kind, finding.cause) == (
        VerdictKind.WORKING,
        Cause.COMPUTING,
    )


def conclude(sensor: Sensor, history: PassHistory) -> Verdict:
    """The verdict at this moment, from all passes so far."""
    finding = oneshot.conclusion(sensor.job, history)
    if finding is not None:
        finding = odd_stack.explained(sensor.job.snapshot(), finding)
    return sensor.tracker.snapshot(sensor.job, procfs.unix_offset_s(), finding)
