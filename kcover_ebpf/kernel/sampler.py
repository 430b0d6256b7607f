"""User-space side of our BPF programs: watched processes, sampling passes, events of the ring buffer.

It judges nothing, and reads /proc only for processes that the passes miss. Nothing is pinned: when this process
ends, for whatever reason, the kernel frees every program and map.
"""

from __future__ import annotations

import ctypes
import errno
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Self

from kcover_ebpf.errors import DecodeError
from kcover_ebpf.facts.kernel import (
    CALM_EVERY,
    Fact,
    ProcessExit,
    ProcessFork,
    ProcessTotals,
    SampleRequest,
    SocketSample,
    TaskState,
    TcpStateChange,
    ThreadSample,
    Tick,
)
from kcover_ebpf.ids import NS, Pid, Tid
from kcover_ebpf.kernel import features, owners
from kcover_ebpf.kernel.clock import tick_ns, tick_ns_between
from kcover_ebpf.kernel.libbpf import kept_memory
from kcover_ebpf.kernel.maps import BpfMap, RingBuffer
from kcover_ebpf.kernel.probes import FAMILIES, Family, LoadedFamily, ProbeStatus, load_family
from kcover_ebpf.kernel.records import wire
from kcover_ebpf.kernel.records.decode import decode, decode_stream
from kcover_ebpf.kernel.roster import Absence, WatchedProcesses
from kcover_ebpf.kernel.sockets import SocketSampler
from kcover_ebpf.kernel.threads import ThreadSampler
from kcover_ebpf.settings import Settings
from kcover_ebpf.tunables.host import (
    LATE_PASS_PERIODS,
    LATE_SUSPENDED_NS,
    SWEEP_PAUSE_NS,
    SWEEP_PAUSES,
    TICK_MEASURE_S,
)

_CALM = SampleRequest()
_TOTALS_BYTES = ctypes.sizeof(wire.TotalsEvent)
_TOTALS_TYPE = wire.EventType.TOTALS.to_bytes(2, sys.byteorder)


def _key(number: int) -> bytes:
    return number.to_bytes(4, sys.byteorder)


class KernelSampler:
    """The loaded BPF programs.

    A context manager; `close` detaches everything. Not thread-safe. `statuses` says which probes are attached.
    `rejected` counts the records that could not be decoded, by the kind of `DecodeError`.
    """

    def __init__(self, families: Sequence[LoadedFamily], settings: Settings) -> None:
        """Takes ownership of loaded families, the base family first; use `open` instead."""
        self._families = families
        self._settings = settings
        self.statuses: tuple[ProbeStatus, ...] = tuple(
            status for family in families for status in family.statuses
        )
        self.rejected: Counter[str] = Counter()
        base = families[0]
        self._maps = _maps_of(base)
        self._threads = ThreadSampler(families)
        self._owner_ids: dict[Pid, int] = {}
        self._sockets = SocketSampler.of(families, self._owner_ids)
        self._ring = RingBuffer(self._maps["events"])
        self._lost = self._maps["lost"].memory()
        self._unsent_exits = _find_map(families, "unsent_exits")
        self._previous_value: wire.PassValue | None = None
        self._roster = WatchedProcesses()
        self._lost_count = self._unsent_count = 0
        self._refused: set[Pid] = set()
        self._next_sweep_ns = 0
        self._refused_count = 0
        self._requests: dict[Pid, SampleRequest] = {}
        self._has_stale = self._has_new = False
        self._expected_s = settings.period_s

    @classmethod
    def open(cls, settings: Settings, families: Sequence[Family] = FAMILIES) -> KernelSampler:
        """Load and attach; raises `LoadError` if the base family (the first) fails.

        Other refusals are listed in `statuses`.
        """
        features.require_privileges()
        loaded: list[LoadedFamily] = []
        try:
            with kept_memory():
                for family in families:
                    shared = _maps_of(loaded[0]) if loaded else {}
                    loaded.append(load_family(family, shared, settings))
            kernel = cls(loaded, settings)
        except BaseException:
            for one_family in reversed(loaded):
                one_family.close()
            raise
        kernel._calibrate()
        return kernel

    @property
    def maps(self) -> Mapping[str, BpfMap]:
        """The maps of the base family, which further families share."""
        return self._maps

    def watch(self, pid: Pid, owner_id: int = 0) -> None:
        """Watch a process with all its threads; children that it creates later are watched automatically.

        `owner_id`: the owner whose share of the tables the process and its children take, 64 bits
        (`owners.of_pod`); 0: its control group. A process beyond the capacity of 16,384 is not watched, and counted
        as lost.
        """
        now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self._roster.add(pid, now_ns)
        self._owner_ids[pid] = owner_id
        self._enter(pid, now_ns)
        self._has_new = True

    def _enter(self, pid: Pid, now_ns: int) -> None:
        value = wire.ProcessValue(watched_ns=now_ns, owner_id=self._owner_ids.get(pid, 0))
        self._put(self._maps["processes"].add, pid, bytes(value))

    def _put(self, write: Callable[[bytes, bytes], None], pid: Pid, value: bytes) -> bool:
        try:
            write(_key(pid), value)
        except OSError as error:
            if error.errno != errno.E2BIG:
                raise
            self._refused_count += pid not in self._refused
            self._refused.add(pid)
            return False
        return True

    def unwatch(self, pid: Pid) -> None:
        """Stop watching a process; its children stay watched."""
        self._maps["processes"].delete(_key(pid))
        self._forget(pid)
        self._has_stale = True

    def _forget(self, pid: Pid) -> None:
        self._sockets.forget(pid)
        self._roster.discard(pid)
        self._refused.discard(pid)
        self._owner_ids.pop(pid, None)
        if self._requests.pop(pid, None) is not None:
            # BPF removes it only at the exit of a process that was still watched
            self._maps["details"].delete(_key(pid))

    @property
    def strangers(self) -> tuple[int, int]:
        """Unwatched processes in control groups of watched ones, as of the last pass: (number, sum of their pids)."""
        state = self._previous_value
        return (0, 0) if state is None else (state.stranger_count, state.stranger_sum)

    def request(self, pid: Pid, wanted_request: SampleRequest) -> None:
        """Set how closely a watched process is sampled from the next pass on."""
        before = self._requests.get(pid, _CALM)
        if wanted_request is before or wanted_request == before:
            return
        if wanted_request.detail.value > before.detail.value:
            self._has_new = True
            self._sockets.wants_descriptors(pid)
        if wanted_request == _CALM:
            self._requests.pop(pid)
            self._maps["details"].delete(_key(pid))
            return
        self._requests[pid] = wanted_request
        lead = wanted_request.lead or 0
        value = wire.DetailValue(wanted_request.detail.value, wanted_request.every, lead)
        if not self._put(self._maps["details"].update, pid, bytes(value)):
            del self._requests[pid]  # sampled as in calm times until there is room

    @property
    def _least_every(self) -> int:
        # a lead thread that is not the first is found only if all threads are sampled
        wanted = (1 if request.lead else request.every for request in self._requests.values())
        return min(wanted, default=CALM_EVERY)

    def sample(self, socket_pids: Collection[Pid]) -> list[Fact]:
        """One pass: thread samples, totals of the processes that are due, descriptors of `socket_pids`, a `Tick`.

        All facts of a pass have the same time.
        """
        # stale samples and missing processes only show in a pass in which every process is due
        now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        sweeps = self._has_stale and now_ns >= self._next_sweep_ns
        doubts = self._roster.in_doubt
        is_whole = sweeps or doubts or (self._has_new and self._threads.visits_all)
        self._has_new = False
        facts: list[Fact] = []
        for records in self._threads.run(is_whole=is_whole, least_every=self._least_every):
            facts += decode_stream(records, self.rejected)
        state = self._threads.state()
        if self._threads.visits_all and not state.leaders_only:
            facts += self._totals(state.boottime_ns)
        seen = self._survey(facts)
        facts += self._socket_facts(socket_pids, state.id)
        facts += self._late_exits()
        if is_whole:
            facts += self._missed_exits(seen, state.boottime_ns)
        self._roster.compare(state.process_count, state.pid_sum)
        if sweeps:
            self._sweep(state.id)
        facts.append(self._tick(state))
        self._previous_value = state
        return facts

    def expect_pass(self, period_s: float) -> None:
        """The next pass is planned `period_s` seconds after this one; if it comes then, it does not count as late."""
        self._expected_s = max(period_s, self._settings.period_s)

    def wait(self, timeout_s: float) -> list[Fact]:
        """Events, as soon as one arrives that is urgent; otherwise those that arrived until `timeout_s`.

        Empty if there are none, or when a signal arrived. Changes of connections and retransmissions are not
        urgent.
        """
        facts: list[Fact] = []
        for record in self._ring.poll(max(0, math.ceil(timeout_s * 1000))):
            try:
                fact = decode(record)
            except DecodeError as error:
                self.rejected[error.kind] += 1
                continue
            if isinstance(fact, ProcessExit):
                self._forget(fact.pid)
            elif isinstance(fact, ProcessFork):
                owner_id = self._owner_ids.get(fact.pid, 0)
                if not self._roster.add_child(fact.child_pid, fact.boottime_ns, owner_id):
                    continue
                self._owner_ids[fact.child_pid] = owner_id
            elif isinstance(fact, TcpStateChange):
                self._sockets.has_connection(fact.pid)
            facts.append(fact)
        return facts

    def _socket_facts(self, pids: Collection[Pid], pass_id: int) -> list[Fact]:
        facts = list(decode_stream(self._sockets.read(pids, pass_id), self.rejected))
        for fact in facts:
            if isinstance(fact, SocketSample):
                self._sockets.has_connection(fact.pid)
        return facts

    def _survey(self, facts: Sequence[Fact]) -> set[Pid]:
        """The processes that a pass saw. If a first thread has ended, descriptors are read from another thread."""
        seen: set[Pid] = set()
        for fact in facts:
            if isinstance(fact, ProcessTotals):
                seen.add(fact.pid)
            elif (
                isinstance(fact, ThreadSample)
                and fact.state is TaskState.ZOMBIE
                and fact.tid == Tid(fact.pid)
            ):
                self._sockets.lost_leader(fact.pid)
        return seen

    def _late_exits(self) -> list[Fact]:
        """Exits that did not fit into the ring buffer: BPF keeps them complete in a map."""
        lost = wire.LostValue.from_buffer_copy(self._lost)
        if self._unsent_exits is None or lost.ring_count == self._unsent_count:
            return []
        self._unsent_count = lost.ring_count
        facts: list[Fact] = []
        for key, value in list(self._unsent_exits.items()):
            self._unsent_exits.delete(key)
            fact = decode(value)
            self._forget(Pid(int.from_bytes(key, sys.byteorder)))
            facts.append(fact)
        return facts

    def _missed_exits(self, seen: Collection[Pid], now_ns: int) -> list[Fact]:
        """Exits without a record. A live process without an entry is given one, if there is room now."""
        missing = self._roster.missing(seen, now_ns)
        if not missing:
            return []
        # their exit records may not have been read yet
        facts = self.wait(0)
        for pid, absence in missing.items():
            if pid not in self._roster:
                continue
            if absence is Absence.UNWATCHED:
                self._enter(pid, now_ns)
                continue
            self.unwatch(pid)
            facts.append(ProcessExit(now_ns, pid, 0, 0, core_dumped=False, comm="", known=False))
        return facts

    def close(self) -> None:
        """Detach and unload everything; the object cannot be used afterwards."""
        self._ring.close()
        self._lost.close()
        self._threads.close()
        self._sockets.close()
        for family in reversed(self._families):
            family.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _calibrate(self) -> None:
        """Measure the length of a tick with an empty pass, and pass it to the socket sampler."""
        first = self._blank_pass()
        length_ns = tick_ns(first.jiffies, first.monotonic_ns)
        if length_ns is None:
            time.sleep(TICK_MEASURE_S)
            second = self._blank_pass()
            length_ns = tick_ns_between(
                (first.jiffies, first.monotonic_ns), (second.jiffies, second.monotonic_ns)
            )
        first.tick_ns = length_ns
        self._maps["pass"].update(_key(0), bytes(first))

    def _blank_pass(self) -> wire.PassValue:
        for _ in self._threads.run(is_whole=False):
            pass
        return self._threads.state()

    def _totals(self, boottime_ns: int) -> list[Fact]:
        """Totals of the processes that were due; the others keep an older time."""
        facts = []
        for value in self._maps["processes"].values():
            if value.startswith(_TOTALS_TYPE):
                fact = decode(value[:_TOTALS_BYTES])
                if fact.boottime_ns == boottime_ns:
                    facts.append(fact)
        return facts

    def _tick(self, value: wire.PassValue) -> Tick:
        lost_count = self._read_lost()
        new_count, self._lost_count = lost_count - self._lost_count, lost_count
        previous = self._previous_value
        if previous is None:
            return Tick(value.boottime_ns, 0, new_count, late=False)
        period_ns = value.boottime_ns - previous.boottime_ns
        suspended_ns = period_ns - (value.monotonic_ns - previous.monotonic_ns)
        late = (
            period_ns > LATE_PASS_PERIODS * self._expected_s * NS
            or suspended_ns > LATE_SUSPENDED_NS
        )
        return Tick(value.boottime_ns, period_ns, new_count, late)

    @property
    def lost_counts(self) -> dict[str, int]:
        """Records and samples that did not fit since the start, by family; "events": into the ring buffer.

        "messages": log lines and connections that were dropped to leave room for exits and faults.
        """
        lost = wire.LostValue.from_buffer_copy(self._lost)
        return {
            "threads": self._refused_count + lost.process_count + lost.thread_count,
            "sockets": lost.socket_count,
            "events": lost.ring_count,
            "messages": lost.message_count,
        }

    def full_owners(self) -> Mapping[int, frozenset[str]]:
        """For each pod (`owners.of_pod`), which of its shares of the tables are used up."""
        return owners.full(self._maps["owners"])

    def _read_lost(self) -> int:
        counts = self.lost_counts
        total = sum(counts.values()) - counts["messages"]
        self._has_stale |= total > self._lost_count
        return total

    def _sweep(self, pass_id: int) -> None:
        # an owner that fills a table causes a walk over it, and others must not wait for that in
        # each pass
        began_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        owners.sweep(self._maps, pass_id, self._sockets.behind())
        self._has_stale = False
        ended_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        pause_ns = min(SWEEP_PAUSE_NS, SWEEP_PAUSES * (ended_ns - began_ns))
        self._next_sweep_ns = ended_ns + pause_ns


def _find_map(families: Sequence[LoadedFamily], name: str) -> BpfMap | None:
    return next((bpf_map for one in families if (bpf_map := _maps_of(one).get(name))), None)


def _maps_of(family: LoadedFamily) -> dict[str, BpfMap]:
    return family.object.maps if family.object is not None else {}
