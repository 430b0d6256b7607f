"""A clock for silences in a log: only time in which the log was read counts, so that a suspended job is not silent."""

from __future__ import annotations

import time
from collections.abc import Callable

from kcover_ebpf.host import procfs
from kcover_ebpf.ids import NS
from kcover_ebpf.tunables.host import LOG_UNREAD_NS


class ObservedClock:
    """Unix seconds at its beginning; from then on it advances with the boottime, and never with a step of the clock.

    Between two readings it advances by `LOG_UNREAD_NS` at most: a longer time was not observed, and what was suspended
    together with the reader (by SIGSTOP, a scheduler, a hypervisor) could print nothing.
    """

    def __init__(self, boottime_ns: Callable[[], int] = procfs.boottime_ns) -> None:
        """`boottime_ns`: returns the current boottime."""
        self._boottime_ns = boottime_ns
        self._last_ns = boottime_ns()
        self._offset_s = time.time() - self._last_ns / NS
        """Seconds to add to a boottime to get a time of this clock."""

    def read(self) -> float:
        """Current time; called at each reading of the log."""
        now_ns = self._boottime_ns()
        unread_ns = max(0, now_ns - self._last_ns - LOG_UNREAD_NS)
        self._last_ns, self._offset_s = now_ns, self._offset_s - unread_ns / NS
        return now_ns / NS + self._offset_s

    def boottime_s(self, time_s: float) -> float:
        """Boottime of a time of this clock, as if all time that it left out had been before."""
        return time_s - self._offset_s
