"""One process over time: threads, totals, sockets, and what kind of effort it makes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from kcover_ebpf.diagnosis.code_map import CodeMap, of_stack
from kcover_ebpf.diagnosis.progress_clocks import ByteClock, GpuClock
from kcover_ebpf.diagnosis.roles import Membership, Role
from kcover_ebpf.diagnosis.thread import ThreadHistory
from kcover_ebpf.diagnosis.traffic import Traffic
from kcover_ebpf.facts.devices import FabricMoved, GpuSeen
from kcover_ebpf.facts.host import CodeSeen, CollectivesLaunched, ProcessSeen, ThreadReading
from kcover_ebpf.facts.kernel import (
    DescriptorSample,
    ProcessExit,
    ProcessTotals,
    SocketSample,
    TaskState,
    ThreadSample,
)
from kcover_ebpf.facts.syscalls import SyscallTable
from kcover_ebpf.ids import NS, Inode, Pid, Tid
from kcover_ebpf.tunables.diagnosis import (
    COMPUTE_SHARE,
    FABRIC_FLOOR,
    LEAD_RESTS_NS,
    PEER_BYTES_FLOOR,
    SLOWED_BY_QUOTA_SHARE,
    STORAGE_CALLS_RATE,
    STORAGE_RATE,
)

_MOST_THREADS = 4096
_STOPPED = (TaskState.STOPPED, TaskState.FROZEN, TaskState.TRACED)

Clock = CodeSeen | FabricMoved | GpuSeen | CollectivesLaunched
"""What shows progress without a sample of a thread or socket."""


class Effort(Enum):
    """Kinds of work that explain why others wait."""

    __hash__ = (
        object.__hash__
    )  # members are compared by identity; Enum's own is a call of Python for each look-up

    COMPUTE = "compute"
    UNKNOWN = COMPUTE
    """What a newer agent reports of which this version does not know the word."""
    STORAGE = "storage"
    CHILDREN = "children"


@dataclass(slots=True)
class ProcessHistory:
    """Everything known about one process of a job; times are boottime nanoseconds."""

    pid: Pid
    first_seen_ns: int
    seen: ProcessSeen | None = None
    member: Membership | None = None
    threads: dict[Tid, ThreadHistory] = field(default_factory=dict)
    totals: ProcessTotals | None = None
    sockets: dict[int, SocketSample] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)
    """What each of `sockets` carried."""
    descriptors: dict[tuple[int, Inode], DescriptorSample] = field(default_factory=dict)
    exit: ProcessExit | None = None
    efforts: dict[Effort, tuple[int, int]] = field(default_factory=dict)
    """Last interval (from, to) between two totals with each kind of effort."""
    storage_moved_ns: int = 0
    """Last time that any byte went to or came from storage."""
    cpu_share: float = 0.0
    """CPUs used between the last two totals, all threads together."""
    major_fault_rate: float = 0.0
    """Pages fetched from storage or swap a second, between the last two totals."""
    throttled_since_ns: int | None = None
    """Since when its control group's CPU quota keeps it from a CPU most of the time; None while it does not."""
    passes_without_totals: int = 0
    """Passes since the one with its last totals."""
    peer_bytes_ns: int = 0
    """Last time that more than heartbeats went over its connections."""
    sent_ns: int = 0
    """When it last sent data of the training, as its own host said; 0 where its connections are all known."""
    fabric: ByteClock = field(default_factory=lambda: ByteClock(FABRIC_FLOOR))
    """The RDMA ports that it has open."""
    gpus: GpuClock = field(default_factory=GpuClock)
    """The GPUs that it computes on."""
    devices: frozenset[str] = frozenset()
    """Files of GPUs, accelerators and RDMA devices that it has open, by its last reading; empty before."""
    code: CodeMap = field(default_factory=CodeMap)
    """Its executable mappings; empty until they were read."""
    code_read_ns: int = 0
    """When they were read last; 0 before."""
    _ppid: Pid | None = None
    _first: Tid = field(init=False)
    _worker: Tid | None = None
    """A thread that works while the first one sleeps."""
    _peers: ByteClock = field(default_factory=lambda: ByteClock(PEER_BYTES_FLOOR))

    def __post_init__(self) -> None:
        """Its first thread has its own number."""
        self._first = Tid(self.pid)

    @property
    def role(self) -> Role | None:
        """What it is for in its job; None while that is not known."""
        return self.member.role if self.member is not None else None

    @property
    def rank(self) -> int | None:
        """Its number in the training, or that of the rank it belongs to; None while that is not known."""
        return self.member.rank if self.member is not None else None

    @property
    def comm(self) -> str:
        """Its name, as when it was read from /proc; "?" until then."""
        return self.seen.comm if self.seen is not None else "?"

    @property
    def name(self) -> str:
        """Its name now, which it may have changed since it was read from /proc."""
        first = self.threads.get(self._first)
        return self.comm if first is None else first.sample.comm

    @property
    def connections(self) -> Iterable[SocketSample]:
        """Its sockets, in any order."""
        return self.sockets.values()

    @property
    def lead(self) -> ThreadHistory | None:
        """The thread that represents the process: its first one (frameworks train in it).

        Or the one that works while the first sleeps, as where an actor runs the training in its own thread;
        until the first continues.
        """
        first = self.threads.get(self._first)
        if self._worker is None or first is None:
            return first
        other = self.threads.get(self._worker)
        return first if other is None or first.progress_ns >= other.progress_ns else other

    @property
    def is_stopped(self) -> bool:
        """True while something keeps its lead thread from running: a stop signal, a freezer, a debugger."""
        return self.lead is not None and self.lead.sample.state in _STOPPED

    @property
    def worker(self) -> Tid | None:
        """A thread that was found working while the first one slept; None if there is none."""
        return self._worker

    def rests_since(self, now_ns: int) -> int | None:
        """Since when its first thread sleeps, where that is so long that another one may train; else None."""
        first = self.threads.get(self._first)
        if first is None or first.burning_since_ns is not None:
            return None
        rested_ns = max(first.progress_ns, self.first_seen_ns)
        return rested_ns if now_ns - rested_ns >= LEAD_RESTS_NS else None

    def _choose_worker(self, now_ns: int) -> None:
        rested_ns = self.rests_since(now_ns)
        if rested_ns is None:
            return
        working = [each for each in self.threads.values() if each.works_since(rested_ns)]
        if working:
            self._worker = max(working, key=lambda each: each.sample.cpu_ns).sample.tid

    def on_thread(self, sample: ThreadSample, table: SyscallTable) -> bool:
        """Take a sample; True if it shows progress of the lead thread."""
        view = self.threads.get(sample.tid)
        if view is None and len(self.threads) >= _MOST_THREADS:
            self._forget_threads()
        if view is None:
            view = self.threads[sample.tid] = ThreadHistory(sample)
            return False
        progressed = view.observe(sample, table, self.code)
        return progressed and self._represents(sample.tid)

    def _represents(self, tid: Tid) -> bool:
        return tid in (self._first, self._worker)

    def on_clock(self, seen: Clock) -> bool:
        """Take where a burning thread was called from, bytes, launches, or its GPUs; True if that shows progress."""
        if isinstance(seen, CollectivesLaunched):
            return seen.count > 0
        if isinstance(seen, GpuSeen):
            has_other = bool(self.peer_bytes_ns or self.fabric.moved_ns)
            return self.gpus.observe(seen, has_other=has_other)
        if isinstance(seen, FabricMoved):
            return self.fabric.observe(seen.bytes_count, seen.boottime_ns)
        self.on_devices(seen)
        if seen.modules:
            self.code, self.code_read_ns = CodeMap(seen.modules), seen.boottime_ns
        view = self.threads.get(seen.tid)
        progressed = view is not None and view.on_stack(of_stack(seen.stack), seen.boottime_ns)
        return progressed and self._represents(seen.tid)

    def lose_clock(self, now_ns: int) -> bool:
        """True, once, when a clock that it had is not read any more."""
        is_lost = self.gpus.is_lost(now_ns)
        if is_lost:
            self.gpus = GpuClock()
        return is_lost

    @property
    def side_threads(self) -> list[ThreadHistory]:
        """All known threads but the lead one."""
        lead = self.lead
        return [view for view in self.threads.values() if view is not lead]

    def on_exec(self) -> None:
        """It became another program."""
        self._ppid = self.ppid
        self.seen, self.code, self.code_read_ns = None, CodeMap(), 0
        self.devices = frozenset()

    @property
    def ppid(self) -> Pid | None:
        """Its parent when it was read last; None before."""
        return self._ppid if self.seen is None else self.seen.ppid

    def on_devices(self, seen: ThreadReading | CodeSeen) -> None:
        """Take which devices it has open."""
        if seen.devices is not None:
            self.devices = seen.devices

    def _forget_threads(self) -> None:
        # the end of a thread is not reported; in a process that keeps making new ones the oldest samples go
        oldest = sorted(self.threads.values(), key=lambda each: each.sample.boottime_ns)
        for each in oldest[: _MOST_THREADS // 2]:
            if not self._represents(each.sample.tid):
                del self.threads[each.sample.tid]

    def on_totals(self, totals: ProcessTotals) -> None:
        """Take the sums of one pass and derive the effort made since those before."""
        before, self.totals, self.passes_without_totals = self.totals, totals, 0
        self._choose_worker(totals.boottime_ns)
        if before is None or totals.boottime_ns <= before.boottime_ns:
            return
        interval_ns = totals.boottime_ns - before.boottime_ns
        self.cpu_share = (totals.cpu_ns - before.cpu_ns) / interval_ns
        faults = totals.major_faults - before.major_faults
        self.major_fault_rate = faults * NS / interval_ns
        throttled = totals.throttled_ns - before.throttled_ns >= SLOWED_BY_QUOTA_SHARE * interval_ns
        since_ns = (
            before.boottime_ns if self.throttled_since_ns is None else self.throttled_since_ns
        )
        self.throttled_since_ns = since_ns if throttled else None
        lead = self.lead
        share = _side_share(self.cpu_share, lead)
        if share >= COMPUTE_SHARE and share - self._waiting_share(lead) >= COMPUTE_SHARE:
            self.efforts[Effort.COMPUTE] = before.boottime_ns, totals.boottime_ns
        storage = totals.read_bytes + totals.write_bytes - before.read_bytes - before.write_bytes
        chars = totals.read_chars + totals.write_chars - before.read_chars - before.write_chars
        if storage > 0 or chars * NS >= STORAGE_CALLS_RATE * interval_ns:
            self.storage_moved_ns = totals.boottime_ns
        if (
            storage * NS >= STORAGE_RATE * interval_ns
            or chars * NS >= STORAGE_CALLS_RATE * interval_ns
        ):
            self.efforts[Effort.STORAGE] = before.boottime_ns, totals.boottime_ns

    def _waiting_share(self, lead: ThreadHistory | None) -> float:
        # a network thread of NCCL spins on every rank that has joined, an autograd thread waits for its device: a
        # CPU that is burned in waiting is no work
        share = 0.0
        for each in self.threads.values():
            burns = each.burning_since_ns is not None and each is not lead
            if burns and (each.waits_in or each.waits_busily):
                share += each.cpu_share
        return share

    def on_socket(self, sample: SocketSample) -> int:
        """Take a socket; returns by how many payload bytes it moved (0 for a new one)."""
        before = self.sockets.get(sample.fd)
        self.sockets[sample.fd] = sample
        return self.traffic.observe(before, sample)

    def on_peer_bytes(self, moved: int, now_ns: int) -> bool:
        """Note the bytes of one pass over connections to other ranks; True if they are more than heartbeats."""
        enough = self._peers.observe(moved, now_ns)
        if enough:
            self.peer_bytes_ns = now_ns
        return enough

    @property
    def data_ns(self) -> int:
        """Last time that more than heartbeats came or went (connections, RDMA ports, NVLink); 0 before the first."""
        return max(self.peer_bytes_ns, self.fabric.moved_ns, self.gpus.nvlink_ns)

    def latest_effort(self, since_ns: int, recent_ns: int) -> Effort | None:
        """The most recent kind of effort in an interval that began after `since_ns` and ended after `recent_ns`.

        What the last totals show counts until the next ones, however long that takes. None if there was none.
        """
        if not self.efforts:
            return None
        if self.totals is not None:
            recent_ns = min(recent_ns, self.totals.boottime_ns)
        recent = [
            (to, kind)
            for kind, (begin, to) in self.efforts.items()
            if begin >= since_ns and to >= recent_ns
        ]
        return max(recent, key=lambda each: each[0])[1] if recent else None


def _side_share(cpu_share: float, lead: ThreadHistory | None) -> float:
    # what the other threads use: a lead thread that burns is judged by itself (it may only be
    # waiting)
    if lead is not None and lead.burning_since_ns is not None:
        return max(0.0, cpu_share - 1.0)
    return cpu_share
