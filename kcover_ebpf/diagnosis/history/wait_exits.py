"""Detects that a thread which waits for a device on a CPU left its wait in between. Pure.

A wait that burns a CPU never sleeps, so the kernel counts no voluntary switch in it (kernel/sched/core.c, `__schedule`;
a yield counts as another kind). The rest of a step does sleep: for a batch, for the lock of an interpreter, for a
thread that launches. So a wait in which the thread slept was several. A hung rank may sleep now and then as well, at a
lock of the driver that a watchdog may take ten times a second, but not as often as in its steps.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from kcover_ebpf.diagnosis.history.code_map import Code
from kcover_ebpf.facts.kernel import ThreadSample
from kcover_ebpf.ids import NS
from kcover_ebpf.tunables.certainty import WAIT_EXIT_SHARE, WAIT_EXIT_SLEEPS
from kcover_ebpf.tunables.sampling import WAIT_EXITS_KEPT

_ON_CPU = frozenset({Code.DEVICE, Code.COLLECTIVE})
"""MPI sleeps between two polls for messages if it has fewer CPUs than ranks."""


class WaitExits:
    """Exits from the busy waits of one thread, by its sleeps."""

    def __init__(self) -> None:
        self._per_s: deque[float] = deque(maxlen=WAIT_EXITS_KEPT)
        """Number of sleeps in each of the last passes in which it left its wait."""

    def observe(
        self, earlier_sample: ThreadSample, later_sample: ThreadSample, code: Code | None
    ) -> bool:
        """True if it left its wait between two samples that found it waiting in `code`."""
        sleeps = later_sample.voluntary_count - earlier_sample.voluntary_count
        if code not in _ON_CPU or sleeps < WAIT_EXIT_SLEEPS:
            return False
        # a thread at rest is not sent: it slept since the last pass
        since_ns = max(earlier_sample.boottime_ns, later_sample.previous_ns)
        per_s = sleeps * NS / max(1, later_sample.boottime_ns - since_ns)
        if self._per_s and per_s < WAIT_EXIT_SHARE * median(self._per_s):
            return False
        self._per_s.append(per_s)
        return True
