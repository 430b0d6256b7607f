"""Work of a process during the wait of its lead thread, and how much of it exceeds its usual work. Pure.

Threads that wake without work, log lines and telemetry continue while a job hangs, so they explain no wait. The usual
work of a process is learned here in healthy times; `control_group` compares it with its peers. Neither discounts work
that uses a good part of a CPU, or moves files: a step, an evaluation or a checkpoint looks like that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import field
from statistics import median

from kcover_ebpf.dataclass import dataclass, replace
from kcover_ebpf.diagnosis.history.thread import ThreadHistory
from kcover_ebpf.facts.kernel import ProcessTotals
from kcover_ebpf.ids import NS
from kcover_ebpf.model.process_state import Effort
from kcover_ebpf.tunables.certainty import (
    BACKGROUND_CPUS,
    BACKGROUND_FILE_BYTES_S,
    BACKGROUND_NEEDED,
    EFFORT_FACTOR,
    KNOWN_PASSES,
    LONGEST_PROGRAM_NS,
    SIDES_RUN_SHARE,
)
from kcover_ebpf.tunables.diagnosis import COMPUTE_SHARE, STORAGE_CALLS_RATE, STORAGE_RATE
from kcover_ebpf.tunables.sampling import (
    BACKGROUND_INTERVALS,
    EFFORT_INTERVAL_NS,
    EFFORT_INTERVALS,
    PROGRAMS_KEPT,
)


@dataclass(frozen=True, slots=True)
class Used:
    """Resources that one process used between two totals."""

    side_cpus: float = 0.0
    """CPUs used, or wanted without a sleep, by all threads except the lead and those that burn a CPU in a wait."""
    file_bytes_s: float = 0.0
    """Bytes a second from and to storage."""
    call_bytes_s: float = 0.0
    """Bytes a second in read and write calls of any kind of file."""


@dataclass(slots=True)
class Background:
    """Resources that one process usually uses in healthy times."""

    _healthy: deque[Used] = field(default_factory=lambda: deque(maxlen=BACKGROUND_INTERVALS))
    _usually_used: Used | None = None
    """The usual use; None until it is computed after something was learned."""
    _programs: dict[str, int] = field(default_factory=dict)
    """Name -> longest run in nanoseconds of children that began and ended."""

    @property
    def interval_count(self) -> int:
        """Healthy intervals that are remembered."""
        return len(self._healthy)

    def learn(self, used: Used) -> None:
        """Remember the use in a healthy interval."""
        self._healthy.append(used)
        self._usually_used = None

    def learn_program(self, name: str, lasts_ns: int) -> None:
        """Remember that a child of this name began and ended during healthy training."""
        if name in self._programs or len(self._programs) < PROGRAMS_KEPT:
            self._programs[name] = max(lasts_ns, self._programs.get(name, 0))

    def has_run(self, name: str, lasts_ns: int) -> bool:
        """True if children of this name ran as long during healthy training: one so short is not waited for."""
        usual_ns = EFFORT_FACTOR * self._programs.get(name, 0)
        return lasts_ns < min(usual_ns, LONGEST_PROGRAM_NS)

    def beyond(self, used: Used) -> Used:
        """Use beyond that of healthy times; negative where it was less."""
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
    """Rates of computing and of storage, in units of the smallest effort that counts."""
    storage = max(used.file_bytes_s / STORAGE_RATE, used.call_bytes_s / STORAGE_CALLS_RATE)
    return used.side_cpus / COMPUTE_SHARE, storage


def _capped(past: list[float], most: float) -> float:
    return min(EFFORT_FACTOR * median(past), most)


@dataclass(slots=True)
class Efforts:
    """Work of a process during the wait of its lead, as rates over intervals; times are boottime nanoseconds.

    A thread that wakes ten times a second uses all its CPU in bursts of milliseconds: an interval is at least half a
    second, however frequent the passes are.
    """

    background: Background = field(default_factory=Background)
    latest: dict[Effort, tuple[int, int]] = field(default_factory=dict)
    """The last interval (from, to) with each kind of effort."""
    rates: dict[Effort, float] = field(default_factory=dict)
    """Amount of each kind, in units of the smallest effort that counts."""
    storage_moved_ns: int = 0
    """Last time that more bytes than usual moved from or to storage; 0 before."""
    beyond_ns: int = 0
    """Last time that it computed on side threads, or moved bytes, more than usual; 0 before."""
    sides_run: bool = False
    """Side threads used a CPU in the last interval, so the threads of its program may have to take turns."""
    paced: tuple[int, int] = (0, 0)
    """The last interval (from, to) with an effort of storage only if threads count that sleep between their calls."""
    measured_ns: int = 0
    """End of the last interval; 0 before."""
    _intervals: deque[tuple[int, int, float, float]] = field(
        default_factory=lambda: deque(maxlen=EFFORT_INTERVALS)
    )
    """(from, to, rate of computing, rate of storage) of the last intervals, usual work included."""
    _began_totals: ProcessTotals | None = None
    """Totals at the start of the present interval; None before the first."""

    def observe(
        self,
        totals: ProcessTotals,
        lead_thread: ThreadHistory | None,
        threads: Iterable[ThreadHistory],
        *,
        learns: bool,
    ) -> None:
        """Take the totals of one pass, without the use of `lead_thread`. `learns`: the job is healthy."""
        began = self._began_totals
        elapsed_ns = 0 if began is None else totals.boottime_ns - began.boottime_ns
        if began is not None and 0 <= elapsed_ns < EFFORT_INTERVAL_NS:
            return
        self._began_totals = totals
        uncounted_ns = sum(_uncounted_ns(thread, lead_thread) for thread in threads)
        if began is None or elapsed_ns < 0:
            return
        used = _used(began, totals, uncounted_ns)
        self.sides_run = used.side_cpus >= SIDES_RUN_SHARE
        if learns:
            self.background.learn(used)
        more = self.background.beyond(used)
        if more.file_bytes_s > 0 or more.call_bytes_s >= STORAGE_CALLS_RATE:
            self.storage_moved_ns = totals.boottime_ns
        compute, storage = _rates(more)
        _, stored = _rates(self.background.beyond(_without_sleepers(used, began, totals)))
        self.measured_ns = totals.boottime_ns
        self._intervals.append((began.boottime_ns, totals.boottime_ns, *_rates(used)))
        for effort, rate in ((Effort.COMPUTE, compute), (Effort.STORAGE, stored)):
            if rate >= 1.0:
                self.latest[effort] = began.boottime_ns, totals.boottime_ns
                self.rates[effort] = rate
        if stored < 1.0 <= storage:
            self.paced = began.boottime_ns, totals.boottime_ns
        if compute >= 1.0 or storage > 0:
            self.beyond_ns = totals.boottime_ns

    @property
    def are_known(self) -> bool:
        """True once enough healthy intervals were observed to include work that happens only now and then."""
        return self.background.interval_count >= KNOWN_PASSES

    def during(self, since_ns: int, recent_ns: int) -> Effort | None:
        """The most recent kind of effort in an interval that began after `since_ns` and ended after `recent_ns`.

        The last interval counts until the next one ends, however long that takes. None if there was none.
        """
        recent_ns = min(recent_ns, self.measured_ns)
        recent = [
            (to, kind)
            for kind, (begin, to) in self.latest.items()
            if begin >= since_ns and to >= recent_ns
        ]
        return max(recent, key=lambda pair: pair[0])[1] if recent else None

    def is_paced(self, since_ns: int, recent_ns: int) -> bool:
        """True if an interval as for `during` had bytes only of threads that sleep between their calls."""
        begin, to = self.paced
        return begin >= since_ns and to >= min(recent_ns, self.measured_ns) and to > 0

    def most(self, since_ns: int, recent_ns: int) -> tuple[float, float]:
        """Highest rates of computing and of storage in intervals as for `during`, usual work included.

        Zeros if there was no interval.
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


def _uncounted_ns(thread: ThreadHistory, lead_thread: ThreadHistory | None) -> int:
    """CPU time of a thread that is no work; negative for work that it would have done on a CPU without others."""
    # A network thread of NCCL spins on every rank that has joined; an autograd thread waits for its device; that of
    # a TCPStore whose host has left polls a closed connection for ever (PyTorch 1.13). CPU that is burned in a wait, or
    # in calls that do nothing, is no work. On a busy machine a thread that computes gets little of a CPU.
    used_ns, denied_ns = thread.take_cpu_ns()
    waits = thread.burning_since_ns is not None and (
        thread.waits_in or thread.waits_busily or thread.repeats_calls
    )
    return used_ns if thread is lead_thread or waits else -denied_ns


def _without_sleepers(used: Used, began_totals: ProcessTotals, totals: ProcessTotals) -> Used:
    """The use without the bytes of threads that sleep between their calls.

    Such a thread paces itself, or tries again what failed: it is judged by what it waits for. A write that
    fills a volume, and a file that is then removed, count as bytes like any other.
    """
    interval_ns = totals.boottime_ns - began_totals.boottime_ns
    files = totals.asleep_bytes - began_totals.asleep_bytes
    calls = totals.asleep_chars - began_totals.asleep_chars
    return replace(
        used,
        file_bytes_s=used.file_bytes_s - files * NS / interval_ns,
        call_bytes_s=used.call_bytes_s - calls * NS / interval_ns,
    )


def _used(began_totals: ProcessTotals, totals: ProcessTotals, uncounted_ns: int) -> Used:
    interval_ns = totals.boottime_ns - began_totals.boottime_ns
    side_ns = totals.cpu_ns - began_totals.cpu_ns - uncounted_ns
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
