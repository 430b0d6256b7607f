"""What a process does beside the wait of its lead thread, and how much of that is more than it always does. Pure.

Threads that wake for nothing, log lines and telemetry continue while a job hangs, so they explain no wait. What a
process does in healthy times is learned here, what its peers do meanwhile is compared by `control_group`. Neither
discounts work that burns a good part of a CPU, or moves files: that is what a step, an evaluation or a checkpoint looks
like.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import field
from statistics import median

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.diagnosis.history.thread import ThreadHistory
from kcover_ebpf.facts.kernel import ProcessTotals
from kcover_ebpf.ids import NS
from kcover_ebpf.model.process_state import Effort
from kcover_ebpf.tunables.certainty import (
    BACKGROUND_CPUS,
    BACKGROUND_FILE_BYTES_S,
    BACKGROUND_INTERVALS,
    BACKGROUND_KNOWN,
    BACKGROUND_NEEDED,
    EFFORT_FACTOR,
    EFFORT_INTERVAL_NS,
    EFFORT_INTERVALS,
    EFFORT_STEP,
    LONGEST_PROGRAM_NS,
    PROGRAMS_KEPT,
    SIDES_RUN_SHARE,
)
from kcover_ebpf.tunables.diagnosis import COMPUTE_SHARE, STORAGE_CALLS_RATE, STORAGE_RATE


@dataclass(frozen=True, slots=True)
class Used:
    """What one process used between two totals."""

    side_cpus: float = 0.0
    """CPUs of all threads but the lead, and but those that burn a CPU in waiting."""
    file_bytes_s: float = 0.0
    """From and to storage."""
    call_bytes_s: float = 0.0
    """In read and write calls of any kind of file."""


@dataclass(slots=True)
class Background:
    """What one process used in healthy times."""

    _healthy: deque[Used] = field(default_factory=lambda: deque(maxlen=BACKGROUND_INTERVALS))
    _usually_used: Used | None = None
    """What is no more than usual; None until it is asked for after something was learned."""
    _programs: dict[str, int] = field(default_factory=dict)
    """By name, how long children that came and went took at most, in nanoseconds."""

    @property
    def interval_count(self) -> int:
        """Healthy intervals that were seen, of late."""
        return len(self._healthy)

    def learn(self, used: Used) -> None:
        """Take what was used in a healthy interval."""
        self._healthy.append(used)
        self._usually_used = None

    def learn_program(self, name: str, lasts_ns: int) -> None:
        """Take that a child of this name began and ended beside healthy training."""
        if name in self._programs or len(self._programs) < PROGRAMS_KEPT:
            self._programs[name] = max(lasts_ns, self._programs.get(name, 0))

    def has_run(self, name: str, lasts_ns: int) -> bool:
        """True if children of this name took as long beside healthy training, and no wait is due to one so short."""
        usual_ns = EFFORT_FACTOR * self._programs.get(name, 0)
        return lasts_ns < min(usual_ns, LONGEST_PROGRAM_NS)

    def beyond(self, used: Used) -> Used:
        """How much more was used than in healthy times; less than nothing where it was less."""
        usual = self._usually_used = self._usually_used or self._usual()
        return Used(
            used.side_cpus - usual.side_cpus,
            used.file_bytes_s - usual.file_bytes_s,
            used.call_bytes_s - usual.call_bytes_s,
        )

    def _usual(self) -> Used:
        if len(self._healthy) < BACKGROUND_NEEDED:
            return Used()
        healthy = self._healthy
        return Used(
            _capped([past.side_cpus for past in healthy], BACKGROUND_CPUS),
            _capped([past.file_bytes_s for past in healthy], BACKGROUND_FILE_BYTES_S),
            _capped([past.call_bytes_s for past in healthy], BACKGROUND_FILE_BYTES_S),
        )


def _rates(used: Used) -> tuple[float, float]:
    """Of computing and of storage, in the smallest efforts that count."""
    storage = max(used.file_bytes_s / STORAGE_RATE, used.call_bytes_s / STORAGE_CALLS_RATE)
    return used.side_cpus / COMPUTE_SHARE, storage


def _capped(past: list[float], most: float) -> float:
    return min(EFFORT_FACTOR * median(past), most)


@dataclass(slots=True)
class Efforts:
    """What a process does beside the wait of its lead, as rates over intervals; times are boottime nanoseconds.

    A thread that wakes ten times a second burns all of its CPU in some hundredth of one: an interval is at least half a
    second, however close the passes are.
    """

    background: Background = field(default_factory=Background)
    latest: dict[Effort, tuple[int, int]] = field(default_factory=dict)
    """The last interval (from, to) with each kind of effort."""
    rates: dict[Effort, float] = field(default_factory=dict)
    """How much of each kind that was, in the smallest one that counts."""
    storage_moved_ns: int = 0
    """Last time that more bytes than always went to or came from storage; 0 before."""
    beyond_ns: int = 0
    """Last time that it computed beside its lead, or moved any bytes, more than always; 0 before."""
    sides_run: bool = False
    """Side threads used a CPU in the last interval, so that their program's threads may have to take turns."""
    measured_ns: int = 0
    """End of the last interval; 0 before."""
    _intervals: deque[tuple[int, int, float, float]] = field(
        default_factory=lambda: deque(maxlen=EFFORT_INTERVALS)
    )
    """(from, to, rate of computing, rate of storage) of the last ones, with what it always does."""
    _began_totals: ProcessTotals | None = None
    """Those with which the present interval begins."""

    def observe(
        self,
        totals: ProcessTotals,
        lead_thread: ThreadHistory | None,
        threads: Iterable[ThreadHistory],
        *,
        learns: bool,
    ) -> None:
        """Take the sums of one pass, without what `lead_thread` did; `learns`: the job is healthy."""
        began = self._began_totals
        elapsed_ns = 0 if began is None else totals.boottime_ns - began.boottime_ns
        if began is not None and 0 <= elapsed_ns < EFFORT_INTERVAL_NS:
            return
        self._began_totals = totals
        idle_ns = sum(_idle_cpu_ns(thread, lead_thread) for thread in threads)
        if began is None or elapsed_ns < 0:
            return
        used = _used(began, totals, idle_ns)
        self.sides_run = used.side_cpus >= SIDES_RUN_SHARE
        if learns:
            self.background.learn(used)
        more = self.background.beyond(used)
        if more.file_bytes_s > 0 or more.call_bytes_s >= STORAGE_CALLS_RATE:
            self.storage_moved_ns = totals.boottime_ns
        compute, storage = _rates(more)
        self.measured_ns = totals.boottime_ns
        self._intervals.append((began.boottime_ns, totals.boottime_ns, *_rates(used)))
        for effort, rate in ((Effort.COMPUTE, compute), (Effort.STORAGE, storage)):
            if rate >= EFFORT_STEP:
                self.latest[effort] = began.boottime_ns, totals.boottime_ns
                self.rates[effort] = rate
        if compute >= EFFORT_STEP or storage > 0:
            self.beyond_ns = totals.boottime_ns

    @property
    def are_known(self) -> bool:
        """True once so many healthy intervals were seen that what happens now and then is among them."""
        return self.background.interval_count >= BACKGROUND_KNOWN

    def during(self, since_ns: int, recent_ns: int) -> Effort | None:
        """The most recent kind of effort in an interval that began after `since_ns` and ended after `recent_ns`.

        What the last interval shows counts until the next one, however long that takes. None if there was none.
        """
        recent_ns = min(recent_ns, self.measured_ns)
        recent = [
            (to, kind)
            for kind, (begin, to) in self.latest.items()
            if begin >= since_ns and to >= recent_ns
        ]
        return max(recent, key=lambda pair: pair[0])[1] if recent else None

    def most(self, since_ns: int, recent_ns: int) -> tuple[float, float]:
        """The highest rates of computing and of storage in intervals as for `during`, with what it always does.

        0 where there was no interval.
        """
        recent_ns = min(recent_ns, self.measured_ns)
        found = [
            (compute, storage)
            for begin, to, compute, storage in self._intervals
            if begin >= since_ns and to >= recent_ns
        ]
        computes, stores = zip(*found, strict=True) if found else ((0.0,), (0.0,))
        return max(0.0, *computes), max(0.0, *stores)

    @property
    def stores(self) -> bool:
        """True if the last interval moved bytes to or from storage."""
        effort = self.latest.get(Effort.STORAGE)
        return effort is not None and effort[1] == self.measured_ns


def _idle_cpu_ns(thread: ThreadHistory, lead_thread: ThreadHistory | None) -> int:
    # a network thread of NCCL spins on every rank that has joined, an autograd thread waits for its device: a CPU that
    # is burned in waiting is no work
    used_ns = thread.take_cpu_ns()
    waits = thread.burning_since_ns is not None and (thread.waits_in or thread.waits_busily)
    return used_ns if thread is lead_thread or waits else 0


def _used(began_totals: ProcessTotals, totals: ProcessTotals, idle_ns: int) -> Used:
    interval_ns = totals.boottime_ns - began_totals.boottime_ns
    side_ns = totals.cpu_ns - began_totals.cpu_ns - idle_ns
    files = (
        totals.read_bytes + totals.write_bytes - began_totals.read_bytes - began_totals.write_bytes
    )
    calls = (
        totals.read_chars + totals.write_chars - began_totals.read_chars - began_totals.write_chars
    )
    return Used(
        side_cpus=max(0.0, side_ns / interval_ns),
        file_bytes_s=files * NS / interval_ns,
        call_bytes_s=calls * NS / interval_ns,
    )
