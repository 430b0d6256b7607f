"""The timed waits from which the child of a rank wakes again and again while that rank trains. Pure.

A program that reports, watches or sends heartbeats wakes from a timed wait, does little, and waits at the same place of
its code again, as long as its rank lives. It does so while the job hangs too, so it explains no wait.
"""

from __future__ import annotations

from collections import deque
from dataclasses import field
from statistics import median

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.diagnosis.history.sampled_call import FoundWaits, is_timed, poll_timeout_ms
from kcover_ebpf.diagnosis.history.thread import ThreadHistory
from kcover_ebpf.facts.kernel import TaskState, ThreadSample
from kcover_ebpf.facts.syscalls import SyscallTable
from kcover_ebpf.tunables.certainty import BACKGROUND_CPUS, EFFORT_FACTOR
from kcover_ebpf.tunables.diagnosis import MOVE_SHARE
from kcover_ebpf.tunables.sampling import BACKGROUND_INTERVALS, EFFORT_INTERVAL_NS, PLACES_KEPT

_Place = tuple[int, int]
"""(system call, user stack pointer) of a timed wait."""


@dataclass(slots=True)
class Rhythm:
    """Timed waits of the lead thread of one process, pass by pass; times are boottime nanoseconds."""

    unusual_ns: int = 0
    """Last progress that was more than such a wake; 0 before the first."""
    _count: int = 0
    """Passes in which its rank made progress."""
    _found: dict[_Place, FoundWaits] = field(default_factory=dict)
    """Place -> those of these passes that found it in a timed wait there."""
    _shares: deque[float] = field(default_factory=lambda: deque(maxlen=BACKGROUND_INTERVALS))
    """Share of a CPU that it used in each of the last such passes."""
    _strays_ns: int = 0
    """Since when each progress found it elsewhere; 0 if the last one did not."""
    _began: tuple[int, int] = (0, 0)
    """(boottime, CPU time) at the start of its present interval."""

    def note_beside(self, lead_thread: ThreadHistory, moved_ns: int, table: SyscallTable) -> None:
        """Note its activity in a pass in which its rank moved data, at the boottime `moved_ns`."""
        self._count += 1
        self._shares.append(lead_thread.cpu_share)
        place = _timed_place(lead_thread.sample, table)
        if place is None or (place not in self._found and len(self._found) >= PLACES_KEPT):
            return
        found = self._found.setdefault(place, FoundWaits(first_ns=moved_ns))
        found.last_ns, found.count = moved_ns, found.count + 1

    def on_progress(self, lead_thread: ThreadHistory, table: SyscallTable) -> None:
        """Note that the lead thread did something since its previous sample.

        On a CPU it may be anywhere: its use of CPU shows whether it works. One wake is a good part of a short pass, so
        the share is taken over half a second at least; work elsewhere must last as long.
        """
        sample = lead_thread.sample
        place = _timed_place(sample, table)
        if sample.state is not TaskState.RUNNING:
            strays = place is None or not self._is_usual(place)
            self._strays_ns = (self._strays_ns or sample.boottime_ns) if strays else 0
        strayed_ns = sample.boottime_ns - self._strays_ns if self._strays_ns else 0
        is_long = strayed_ns >= EFFORT_INTERVAL_NS
        if is_long or not self.is_known or self._takes_more(sample):
            self.unusual_ns = sample.boottime_ns

    def _takes_more(self, sample: ThreadSample) -> bool:
        began_ns, began_cpu_ns = self._began
        elapsed_ns = sample.boottime_ns - began_ns
        if elapsed_ns < EFFORT_INTERVAL_NS:
            return False
        self._began = sample.boottime_ns, sample.cpu_ns
        return began_ns > 0 and sample.cpu_ns - began_cpu_ns > self._usual_share * elapsed_ns

    @property
    def is_known(self) -> bool:
        """True if it was found in such waits during training."""
        return any(map(self._is_usual, self._found))

    @property
    def _usual_share(self) -> float:
        usual = EFFORT_FACTOR * median(self._shares) if self._shares else 0.0
        return max(MOVE_SHARE, min(usual, BACKGROUND_CPUS))

    def _is_usual(self, place: _Place) -> bool:
        found = self._found.get(place)
        return found is not None and found.are_habit(self._count)


def _timed_place(sample: ThreadSample, table: SyscallTable) -> _Place | None:
    if sample.state is not TaskState.SLEEPING:
        return None
    timed = is_timed(sample, table) or (poll_timeout_ms(sample, table) or 0) > 0
    return (sample.syscall, sample.user_sp) if timed else None
