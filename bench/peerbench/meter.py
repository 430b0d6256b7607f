"""CPU time and resident memory of processes, from /proc, while something else runs.

By field 14 to 17 of /proc/PID/stat and not by the threads' schedstat as in bench/costbench: a way that
runs py-spy again and again is mostly children that have ended, and those are counted nowhere else.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
_PERIOD_S = 0.5


class Meter:
    """Of some processes and the children that they have waited for; begin, then end."""

    def __init__(self) -> None:
        self._cpu_s: dict[int, float] = {}
        self._peak = 0
        self._done = threading.Event()

    def begin(self, pids: Iterable[int]) -> None:
        """Measure from now on."""
        self._pids = list(pids)
        self._began_s, self._used_s = time.monotonic(), self._read()
        threading.Thread(target=self._follow, daemon=True).start()

    def end(self) -> dict[str, float]:
        """CPU in cores and the largest resident memory in bytes; the last figure before a process ended counts."""
        self._done.set()
        cores = (self._read() - self._used_s) / (time.monotonic() - self._began_s)
        return {"cores": round(cores, 5), "resident_bytes": self._peak}

    def _follow(self) -> None:
        while not self._done.wait(_PERIOD_S):
            self._read()

    def _read(self) -> float:
        resident = 0
        for pid in self._pids:
            try:
                words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            # utime, stime, and those of children that were waited for
            self._cpu_s[pid] = sum(map(int, words[11:15])) * _TICK_S
            resident += int(words[21]) * os.sysconf("SC_PAGE_SIZE")
        self._peak = max(self._peak, resident)
        return sum(self._cpu_s.values())
