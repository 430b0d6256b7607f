"""One thread over time: whether it moves, spins or waits, and since when.

A thread that is not sent by the sampler did not move, so the last sample stays true until the next one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import field

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.diagnosis.history.code_map import WAITS, Code, CodeMap
from kcover_ebpf.diagnosis.history.sampled_call import (
    STOPPED,
    RegisterSample,
    UsualWaits,
    asks_again,
    cpu_shares,
    left_cpu_ns,
    register_sample,
    site,
)
from kcover_ebpf.diagnosis.history.wait_exits import WaitExits
from kcover_ebpf.facts.kernel import NO_SYSCALL, TaskState, ThreadSample
from kcover_ebpf.facts.syscalls import SyscallFamily, SyscallTable
from kcover_ebpf.ids import NS
from kcover_ebpf.tunables.diagnosis import (
    BUSY_SHARE,
    LIBRARY_WAITS_IN_A_ROW,
    LOOP_VALUES_SHARE,
    MOVE_SHARE,
    NAP_CPU_NS,
    NAPS_PER_S,
    POLLS_FOR_SPIN,
    REGISTER_SAMPLES_NEEDED,
    WORK_SHARE,
    WORK_SIGNS,
)
from kcover_ebpf.tunables.sampling import (
    CODE_WORDS_FRESH_NS,
    EFFORT_INTERVAL_NS,
    LONGEST_PASS_NS,
    REGISTER_SAMPLES,
    REGISTERS_CHANGED_NS,
)


@dataclass(slots=True)
class ThreadHistory:
    """The last sample of a thread and what was derived from all samples before."""

    sample: ThreadSample
    progress_ns: int = 0
    """Last time it was seen doing something else than before; 0 before the first time."""
    burning_since_ns: int | None = None
    """Start of the present uninterrupted use of a CPU; None while it sleeps."""
    burn_cpu_ns: int = 0
    """Its CPU time when the present burn began."""
    burn_delay_ns: int = 0
    """Its run delay when the present burn began."""
    burnt_until_ns: int = 0
    """End of its last uninterrupted use of a CPU, late by at most a pass; 0 before the first.
    No wait is older: the kernel's own mark of it is as early as that use began.
    """
    stopped_since_ns: int = 0
    """When it was stopped, frozen or traced, early by at most a pass; 0 while it is not.
    A sleeping thread that is stopped stays where it slept, so its site says nothing of it.
    """
    delay_share: float = 0.0
    """Share of the last interval in which it wanted a CPU and got none."""
    denied_share: float = 0.0
    """Share of the time in which it wanted a CPU and had none, when it last wanted one for more than a moment."""
    glimpses: deque[RegisterSample] = field(default_factory=lambda: deque(maxlen=REGISTER_SAMPLES))
    cpu_share: float = 0.0
    """Share of the last interval that it spent on a CPU."""
    naps_since_ns: int | None = None
    """Start of the current run of millisecond sleeps (polling); None if it is not polling."""
    signs: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=WORK_SIGNS))
    """(boottime, its CPU time) of the last passes with progress."""
    proxy: bool = False
    """It was seen burning a CPU in the collective library: it moves data for the device."""
    in_plumbing: bool = False
    """Its last burn was in code that does not show its purpose: the C library's, or unknown."""
    at: Code | None = None
    """Code in which the last sample found it on a CPU; None if unknown, or if it used none."""
    called_by_own: bool = False
    """The last reading of its stack in this burn shows only its own code."""
    asked_ns: int = 0
    """When its stack was last requested while it burned; 0 before."""
    _busy_sample: ThreadSample | None = None
    """The last sample that found it burning; None before the first."""
    _usual_waits: UsualWaits = field(default_factory=UsualWaits)
    _exits: WaitExits = field(default_factory=WaitExits)
    _code: Code | None = None
    """The last known code of its burn, never `PLUMBING`; None while unknown."""
    _in_a_row: int = 0
    """Number of consecutive samples that found it waiting, or working, in its burn."""
    _unplaced: bool = False
    """The last sample found it burning where only its stack shows whether it waits."""
    _taken_sample: ThreadSample | None = None
    _asks_only: bool | None = None
    """Cached `waits_busily` for the last sample; None before it is computed."""

    def observe(
        self, sample: ThreadSample, table: SyscallTable, code: CodeMap | None = None
    ) -> bool:
        """Take the next sample; True if the thread made progress since the one before.

        `code` distinguishes a burn that waits from one that works; a change between the two is progress.
        """
        progressed = self._observe(sample, table, code)
        if progressed:
            self.signs.append((sample.boottime_ns, sample.cpu_ns))
        return progressed

    def take_cpu_ns(self) -> tuple[int, int]:
        """Nanoseconds since the last call on a CPU, and waiting for one without any sleep; 0 and 0 at the first."""
        taken, sample = self._taken_sample or self.sample, self.sample
        self._taken_sample = sample
        used_ns, delay_ns = sample.cpu_ns - taken.cpu_ns, sample.run_delay_ns - taken.run_delay_ns
        slept = sample.voluntary_count != taken.voluntary_count
        return max(0, used_ns), 0 if slept else max(0, delay_ns)

    def note_beside(self, moved_ns: int, *, is_sent: bool) -> None:
        """Note that its rank last moved data at this boottime, while this side thread waited or worked.

        `is_sent`: False if it rests where its last sample found it.
        """
        if is_sent:
            self._usual_waits.observe(self.sample, moved_ns)
        else:
            self._usual_waits.observe_again(self.sample, moved_ns)

    @property
    def usual_wait_ns(self) -> int:
        """Longest wait in its present call during which its rank made progress; 0 unless such waits are its habit."""
        return self._usual_waits.longest_ns(self.sample.syscall)

    @property
    def is_new_in_call(self) -> bool:
        """True if it was never found asleep in its present call while its rank moved on.

        False while too few samples show where it is then.
        """
        return self._usual_waits.lacks(self.sample.syscall)

    def works_since(self, boottime_ns: int) -> bool:
        """True if it made progress repeatedly since then, and used a CPU for more than a heartbeat."""
        if len(self.signs) < WORK_SIGNS or self.signs[0][0] <= boottime_ns or self.proxy:
            return False
        (began_ns, began_cpu_ns), (ended_ns, ended_cpu_ns) = self.signs[0], self.signs[-1]
        return ended_cpu_ns - began_cpu_ns >= WORK_SHARE * (ended_ns - began_ns)

    def _observe(self, sample: ThreadSample, table: SyscallTable, code: CodeMap | None) -> bool:
        before, self.sample = self.sample, sample
        self._unplaced, self._asks_only, self.at = False, None, None
        self._note_stopped(before, sample)
        if sample.start_ns != before.start_ns:
            self._begin_anew(sample)
            return True
        used_ns = sample.cpu_ns - before.cpu_ns
        share, wanted = cpu_shares(before, sample)
        self.cpu_share = share
        was_burning = self.burning_since_ns is not None
        busy = self._is_busy(sample, share, wanted, table)
        self._note_denied(before, sample, wanted - share)
        if not busy:
            self.burning_since_ns, self._code, self.called_by_own = None, None, False
            if was_burning:
                self._end_burn(self._busy_sample or before, sample)
        elif self.burning_since_ns is None:
            self.burning_since_ns = max(before.boottime_ns, sample.previous_ns)
            self.burn_cpu_ns, self.burn_delay_ns = before.cpu_ns, before.run_delay_ns
        if used_ns >= REGISTERS_CHANGED_NS:
            at = self.at = code.at(sample.user_ip) if code else None
            works = at is Code.OWN and code is not None and code.drives_device
            at_calls = at is Code.PLUMBING
            self.glimpses.append(register_sample(sample, table, works=works, at_calls=at_calls))
            changed = busy and self._place(at)
            self.in_plumbing = busy and self._unplaced
            if changed or (was_burning and self._exits.observe(before, sample, self._code)):
                self.progress_ns = sample.boottime_ns
                return True
        was_napping = self._nap(before, sample, table)
        moved = share >= MOVE_SHARE or site(sample) != site(before)
        progressed = moved and not (busy and was_burning) and not was_napping
        if progressed and not is_tick(before, sample, share):
            self.progress_ns = sample.boottime_ns
            return True
        return was_burning and not busy

    def _is_busy(
        self, sample: ThreadSample, share: float, wanted: float, table: SyscallTable
    ) -> bool:
        if sample.state in STOPPED:
            return False
        was_burning = self.burning_since_ns is not None
        runs = sample.state is TaskState.RUNNING or was_burning
        if share >= BUSY_SHARE or (runs and wanted >= BUSY_SHARE):
            self._busy_sample = sample
            return True
        # it may have waited for its interpreter's lock for moments, and burn again
        at_lock = table.family(sample.syscall) in (SyscallFamily.FUTEX, SyscallFamily.NONE)
        last = self._busy_sample
        recent = last is not None and sample.boottime_ns - last.boottime_ns < EFFORT_INTERVAL_NS
        return was_burning and at_lock and recent

    def _note_denied(
        self, earlier_sample: ThreadSample, sample: ThreadSample, delay_share: float
    ) -> None:
        self.delay_share = delay_share
        wanted_ns = sample.wanted_ns - earlier_sample.wanted_ns
        if wanted_ns >= REGISTERS_CHANGED_NS:
            self.denied_share = 1 - (sample.cpu_ns - earlier_sample.cpu_ns) / wanted_ns

    def _begin_anew(self, sample: ThreadSample) -> None:
        # another thread has the same tid
        self.progress_ns, self.burning_since_ns = sample.boottime_ns, None
        self.naps_since_ns, self._code, self.called_by_own = None, None, False
        self.glimpses.clear()

    def _end_burn(self, earlier_sample: ThreadSample, sample: ThreadSample) -> None:
        # it may sleep where it was seen burning, and still have done something else before
        self.burnt_until_ns = left_cpu_ns(earlier_sample, sample)
        self.progress_ns = max(self.progress_ns, self.burnt_until_ns)

    def _note_stopped(self, earlier_sample: ThreadSample, sample: ThreadSample) -> None:
        if sample.state not in STOPPED:
            self.stopped_since_ns = 0
            return
        if earlier_sample.state is not sample.state:
            # a thread that changes is sent at the next pass
            pass_ns = sample.boottime_ns - LONGEST_PASS_NS
            self.stopped_since_ns = max(earlier_sample.boottime_ns, sample.idle_since_ns, pass_ns)

    def on_stack(self, code: Code | None, at_ns: int) -> bool:
        """Take the code that called a burning thread; True if that is progress."""
        if not self.is_unplaced(at_ns):
            return False
        self.called_by_own = code is Code.OWN
        return self._place(code)

    def _place(self, code: Code | None) -> bool:
        self._unplaced = code is None or code is Code.PLUMBING
        if code is None or code is Code.PLUMBING:
            return False
        self.proxy |= code is Code.COLLECTIVE
        known_code = self._code
        changed = (
            known_code is not None
            and known_code is not code
            and (code in WAITS) != (known_code in WAITS)
        )
        self._in_a_row = 1 if changed or known_code is None else self._in_a_row + 1
        self._code = code
        if changed:
            self.progress_ns = self.sample.boottime_ns
        return changed

    def _nap(
        self, earlier_sample: ThreadSample, later_sample: ThreadSample, table: SyscallTable
    ) -> bool:
        """Note whether it naps; True if it did before as well, so that it only polls."""
        was_napping = self.naps_since_ns is not None
        count = later_sample.voluntary_count - earlier_sample.voluntary_count
        often = count * NS >= NAPS_PER_S * (later_sample.boottime_ns - earlier_sample.boottime_ns)
        cheap = later_sample.cpu_ns - earlier_sample.cpu_ns <= count * NAP_CPU_NS
        if not (often and cheap and _sleeps(earlier_sample, later_sample, table)):
            self.naps_since_ns = None
        elif not was_napping:
            self.naps_since_ns = earlier_sample.boottime_ns
        return was_napping and self.naps_since_ns is not None

    @property
    def waits_in(self) -> Code | None:
        """The kind of library in which it waits spinning; None if it does not burn, works, or has too few samples."""
        if self.burning_since_ns is None or self._in_a_row < LIBRARY_WAITS_IN_A_ROW:
            return None
        return self._code if self._code in WAITS else None

    @property
    def burns_alike_ns(self) -> int | None:
        """Since when it burns a CPU without any sign of progress; None while it does not burn."""
        since_ns = self.burning_since_ns
        return None if since_ns is None else max(since_ns, self.progress_ns)

    def is_unplaced(self, now_ns: int) -> bool:
        """True while only a reading of its stack can show the purpose of its burn, and its last sample is fresh."""
        fresh = now_ns - self.sample.boottime_ns <= CODE_WORDS_FRESH_NS
        return self.burning_since_ns is not None and self._unplaced and fresh

    @property
    def waits_busily(self) -> bool:
        """True if it burns a CPU in calls that only poll: how MPI waits for its peers."""
        if self.burning_since_ns is None:
            return False
        if self._asks_only is None:
            self._asks_only = _ask_only(self._burning())
        return self._asks_only

    def asks_peers(self, table: SyscallTable) -> bool:
        """True if the last sample found it polling for messages, as MPI does while it waits."""
        running = self.sample.state is TaskState.RUNNING
        return running and (self.at is Code.MESSAGES or asks_again(self.sample, table))

    @property
    def seen_too_seldom(self) -> bool:
        """True while it burns a CPU and too few samples found it running to judge the purpose."""
        is_burning = self.burning_since_ns is not None
        return (
            is_burning and not self.waits_busily and len(self._burning()) < REGISTER_SAMPLES_NEEDED
        )

    @property
    def spins_in_place(self) -> bool:
        """True when a burning thread was seen often enough and its registers took only a few values.

        Code that computes counts and points: its registers differ at every sample. A loop that waits
        for nothing returns to the same few (measured: 3 values in 24 samples against 24,
        docs/decisions/0003). Nor is it a tight loop if it sleeps in between.
        """
        seen = self._burning()
        burning = [sample for sample in seen if sample.calls_nothing]
        if any(sample.sleeps for sample in seen):
            return False
        values = {sample.registers for sample in burning}
        return len(burning) >= REGISTER_SAMPLES_NEEDED and len(values) <= LOOP_VALUES_SHARE * len(
            burning
        )

    @property
    def repeats_calls(self) -> bool:
        """True if it spins in place, mostly at calls of the C library: these return at once, and change nothing.

        A computation may keep its registers as well, but is found in its own code.
        """
        if not self.spins_in_place:
            return False
        seen = self._burning()
        return 2 * sum(sample.at_calls for sample in seen) > len(seen)

    def _burning(self) -> list[RegisterSample]:
        since_ns = self.burning_since_ns
        if since_ns is None:
            return []
        return [sample for sample in self.glimpses if sample.boottime_ns > since_ns]


def _ask_only(burning: Sequence[RegisterSample]) -> bool:
    asked = 0
    for sample in burning:
        if sample.spin_call:
            asked += 1
        elif not sample.calls_nothing or sample.works:
            # work between waits for a device that yields belongs to the same burn, and is no wait for messages
            return False
    return len(burning) >= 3 and asked >= max(POLLS_FOR_SPIN, len(burning) // 5)


def _sleeps(earlier_sample: ThreadSample, later_sample: ThreadSample, table: SyscallTable) -> bool:
    """True if both samples found it in a sleep or in user space, at least one in a sleep."""
    calls = table.family(earlier_sample.syscall), table.family(later_sample.syscall)
    return SyscallFamily.SLEEP in calls and all(
        call in (SyscallFamily.SLEEP, SyscallFamily.NONE) for call in calls
    )


def is_tick(earlier_sample: ThreadSample, later_sample: ThreadSample, share: float) -> bool:
    """True if the thread only woke from a timed wait to wait again at the same place.

    If it is found on a CPU in between, or with its arguments at a new address, its site differs; but it used hardly any
    CPU.
    """
    if share >= MOVE_SHARE / 4:
        return False
    same_place = (earlier_sample.syscall, earlier_sample.user_sp) == (
        later_sample.syscall,
        later_sample.user_sp,
    )
    return same_place or NO_SYSCALL in (earlier_sample.syscall, later_sample.syscall)
