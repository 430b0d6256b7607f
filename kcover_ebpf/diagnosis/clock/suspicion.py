"""Suspicion and stall of a job, and from them the threads to read, and how closely.

A job is *suspicious* as soon as something is unusual: only this host acts on it, by watching closely. It has *stalled*
when none of its ranks here has made progress for longer than ever while healthy: that is reported.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from itertools import islice

from kcover_ebpf.diagnosis.clock.progress import Stall
from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.diagnosis.history.sampled_call import is_timed, may_await_thread, waits_in_frame
from kcover_ebpf.diagnosis.history.stacks import KnownWaits, Stack
from kcover_ebpf.diagnosis.history.thread import ThreadHistory
from kcover_ebpf.facts.host import (
    CollectivesSeen,
    FileSystemProbe,
    ReadingRequest,
    ThreadReading,
    Unreadable,
)
from kcover_ebpf.facts.kernel import TaskState, ThreadSample
from kcover_ebpf.facts.python_stacks import PythonFrame, PythonStacksSeen
from kcover_ebpf.facts.recorders import RecordersSeen
from kcover_ebpf.facts.syscalls import SyscallTable
from kcover_ebpf.ids import NS, Pid, Tid
from kcover_ebpf.tunables.certainty import HELPER_SINCE_S
from kcover_ebpf.tunables.diagnosis import SLEEP_CAP_S
from kcover_ebpf.tunables.sampling import (
    BASELINE_EAGER_NS,
    BASELINE_EAGER_WAITS,
    BASELINE_PERIOD_NS,
    BASELINE_READINGS,
    BUSY_THREADS,
    CALM_AFTER_NS,
    CALM_UNTRAINED_NS,
    CODE_PERIODS_NS,
    READING_EASE_NS,
    READING_LONGEST_NS,
    READING_PERIOD_NS,
    READING_PROOF_NS,
    READING_UNTRAINED_NS,
    READINGS_REPEATED,
    READINGS_REPEATED_CALMLY,
    UNTRAINED_EASE_PART,
    UNTRAINED_MOST_EASE,
)

_READINGS_KEPT = 48


class Suspicion:
    """How closely one job is watched, and what was read meanwhile."""

    def __init__(self, table: SyscallTable) -> None:
        self._table = table
        self.known = KnownWaits()
        self.collectives: CollectivesSeen | None = None
        """Answer of the job's own NCCL in this suspicion; None while there is none."""
        self.counts_moved_ns = 0
        """Boottime at which an answer of NCCL last showed that its counts move; 0 if none did."""
        self.recorders: RecordersSeen | None = None
        """Content of the ranks' flight recorders in this stall; None while there is none."""
        self.python: PythonStacksSeen | None = None
        """Python stacks of the ranks in this stall; None while they were not read."""
        self.unreadable: dict[Pid, Unreadable] = {}
        """Processes that could not be read at the last attempt."""
        self._readings: dict[tuple[Pid, Tid], deque[ThreadReading]] = {}
        self.probes: dict[tuple[Pid, Tid], FileSystemProbe] = {}
        """Last answer about the file system that a thread waits for."""
        self._pending: dict[Pid, ThreadReading] = {}
        self._doubted: dict[Pid, ThreadReading] = {}
        """The last reading of each first thread that was made while something seemed wrong."""
        self.stall = Stall.NONE
        """Whether the ranks here continue; they do not while one of them is stopped."""
        self._suspicious_since_ns: int | None = None
        self._only_silent = False
        self._began_ns: int | None = None
        self._next_baseline_ns = 0

    @property
    def suspicious(self) -> bool:
        """True while something may be wrong: every thread is sampled in detail. Not reported."""
        return self._suspicious_since_ns is not None

    def is_fresh(self, now_ns: int, trained: bool) -> bool:
        """True while a suspicion is young: an older one is not watched as closely."""
        since_ns = self._suspicious_since_ns
        calm_after_ns = CALM_AFTER_NS if trained else CALM_UNTRAINED_NS
        return since_ns is not None and now_ns - since_ns < calm_after_ns

    def urgent(self, now_ns: int, trained: bool) -> bool:
        """True while passes should be frequent.

        A long quiet phase is watched at the ordinary pace. So is a job that never trained and is only silent: it has
        seconds before that means anything.
        """
        return self.is_fresh(now_ns, trained) and (trained or not self._only_silent)

    def ease(self, now_ns: int, trained: bool) -> float:
        """Factor on the regular pause before the next pass; 1 while a change must be noticed soon."""
        since_ns = self._suspicious_since_ns
        if since_ns is None or trained or not self._only_silent:
            return 1.0
        return min(max(1.0, (now_ns - since_ns) / NS / UNTRAINED_EASE_PART), UNTRAINED_MOST_EASE)

    def learns_eagerly(self, now_ns: int) -> bool:
        """True while healthy waits are read at every pass: only learned waits are evidence later."""
        began_ns = now_ns if self._began_ns is None else self._began_ns
        return self.known.count < BASELINE_EAGER_WAITS and now_ns - began_ns <= BASELINE_EAGER_NS

    @property
    def stalled(self) -> bool:
        """True while the ranks here certainly make no progress: this is reported, and others are asked."""
        return self.stall is Stall.CERTAIN

    def suspect(self, wrong: bool, stall: Stall, now_ns: int, *, only_silent: bool = False) -> bool:
        """Note once a pass whether something may be wrong and the job has stalled; True if this ended a suspicion.

        A stalled job is suspicious, too. `only_silent`: nothing else is wrong so far.
        """
        self.stall, self._only_silent = stall, only_silent
        wrong = wrong or stall is not Stall.NONE
        if wrong:
            if self._suspicious_since_ns is None:
                self._suspicious_since_ns = now_ns
            return False
        ended = self._suspicious_since_ns is not None
        self._suspicious_since_ns = None
        if ended:
            self._readings.clear()
            self.probes.clear()
            self.forget_answers()
        return ended

    def on_answer(self, seen: RecordersSeen | PythonStacksSeen) -> None:
        """Keep an answer of the ranks in this stall; the newest one counts."""
        if isinstance(seen, RecordersSeen):
            self.recorders = seen
        else:
            self.python = seen

    @property
    def python_frames(self) -> dict[Pid, tuple[PythonFrame, ...]]:
        """Frames of each rank's program, of those that were read."""
        return (
            {} if self.python is None else {stack.pid: stack.frames for stack in self.python.stacks}
        )

    def forget_answers(self) -> None:
        """Drop the answers of a stall; they say nothing about the next."""
        self.collectives = self.recorders = self.python = None

    def on_reading(self, reading: ThreadReading) -> None:
        """Keep a reading; one of healthy times waits until its wait ends."""
        self.unreadable.pop(reading.pid, None)
        self._readings.setdefault((reading.pid, reading.tid), deque(maxlen=_READINGS_KEPT)).append(
            reading
        )
        if reading.sleeps:
            # it ends by its timer, which says nothing of other waits below the same callers
            return
        if reading.stack and not self.suspicious:
            self._pending[reading.pid] = reading
        elif reading.stack and int(reading.tid) == int(reading.pid):
            self._doubted[reading.pid] = reading

    def on_progress(self, pid: Pid, now_ns: int, moved_ns: int, longest_s: float) -> None:
        """Learn that a wait ends by itself: a process that made progress has left the wait of its last reading.

        `moved_ns`: when its thread last did something else. Data that arrives meanwhile shows nothing: a stuck rank
        still receives the rest of the step. Only after the longest healthy silence has the wait certainly ended.
        """
        doubted = self._doubted.get(pid)
        if doubted is not None and moved_ns > doubted.boottime_ns:
            # whatever was thought of this wait, it has ended by itself
            self.known.learn(self._doubted.pop(pid).stack)
        reading = self._pending.get(pid)
        if reading is None:
            return
        passed_ns = now_ns - reading.boottime_ns
        if moved_ns > reading.boottime_ns or passed_ns > longest_s * NS:
            del self._pending[pid]
            self.known.learn(reading.stack)

    def forget(self, pid: Pid) -> None:
        """Drop all readings of a process that has ended."""
        self._pending.pop(pid, None)
        self._doubted.pop(pid, None)
        for key in [key for key in self._readings if key[0] == pid]:
            del self._readings[key]
        for key in [key for key in self.probes if key[0] == pid]:
            del self.probes[key]

    def readings(self, pid: Pid, tid: int) -> Sequence[ThreadReading]:
        """Readings of a thread, oldest first."""
        return self._readings.get((pid, Tid(tid)), ())

    def last_readings(self) -> dict[tuple[Pid, Tid], ThreadReading]:
        """The last reading of each thread that was read."""
        return {thread: readings[-1] for thread, readings in self._readings.items() if readings}

    def awaits_timer(self, process: ProcessHistory) -> bool:
        """True if a side thread slept until a known time: what it does afterwards must be observed."""
        return any(
            (readings := self._readings.get((process.pid, side_thread.sample.tid)))
            and (ends_ns := readings[-1].deadline_ns) is not None
            and ends_ns - readings[-1].boottime_ns <= SLEEP_CAP_S * NS
            for side_thread in process.side_threads
        )

    def stacks_of(self, waiting: Iterable[ProcessHistory]) -> dict[Pid, Stack]:
        """Stacks of the lead threads of these ranks, of those read during their present wait."""
        found = {}
        for process in waiting:
            lead = process.lead
            readings = self.readings(process.pid, lead.sample.tid) if lead is not None else ()
            if lead is not None and readings and readings[-1].boottime_ns >= lead.progress_ns:
                found[process.pid] = readings[-1].stack
        return found

    def wants(
        self,
        owned: Collection[ProcessHistory],
        waiting: Iterable[ProcessHistory],
        now_ns: int,
        *,
        trained: bool = True,
    ) -> list[ReadingRequest]:
        """Threads to read now: all lead threads while suspicious, else a few healthy waits to remember."""
        reads_stacks = self.suspicious or not trained
        codes = [
            request for process in owned for request in self._burning(process, now_ns, reads_stacks)
        ]
        if self.suspicious:
            shortest_ns = 0 if trained else READING_UNTRAINED_NS
            is_urgent = self.urgent(now_ns, trained)
            repeats = READINGS_REPEATED if is_urgent else READINGS_REPEATED_CALMLY
            wanted = self._rationed(owned, now_ns, shortest_ns, repeats)
            wanted += [request for process in owned for request in self._asleep(process)]
            # a pass reads one thread of a process, and each nap of a side thread is a new wait
            return codes + sorted(wanted, key=self._last_read_ns)
        if now_ns < self._next_baseline_ns:
            return codes
        self._began_ns = now_ns if self._began_ns is None else self._began_ns
        if not self.learns_eagerly(now_ns):
            self._next_baseline_ns = now_ns + BASELINE_PERIOD_NS
        fresh = (process for process in waiting if process.pid not in self._pending)
        requests = (
            request for process in fresh if (request := self._request(process, now_ns)) is not None
        )
        return codes + list(islice(requests, BASELINE_READINGS))

    def _rationed(
        self, owned: Iterable[ProcessHistory], now_ns: int, shortest_ns: int, repeats: int
    ) -> list[ReadingRequest]:
        """A first reading of every wait; further readings of a few of the threads that wait alike, in turn."""
        first, again = [], []
        for process in owned:
            request = self._request(process, now_ns, shortest_ns)
            if request is not None and process.lead is not None:
                read_ns = self._last_read_ns(process.lead.sample)
                sample, is_new = process.lead.sample, read_ns < process.lead.progress_ns
                if is_new or now_ns - read_ns >= READING_PROOF_NS:
                    first.append(request)
                else:
                    again.append((read_ns, (sample.state, sample.syscall), request))
        counts: Counter[tuple[TaskState, int]] = Counter()
        for _, alike, request in sorted(again, key=lambda pair: pair[0]):
            counts[alike] += 1
            if counts[alike] <= repeats:
                first.append(request)
        return first

    def _last_read_ns(self, thread: ThreadSample | ReadingRequest) -> int:
        readings = self._readings.get((thread.pid, thread.tid))
        return readings[-1].boottime_ns if readings else 0

    def _burning(
        self, process: ProcessHistory, now_ns: int, reads_stacks: bool
    ) -> list[ReadingRequest]:
        """Requests for threads that burn a CPU; in calm times only the mappings of a process, now and then.

        Until a job has trained its stacks are read as well: a rank that computes and waits for its device in one burn
        may show no other progress.
        """
        burning = [
            thread_history
            for thread_history in process.threads.values()
            if thread_history.burning_since_ns is not None and thread_history.is_unplaced(now_ns)
        ]
        if not burning:
            return []
        burning.sort(
            key=lambda thread_history: (
                thread_history is not process.lead,
                -thread_history.cpu_share,
            )
        )
        readings = []
        if self._is_stale(process, now_ns):
            unknown = (
                thread_history
                for thread_history in burning
                if process.code.at(thread_history.sample.user_ip) is None
            )
            # a library loaded since the last read cannot be recognised on a stack, and known code may call it
            first = next(unknown, burning[0] if reads_stacks else None)
            if first is not None:
                process.code_read_ns = now_ns
                readings.append(_code_request(process, first, wants_modules=True))
        if reads_stacks and process.code:
            for thread in burning[:BUSY_THREADS]:
                # a burn that was not read before counts from the suspicion, however old it is
                since_ns = max(self._suspicious_since_ns or 0, thread.burns_alike_ns or 0)
                if now_ns - thread.asked_ns >= reading_period_ns(now_ns - since_ns):
                    thread.asked_ns = now_ns
                    readings.append(_code_request(process, thread))
        return readings

    def _asleep(self, process: ProcessHistory) -> list[ReadingRequest]:
        """Side threads that the sleeping lead may wait for, each wait once: at a device or timer, or its owner."""
        lead = process.lead
        read = () if lead is None else self.readings(process.pid, lead.sample.tid)
        if lead is None or not may_await_thread(lead.sample, read, self._table):
            return []
        since_ns = lead.sample.idle_since_ns - round(HELPER_SINCE_S * NS)
        holders = {reading.lock_thread for reading in read}
        asleep = (
            sample
            for side_thread in process.side_threads
            if self._last_read_ns(sample := side_thread.sample) < sample.idle_since_ns
            and (
                sample.tid in holders
                or waits_in_frame(sample, self._table)
                or (sample.idle_since_ns >= since_ns and is_timed(sample, self._table))
            )
        )
        return [_request_of(sample) for sample in islice(asleep, BUSY_THREADS)]

    @staticmethod
    def _is_stale(process: ProcessHistory, now_ns: int) -> bool:
        shortest_ns, longest_ns = CODE_PERIODS_NS
        age_ns = process.code_read_ns - process.first_seen_ns
        period_ns = min(max(shortest_ns, age_ns // 4), longest_ns)
        return not process.code_read_ns or now_ns - process.code_read_ns >= period_ns

    def _request(
        self, process: ProcessHistory, now_ns: int, shortest_ns: int = 0
    ) -> ReadingRequest | None:
        lead = process.lead
        if lead is None or lead.burning_since_ns is not None:
            return None
        earlier = self._readings.get((process.pid, lead.sample.tid))
        if earlier:
            last_ns = earlier[-1].boottime_ns
            since_ns = max(earlier[0].boottime_ns, lead.progress_ns)
            # the first reading of a wait is never delayed: the stacks of all ranks are compared
            is_first = last_ns < lead.progress_ns
            period_ns = _period_ns(lead, last_ns - since_ns)
            if now_ns - last_ns < (period_ns if is_first else max(period_ns, shortest_ns)):
                return None
        return _request_of(lead.sample)


def _request_of(sample: ThreadSample) -> ReadingRequest:
    return ReadingRequest(sample.pid, sample.tid, sample.idle_since_ns, sample.syscall)


def _code_request(
    process: ProcessHistory, thread: ThreadHistory, *, wants_modules: bool = False
) -> ReadingRequest:
    sample = thread.sample
    return ReadingRequest(
        process.pid,
        sample.tid,
        sample.idle_since_ns,
        burning_sp=sample.user_sp,
        wants_modules=wants_modules,
    )


def _period_ns(lead_thread: ThreadHistory, age_ns: int) -> int:
    period_ns = reading_period_ns(age_ns)
    if lead_thread.sample.state is TaskState.UNINTERRUPTIBLE:
        return min(period_ns, max(READING_PROOF_NS, age_ns // 10))
    return period_ns


def reading_period_ns(age_ns: int) -> int:
    """Pause before the next reading of a thread whose first and last reading in one wait are `age_ns` apart.

    The longer nothing changes, the rarer are the readings: every pass up to 4 s, 0.8 s apart at 8 s, 5 s at 20 s. So a
    duration is measured a tenth too long at most. A thread that moves starts again.
    """
    eased_ns = max(0, age_ns) ** 2 // READING_EASE_NS
    return min(max(READING_PERIOD_NS, eased_ns), READING_LONGEST_NS)
