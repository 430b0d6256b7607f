"""One process over time: threads, totals, sockets, and what kind of effort it makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.diagnosis.history.activity import is_active, is_changed
from kcover_ebpf.diagnosis.history.background import Efforts
from kcover_ebpf.diagnosis.history.code_map import CodeMap, of_stack
from kcover_ebpf.diagnosis.history.drains import Drains
from kcover_ebpf.diagnosis.history.links import Links
from kcover_ebpf.diagnosis.history.progress_clocks import ByteClock, GpuClock
from kcover_ebpf.diagnosis.history.rhythm import Rhythm
from kcover_ebpf.diagnosis.history.sampled_call import HELD, STOPPED
from kcover_ebpf.diagnosis.history.thread import ThreadHistory
from kcover_ebpf.diagnosis.history.traffic import Traffic
from kcover_ebpf.facts.devices import FabricMoved, GpuSeen
from kcover_ebpf.facts.host import CodeSeen, CollectivesLaunched, ProcessSeen, ThreadReading
from kcover_ebpf.facts.kernel import (
    CORE_SIGNALS,
    DescriptorSample,
    ProcessExit,
    ProcessTotals,
    SocketSample,
    ThreadSample,
    Tick,
)
from kcover_ebpf.facts.syscalls import SyscallFamily, SyscallTable
from kcover_ebpf.ids import NS, Inode, Pid, Tid
from kcover_ebpf.model.roles import Membership, Role
from kcover_ebpf.tunables.certainty import HABITS_NS, KNOWN_PASSES, RESTS_PASSES, RESTS_SHARE
from kcover_ebpf.tunables.diagnosis import (
    FABRIC_FLOOR,
    LEAD_RESTS_NS,
    PEER_BYTES_FLOOR,
    STARVED_SHARE,
)

_MOST_THREADS = 4096

Clock = CodeSeen | FabricMoved | GpuSeen | CollectivesLaunched
"""Facts that show progress without a sample of a thread or socket."""


@dataclass(slots=True)
class ProcessHistory:
    """Everything known about one process of a job; times are boottime nanoseconds."""

    pid: Pid
    first_seen_ns: int
    seen: ProcessSeen | None = None
    membership: Membership | None = None
    threads: dict[Tid, ThreadHistory] = field(default_factory=dict)
    totals: ProcessTotals | None = None
    sockets: dict[int, SocketSample] = field(default_factory=dict)
    links: Links = field(default_factory=Links)
    """Index of `sockets` by where they lead and where they listen."""
    traffic: Traffic = field(default_factory=Traffic)
    """Payload and habits of each of `sockets`."""
    drains: Drains = field(default_factory=Drains)
    descriptors: dict[tuple[int, Inode], DescriptorSample] = field(default_factory=dict)
    exit: ProcessExit | None = None
    is_dying: bool = False
    """`exit` was announced by the fatal signal, and the exit itself has not come yet."""
    efforts: Efforts = field(default_factory=Efforts)
    rhythm: Rhythm = field(default_factory=Rhythm)
    """The timed waits from which it wakes while its rank trains, as the child of a rank."""
    cpu_share: float = 0.0
    """CPUs used between the last two totals, all threads together."""
    major_fault_rate: float = 0.0
    """Pages fetched from storage or swap a second, between the last two totals."""
    throttled_since_ns: int | None = None
    """Since when its control group's CPU quota keeps it off the CPU most of the time; None while it does not."""
    passes_without_totals: int = 0
    """Passes since the one with its last totals."""
    sides_sampled_ns: int = 0
    """Boottime of the last sample of a side thread; one at rest is not sampled again. 0 before the first."""
    peer_bytes_ns: int = 0
    """Last time that more than heartbeats went over its connections; 0 before the first."""
    longest_quiet_ns: int = 0
    """Longest time since then in any pass in which nothing was unusual."""
    sent_ns: int = 0
    """When it last sent payload, as its own host reported; 0 if its connections are all known."""
    fabric: ByteClock = field(default_factory=lambda: ByteClock(FABRIC_FLOOR))
    """Bytes over the RDMA ports that it has open."""
    fabric_bytes: int = 0
    """Bytes over these ports since the last pass."""
    gpus: GpuClock = field(default_factory=GpuClock)
    """Readings of the GPUs that it computes on."""
    devices: frozenset[str] = frozenset()
    """Files of GPUs, accelerators and RDMA devices that it has open, by its last reading; empty before."""
    code: CodeMap = field(default_factory=CodeMap)
    """Its executable mappings; empty until they were read."""
    code_read_ns: int = 0
    """When the mappings were last read; 0 before."""
    sides_asked_ns: int | None = None
    """When a sample of all its threads, even sleeping ones, was requested; None if none is outstanding."""
    sides_read_ns: int = 0
    """Last pass that sent all threads; 0 before."""
    active_ns: int = 0
    """When it last did something that an endless loop does not do and that its side threads do not always do: it slept
    though no other thread ran, was in a call other than for a lock, moved bytes, computed on side threads, began or
    ended a thread, began a process, used new memory or its device. Early by at most a pass; 0 before its first totals.
    """
    healthy_passes: int = 0
    """Passes of a healthy training in which it was seen."""
    sleeping_passes: int = 0
    """Those passes in which its lead thread slept."""
    napping_passes: int = 0
    """Those passes in which it napped for milliseconds."""
    healthy_since_ns: int = 0
    """Time of the first healthy pass; 0 before."""
    _ppid: Pid | None = None
    _first: Tid = field(init=False)
    _worker: Tid | None = None
    """A thread that works while the first one sleeps; None if there is none."""
    _peers_clock: ByteClock = field(default_factory=lambda: ByteClock(PEER_BYTES_FLOOR))

    def __post_init__(self) -> None:
        """The tid of the first thread equals the pid."""
        self._first = Tid(self.pid)

    @property
    def role(self) -> Role | None:
        """Role in its job; None while unknown."""
        return self.membership.role if self.membership is not None else None

    @property
    def rank(self) -> int | None:
        """Its rank number, or that of the rank it belongs to; None while unknown."""
        return self.membership.rank if self.membership is not None else None

    @property
    def comm(self) -> str:
        """Its comm as read from /proc; "?" before that."""
        return self.seen.comm if self.seen is not None else "?"

    @property
    def name(self) -> str:
        """Its present comm, which may have changed since it was read from /proc."""
        first = self.threads.get(self._first)
        return self.comm if first is None else first.sample.comm

    @property
    def is_dumping(self) -> bool:
        """True while it may be writing a core: it is dying by a signal whose default action is that."""
        return self.is_dying and self.exit is not None and self.exit.signal in CORE_SIGNALS

    @property
    def connections(self) -> Sequence[SocketSample]:
        """Its sockets with a far end, in any order; sockets that only listen are left out."""
        return [self.sockets[fd] for fd in self.links.fds]

    @property
    def lead(self) -> ThreadHistory | None:
        """The thread that represents the process: its first one, in which frameworks train.

        Or the one that works while the first sleeps, as where an actor runs the training in its own thread, until the
        first continues.
        """
        first = self.threads.get(self._first)
        if self._worker is None or first is None:
            return first
        other = self.threads.get(self._worker)
        return first if other is None or first.progress_ns >= other.progress_ns else other

    @property
    def is_stopped(self) -> bool:
        """True while something keeps its lead thread from running: a stop signal, a freezer, a debugger."""
        return self.lead is not None and self.lead.sample.state in STOPPED

    @property
    def is_held(self) -> bool:
        """As `is_stopped`, without a debugger, which stops and resumes all the time."""
        return self.lead is not None and self.lead.sample.state in HELD

    @property
    def worker(self) -> Tid | None:
        """A thread that was found working while the first one slept; None if there is none."""
        return self._worker

    def note_healthy(self, now_ns: int, table: SyscallTable) -> None:
        """Take one pass of a healthy training."""
        lead = self.lead
        if lead is None:
            return
        self.healthy_since_ns = self.healthy_since_ns or now_ns
        self.healthy_passes += 1
        self.sleeping_passes += table.family(lead.sample.syscall) is SyscallFamily.SLEEP
        self.napping_passes += lead.naps_since_ns is not None

    def note_quiet(self, now_ns: int) -> None:
        """Note how long it has exchanged nothing, in a pass in which nothing is unusual."""
        if self.peer_bytes_ns:
            self.longest_quiet_ns = max(self.longest_quiet_ns, now_ns - self.peer_bytes_ns)

    def note_beside(self, tick: Tick) -> None:
        """Note where its side threads were in a pass in which it made progress, which is known only at its end.

        A pass that visits all of its threads does not send those that rest where they had been.
        """
        began_ns = tick.boottime_ns - tick.period_ns
        moved_ns = self._moved_ns(tick)
        if moved_ns is None or not self._was_visited(began_ns):
            return
        for thread in self.side_threads:
            thread.note_beside(moved_ns, is_sent=thread.sample.boottime_ns > began_ns)

    def _moved_ns(self, tick: Tick) -> int | None:
        # traffic between GPUs may not be observable, but for that of the start: then the lead thread shows progress
        has_data = self.data_ns >= max(self.healthy_since_ns, 1)
        if has_data or not self.code.drives_device:
            return self.data_ns if self.data_ns >= tick.boottime_ns else None
        progress_ns = 0 if self.lead is None else self.lead.progress_ns
        return progress_ns if progress_ns > tick.boottime_ns - tick.period_ns else None

    def note_child_beside(
        self, child_process: ProcessHistory, tick: Tick, table: SyscallTable
    ) -> None:
        """Note where a process of this rank was in such a pass."""
        lead_thread = child_process.lead
        visited = child_process._was_visited(tick.boottime_ns - tick.period_ns)
        moved_ns = self._moved_ns(tick)
        if moved_ns is not None and visited and lead_thread is not None:
            child_process.rhythm.note_beside(lead_thread, moved_ns, table)

    def _was_visited(self, began_ns: int) -> bool:
        return self.totals is not None and self.totals.boottime_ns > began_ns

    @property
    def rests(self) -> bool:
        """True if it slept through the healthy training and exchanged nothing: a monitor, which no rank waits for."""
        if self.healthy_passes < RESTS_PASSES or self.data_ns >= self.healthy_since_ns:
            return False
        return self.sleeping_passes >= RESTS_SHARE * self.healthy_passes

    def habits_are_known(self, now_ns: int) -> bool:
        """True once its healthy training was observed for long enough to know its background work and usual waits."""
        lasts_ns = now_ns - self.healthy_since_ns if self.healthy_since_ns else 0
        return lasts_ns >= HABITS_NS and self.efforts.are_known

    @property
    def naps_while_healthy(self) -> bool:
        """True if it napped while the job was healthy: that is how it waits."""
        return self.napping_passes >= KNOWN_PASSES

    def rests_since(self, now_ns: int) -> int | None:
        """Since when its first thread sleeps, if long enough that another thread may train; else None."""
        first = self.threads.get(self._first)
        if first is None or first.burning_since_ns is not None:
            return None
        rested_ns = max(first.progress_ns, self.first_seen_ns)
        return rested_ns if now_ns - rested_ns >= LEAD_RESTS_NS else None

    def _choose_worker(self, now_ns: int) -> None:
        rested_ns = self.rests_since(now_ns)
        if rested_ns is None:
            return
        working = [thread for thread in self.threads.values() if thread.works_since(rested_ns)]
        if working:
            self._worker = max(working, key=lambda thread: thread.sample.cpu_ns).sample.tid

    def on_thread(self, sample: ThreadSample, table: SyscallTable) -> bool:
        """Take a sample; True if it shows progress of the lead thread."""
        thread = self.threads.get(sample.tid)
        if not self._represents(sample.tid):
            self.sides_sampled_ns = sample.boottime_ns
        if thread is None and len(self.threads) >= _MOST_THREADS:
            self._forget_threads()
        if thread is None:
            thread = self.threads[sample.tid] = ThreadHistory(sample)
            return False
        sides_run = self.efforts.sides_run
        if self._represents(sample.tid) and is_active(
            thread.sample, sample, table, sides_run=sides_run
        ):
            self.active_ns = sample.boottime_ns
        progressed = thread.observe(sample, table, self.code)
        if progressed and thread is self.lead:
            self.rhythm.on_progress(thread, table)
        return progressed and self._represents(sample.tid)

    def _represents(self, tid: Tid) -> bool:
        return tid in (self._first, self._worker)

    def on_clock(self, seen: Clock) -> bool:
        """Take the stack of a burning thread, bytes, launches, or its GPUs; True if that shows progress."""
        progressed = self._on_clock(seen)
        if progressed:
            self.active_ns = max(self.active_ns, seen.boottime_ns)
        return progressed

    def _on_clock(self, seen: Clock) -> bool:
        if isinstance(seen, CollectivesLaunched):
            return seen.count > 0
        if isinstance(seen, GpuSeen):
            has_other = bool(self.peer_bytes_ns or self.fabric.moved_ns)
            return self.gpus.observe(seen, has_other=has_other)
        if isinstance(seen, FabricMoved):
            self.fabric_bytes += seen.bytes_count
            return self.fabric.observe(seen.bytes_count, seen.boottime_ns)
        self.on_devices(seen)
        if seen.modules:
            self.code, self.code_read_ns = CodeMap(seen.modules), seen.boottime_ns
        thread = self.threads.get(seen.tid)
        progressed = thread is not None and thread.on_stack(of_stack(seen.stack), seen.boottime_ns)
        return progressed and self._represents(seen.tid)

    def lose_clock(self, now_ns: int) -> bool:
        """True, once, when a clock that it had is no longer read."""
        is_lost = self.gpus.is_lost(now_ns)
        if is_lost:
            self.gpus = GpuClock()
        return is_lost

    @property
    def side_threads(self) -> list[ThreadHistory]:
        """All known threads except the lead thread."""
        lead = self.lead
        return [thread for thread in self.threads.values() if thread is not lead]

    def on_exec(self) -> None:
        """Forget threads and code: it became another program."""
        self._ppid = self.ppid
        self.seen, self.code, self.code_read_ns = None, CodeMap(), 0
        self.devices = frozenset()

    @property
    def ppid(self) -> Pid | None:
        """Parent pid at the last reading; None before the first."""
        return self._ppid if self.seen is None else self.seen.ppid

    def on_devices(self, seen: ThreadReading | CodeSeen) -> None:
        """Note which device files it has open."""
        if seen.devices is not None:
            self.devices = seen.devices

    def _forget_threads(self) -> None:
        # the end of a thread is not reported; in a process that keeps starting new ones the oldest samples are
        # dropped
        oldest = sorted(
            self.threads.values(), key=lambda thread_history: thread_history.sample.boottime_ns
        )
        for thread in oldest[: _MOST_THREADS // 2]:
            if not self._represents(thread.sample.tid):
                del self.threads[thread.sample.tid]

    def on_totals(self, totals: ProcessTotals, *, learns: bool = False) -> None:
        """Take the totals of one pass and compute the effort since the previous ones. `learns`: the job is healthy."""
        before, self.totals, self.passes_without_totals = self.totals, totals, 0
        if self.sides_asked_ns is not None and totals.boottime_ns > self.sides_asked_ns:
            self.sides_asked_ns, self.sides_read_ns = None, totals.boottime_ns
        self._choose_worker(totals.boottime_ns)
        self.efforts.observe(totals, self.lead, self.threads.values(), learns=learns)
        if before is None or totals.boottime_ns <= before.boottime_ns:
            return
        interval_ns = totals.boottime_ns - before.boottime_ns
        if is_changed(before, totals) or self.efforts.beyond_ns == totals.boottime_ns:
            self.active_ns = totals.boottime_ns
        self.cpu_share = (totals.cpu_ns - before.cpu_ns) / interval_ns
        faults = totals.major_faults - before.major_faults
        self.major_fault_rate = faults * NS / interval_ns
        throttled = totals.throttled_ns - before.throttled_ns >= STARVED_SHARE * interval_ns
        since_ns = (
            before.boottime_ns if self.throttled_since_ns is None else self.throttled_since_ns
        )
        self.throttled_since_ns = since_ns if throttled else None

    def on_descriptor(self, sample: DescriptorSample) -> None:
        """Take a sample of a pipe or Unix socket."""
        self.drains.on_descriptor(self.descriptors.get((sample.fd, sample.inode)), sample)
        self.descriptors[sample.fd, sample.inode] = sample

    def on_socket(self, sample: SocketSample) -> int:
        """Take a socket sample; returns the payload bytes that it moved (0 for a new one)."""
        before = self.sockets.get(sample.fd)
        self.sockets[sample.fd] = sample
        self.links.observe(before, sample)
        self.drains.on_socket(before, sample)
        moved = self.traffic.observe(before, sample)
        if moved:
            self.active_ns = max(self.active_ns, sample.boottime_ns)
        return moved

    def on_peer_bytes(self, moved: int, now_ns: int) -> bool:
        """Note the bytes of one pass over connections to other ranks; True if they are more than heartbeats."""
        enough = self._peers_clock.observe(moved, now_ns)
        if enough:
            self.peer_bytes_ns = now_ns
        return enough

    @property
    def data_ns(self) -> int:
        """Last time that more than heartbeats moved (connections, RDMA ports, NVLink); 0 before the first."""
        return max(self.peer_bytes_ns, self.fabric.moved_ns, self.gpus.nvlink_ns)
