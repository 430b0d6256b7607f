"""Progress of a job and the silences of its ranks: start, training, stalls, stragglers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from statistics import median

from kcover_ebpf.diagnosis.clock.cadence import Cadence, Frequency
from kcover_ebpf.diagnosis.clock.job_memory import JobMemory
from kcover_ebpf.diagnosis.clock.rank_pace import Paces, SeenWaits
from kcover_ebpf.diagnosis.clock.step_watch import StepWatch
from kcover_ebpf.diagnosis.clock.stragglers import Pass, Place, Straggler
from kcover_ebpf.diagnosis.history.code_map import Code
from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.diagnosis.history.thread import ThreadHistory
from kcover_ebpf.facts.kernel import TaskState
from kcover_ebpf.facts.syscalls import SyscallFamily, SyscallTable
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.settings import Policy
from kcover_ebpf.tunables.diagnosis import (
    ARRIVAL_FLOOR_S,
    ARRIVAL_STALL_FACTOR,
    ARRIVED_RANKS,
    BURN_DOUBT_S,
    LEARNED_MINUTES,
    LONGEST_STEP_S,
    NOT_YET_JOINED_S,
    RECENT_PASSES,
    SLOWED_SHARE,
    TRAINING_SIGNS,
    TWO_PASSES_NS,
    UNLEARNED_STALL_S,
)
from kcover_ebpf.tunables.sampling import PAYLOAD_MINUTES_KEPT, PAYLOAD_RATE_NS, PAYLOAD_RATES_KEPT
from kcover_ebpf.tunables.stragglers import FASTER

_WAIT_FAMILIES = frozenset(
    {SyscallFamily.FUTEX, SyscallFamily.POLL, SyscallFamily.NETWORK, SyscallFamily.YIELD}
)
_PLACES = {
    SyscallFamily.SLEEP: Place.SLEEPS,
    SyscallFamily.FILE: Place.STORES,
    SyscallFamily.ASYNC_IO: Place.STORES,
    SyscallFamily.LOCK: Place.STORES,
    SyscallFamily.IOCTL: Place.ON_DEVICE,
    SyscallFamily.CHILD: Place.CHILDREN,
    SyscallFamily.READ: Place.READS,
    SyscallFamily.WRITE: Place.READS,
}


def _waits_since(lead_thread: ThreadHistory) -> int:
    # a thread that only wakes to wait again, or waits on a CPU, has waited since it last did
    # something else
    sample, progress_ns = lead_thread.sample, lead_thread.progress_ns
    if lead_thread.burning_since_ns is not None:
        return max(lead_thread.burning_since_ns, progress_ns)
    if sample.state is TaskState.RUNNING:
        return progress_ns or sample.boottime_ns
    return min(sample.idle_since_ns, progress_ns or sample.idle_since_ns)


def _recent(cadence: Cadence, now_ns: int) -> bool:
    return cadence.last_s is not None and now_ns / NS - cadence.last_s < NOT_YET_JOINED_S


class Stall(Enum):
    """Whether the ranks on this host have stopped making progress."""

    NONE = "none"
    """Some rank has made progress, within the longest silence of healthy times."""
    UNKNOWN = "unknown"
    """No rank has, and none would have shown it: they burn a CPU and exchange no bytes, as healthy ranks may for
    hours."""
    CERTAIN = "certain"
    """No rank has, and at least one would have shown it."""


class JobProgress:
    """The progress of the ranks of one job."""

    def __init__(self, policy: Policy, table: SyscallTable) -> None:
        self._policy, self._table = policy, table
        self._cadences: dict[Pid, Cadence] = {}
        self._steps, self._paces = StepWatch(), Paces()
        self._frequency = Frequency()
        self._payload_rates: deque[float] = deque(maxlen=PAYLOAD_RATES_KEPT)
        self._minutes: deque[float] = deque(maxlen=PAYLOAD_MINUTES_KEPT)
        """The median rate of each full set of rates."""
        self._rate_count = 0
        self._payload_bytes = self._payload_ns = 0
        """Bytes and nanoseconds since the last of those rates."""
        self.slowed = False
        """True while the ranks move far fewer bytes than they used to, over some ten passes. Updated with each rate."""
        self.unlearned_s = UNLEARNED_STALL_S
        """Seconds of silence that are a stall while nothing was learned; for ranks that join from now on."""
        self.memory = JobMemory()
        """What is remembered of the job, over all its starts; kept up to date, and handed to the next start."""
        self.trained = False
        """True once all ranks made progress together: payload between them, or repeated moves."""
        self.last_joined_ns = 0
        self._talked = False
        self._first_stall_s: float | None = None
        """Seconds that are a stall before the job has trained, from the arrivals of its ranks; None if those were not
        seen."""

    def join(self, process: ProcessHistory) -> None:
        """Begin to watch the silences of a rank that appeared."""
        if process.pid not in self._cadences:
            policy = self._policy
            # a start may well take longer than the last one, as nothing is in any cache
            unlearned_s = max(self.unlearned_s, policy.stall_factor * self.memory.start_s)
            self._cadences[process.pid] = Cadence(
                policy.stall_floor_s, policy.stall_factor, unlearned_s
            )
            self.last_joined_ns = max(self.last_joined_ns, process.first_seen_ns)

    def leave(self, pid: Pid) -> None:
        """Stop watching a process that turned out to be no rank."""
        self._cadences.pop(pid, None)

    def begin_again(self) -> None:
        """Begin with a new start of the job: all ranks are new."""
        self.trained = self._talked = False
        self._first_stall_s = None
        self._frequency = Frequency()

    def progress(self, pid: Pid, now_ns: int) -> bool:
        """Note a sign of progress; False if the process is no rank."""
        cadence = self._cadences.get(pid)
        if cadence is None:
            return False
        cadence.progress(now_ns / NS)
        if self.trained:
            self._frequency.progress(now_ns / NS)
        return True

    def forget_current(self, pid: Pid, now_ns: int) -> None:
        """End the present gap of a process without learning from it."""
        if pid in self._cadences:
            self._cadences[pid].forget_current(now_ns / NS)

    def relearn(self, pid: Pid, now_ns: int) -> None:
        """Forget what was learned with a clock of this process that is no longer read."""
        if pid in self._cadences:
            self._cadences[pid].forget_current(now_ns / NS)
            self._cadences[pid].relearn(LONGEST_STEP_S)

    def watch_training(
        self, ranks: Mapping[Pid, ProcessHistory], expected: int | None, now_ns: int
    ) -> None:
        """Notice when start-up is over: it has its own gaps, and stalls are learned from training alone.

        `expected`: number of ranks that should be here. With fewer ranks, start-up is over once those that are here
        continue all the same, long after the last of them came: the others are on other hosts.
        """
        if self._talked or not ranks:
            return
        self._first_stall_s = self._by_arrivals(ranks, expected)
        cadences = [self._cadences[pid] for pid in ranks]
        moved = all(cadence.sign_count >= TRAINING_SIGNS for cadence in cadences)
        if len(ranks) >= (expected or 1):
            self._talked = self._all_talked(ranks, now_ns)
        elif now_ns - self.last_joined_ns < self._policy.start_grace_s * NS:
            return
        else:
            moved = moved and all(_recent(cadence, now_ns) for cadence in cadences)
        # moves are the weaker sign: ranks that load their libraries move too, and start-up lasts
        # until they exchange data
        if self._talked or (moved and not self.trained):
            self.trained, self._first_stall_s = True, None
            self.memory.start_s = max(cadence.longest_s for cadence in cadences)
            for cadence in cadences:
                cadence.restart()
                if self.memory.step_s:
                    cadence.expect(self.memory.step_s)

    def _by_arrivals(
        self, ranks: Mapping[Pid, ProcessHistory], expected: int | None
    ) -> float | None:
        """Seconds for which the first step may be silent once all but one rank wait, from the spread of their arrivals.

        The waiting ranks are the control group: the one that they wait for came at any time, or is elsewhere. None if
        too few ranks are here or wait.
        """
        if self.trained or len(ranks) < max(ARRIVED_RANKS, expected or 1):
            return None
        leads = [process.lead for process in ranks.values() if self.waits(process)]
        came_ns = sorted(lead.progress_ns for lead in leads if lead is not None)
        if len(came_ns) < len(ranks) - 1:
            return None
        spread_ns = came_ns[-1] - came_ns[0]
        if len(came_ns) == len(ranks):
            spread_ns = min(came_ns[-2] - came_ns[0], came_ns[-1] - came_ns[1])
        return max(ARRIVAL_FLOOR_S, ARRIVAL_STALL_FACTOR * spread_ns / NS)

    @property
    def is_assembled(self) -> bool:
        """True before the job has trained while all ranks wait, or all but one: the missing one is soon known."""
        return self._first_stall_s is not None

    def _all_talked(self, ranks: Mapping[Pid, ProcessHistory], now_ns: int) -> bool:
        """True once payload went between the ranks: all of them, or most of them for a while."""
        talking = [process for process in ranks.values() if process.peer_bytes_ns]
        if len(talking) == len(ranks):
            return True
        waited = now_ns - self.last_joined_ns >= self._policy.start_grace_s * NS
        return (
            waited
            and 2 * len(talking) > len(ranks)
            and all(_recent(self._cadences[process.pid], now_ns) for process in talking)
        )

    def restart_clocks(self, now_ns: int) -> None:
        """Begin the silences of all ranks now: the time before cannot be judged."""
        self._frequency.forget_current()
        for cadence in self._cadences.values():
            cadence.forget_current(now_ns / NS)

    def is_silent(self, process: ProcessHistory, now_ns: int) -> bool:
        """True if a rank has been silent for longer than ever."""
        alarm_s = self._cadences[process.pid].alarm_s
        if self._first_stall_s is not None:
            alarm_s = min(alarm_s, self._first_stall_s / 2)
        return now_ns / NS - self._last_s(process) >= alarm_s

    def _last_s(self, process: ProcessHistory) -> float:
        last_s = self._cadences[process.pid].last_s
        return process.first_seen_ns / NS if last_s is None else last_s

    def stall(self, ranks: Mapping[Pid, ProcessHistory], now_ns: int) -> Stall:
        """Whether the ranks of this host have stopped making progress."""
        if not ranks or not all(self.has_stalled(process, now_ns) for process in ranks.values()):
            return Stall.NONE
        shows = any(self._would_show(process, now_ns) for process in ranks.values())
        return Stall.CERTAIN if shows else Stall.UNKNOWN

    def has_stalled(self, process: ProcessHistory, now_ns: int) -> bool:
        """True if a rank has been silent for longer than a stall takes."""
        return now_ns / NS - self._last_s(process) >= self.stall_s(process.pid)

    def _would_show(self, process: ProcessHistory, now_ns: int) -> bool:
        """True if progress of a silent rank would have been observed."""
        threshold_s, lead = self.threshold_s(process.pid), process.lead
        if lead is None or lead.burning_since_ns is None:
            return True
        talked = process.data_ns > lead.burning_since_ns + TWO_PASSES_NS
        # a wait in a library that only waits would show its end by a sample elsewhere
        if lead.waits_in is not None or lead.waits_busily or lead.spins_in_place or talked:
            return True
        # A thread that burns a CPU in code that is not known looks the same while it computes, launches kernels or
        # waits for a device. Where no byte came to or from a peer since that began, nothing could have shown
        # progress, and silence means nothing.
        return (now_ns - lead.burning_since_ns) / NS < threshold_s + BURN_DOUBT_S

    def threshold_s(self, pid: Pid) -> float:
        """Silence in seconds from which on this rank has stalled."""
        return self._cadences[pid].threshold_s

    def stall_s(self, pid: Pid) -> float:
        """Silence in seconds from which on this rank delays the others, once they all wait.

        In the first step it may be shorter than the threshold, by the arrivals of the ranks; never shorter than the
        longest silence of the rank's start.
        """
        threshold_s = self.threshold_s(pid)
        if self._first_stall_s is None:
            return threshold_s
        longest_s = self._policy.stall_factor * self._cadences[pid].longest_s
        return min(threshold_s, max(self._first_stall_s, longest_s))

    def remember(self) -> None:
        """Keep the length of a step for the next start of the job."""
        if self.learned(self._cadences):
            self.memory.step_s = self.longest_s

    def learned(self, pids: Iterable[Pid]) -> bool:
        """True once the job has trained and the thresholds of all these ranks come from gaps of its training."""
        return self.trained and all(self._cadences[pid].learned for pid in pids)

    @property
    def longest_s(self) -> float:
        """The longest healthy silence of any rank, in seconds: about a step; 0 before the first."""
        return max((cadence.longest_s for cadence in self._cadences.values()), default=0.0)

    def longest_of_s(self, pid: Pid) -> float:
        """The longest healthy silence of one rank, in seconds; 0 before the first."""
        return self._cadences[pid].longest_s

    def silence_s(self, ranks: Mapping[Pid, ProcessHistory], now_ns: int) -> float:
        """Seconds since any of the ranks made progress; 0 if none ever did."""
        lasts = [last for pid in ranks if (last := self._cadences[pid].last_s) is not None]
        return now_ns / NS - max(lasts) if lasts else 0.0

    def waits(self, process: ProcessHistory) -> bool:
        """True if the lead thread sits in a call that waits for others."""
        return process.lead is not None and self._lead_waits(process.lead)

    def _lead_waits(self, lead_thread: ThreadHistory) -> bool:
        blocked = lead_thread.sample.state is TaskState.SLEEPING or lead_thread.waits_busily
        return blocked and self._table.family(lead_thread.sample.syscall) in _WAIT_FAMILIES

    def observe_steps(
        self, ranks: Mapping[Pid, ProcessHistory], now_ns: int, *, elsewhere: bool
    ) -> None:
        """Take one healthy pass for the search for stragglers. `elsewhere`: ranks may be on other hosts."""
        if self.trained:
            found = {pid: self._where(process, now_ns) for pid, process in ranks.items()}
            self._steps.observe(found, now_ns, elsewhere=elsewhere)

    @property
    def passes(self) -> Sequence[Pass[Pid]]:
        """Positions of the ranks in healthy passes, oldest first."""
        return self._steps.passes

    def paces(self, now_ns: int, unix_offset_s: float) -> Mapping[Pid, SeenWaits]:
        """Recent positions of each rank that was observed for long enough."""
        return self._paces.of(self._steps, now_ns, unix_offset_s)

    def ease(self, now_ns: int) -> float:
        """Factor on the regular pause before the next pass; below 1 while ranks are compared."""
        return 1 / FASTER if self.compares(now_ns) else 1.0

    def compares(self, now_ns: int) -> bool:
        """True while ranks are to be sampled more often, to confirm that one of them is slow."""
        return self._steps.compares(now_ns)

    def _where(self, process: ProcessHistory, now_ns: int) -> float | Place:
        lead = process.lead
        if lead is None:
            return Place.OTHER
        if self._lead_waits(lead) or lead.asks_peers(self._table):
            return max(0.0, (now_ns - _waits_since(lead)) / NS)
        if lead.waits_in is Code.DEVICE:
            return Place.ON_DEVICE
        if lead.sample.state is TaskState.RUNNING or lead.burning_since_ns is not None:
            return Place.COMPUTES
        if lead.sample.state is TaskState.UNINTERRUPTIBLE:
            return Place.STORES
        return _PLACES.get(self._table.family(lead.sample.syscall), Place.OTHER)

    def note_payload(self, moved_bytes: int, period_ns: int, *, continues: bool = True) -> None:
        """Take the bytes that all ranks exchanged in one pass.

        `continues`: False while it is uncertain whether the job continues. Such passes count together with the bytes
        that end them: a silence is one low rate, however long it was.
        """
        if not self.trained:
            return
        self._payload_bytes += moved_bytes
        self._payload_ns += period_ns
        # frequent passes are taken together: few bytes in a third of a second mean nothing
        if continues and self._payload_ns >= PAYLOAD_RATE_NS:
            self._payload_rates.append(self._payload_bytes * NS / self._payload_ns)
            self._payload_bytes = self._payload_ns = 0
            self._rate_count += 1
            if self._rate_count % PAYLOAD_RATES_KEPT == 0:
                self._minutes.append(median(self._payload_rates))
            self.slowed = self._is_slowed()

    def _is_slowed(self) -> bool:
        """Compare with the median minute of the last hour if there are enough; until then with the passes before."""
        rates = list(self._payload_rates)
        if len(rates) < 2 * RECENT_PASSES:
            return False
        before, recent = rates[:-RECENT_PASSES], rates[-RECENT_PASSES:]
        used_to = sum(before) / len(before)
        if len(self._minutes) >= LEARNED_MINUTES:
            used_to = max(used_to, median(self._minutes))
        return sum(recent) / len(recent) < SLOWED_SHARE * used_to

    @property
    def slower(self) -> float | None:
        """Factor by which the job's progress is rarer than in the last hour; None if it is not far rarer."""
        return self._frequency.slower

    def others_wait(self, pid: Pid) -> bool:
        """True if the other ranks waited for a good part of the last passes."""
        return self._steps.others_wait(pid)

    def straggler(self) -> Straggler[Pid] | None:
        """The rank that the others wait for, step after step; None if there is none."""
        return self._steps.straggler()
