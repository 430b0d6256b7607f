"""Turns the state of a job into the rows of the thread table: which thread waits for what, since when."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.diagnosis.job import Job
from kcover_ebpf.diagnosis.membership.endpoints import EndpointIndex
from kcover_ebpf.facts import futex
from kcover_ebpf.facts.host import ReadingRequest, ThreadReading
from kcover_ebpf.facts.kernel import NO_SYSCALL, TaskState, ThreadSample
from kcover_ebpf.facts.syscalls import SyscallTable
from kcover_ebpf.host import process_tree, procfs, thread_reader
from kcover_ebpf.host.open_files import pipe_holders
from kcover_ebpf.host.thread_reader import ThreadReader
from kcover_ebpf.ids import NS, Inode, Pid, Tid
from kcover_ebpf.model.roles import Role
from kcover_ebpf.output.formatting import address, span
from kcover_ebpf.trace.describe_call import CallDetails, WaitTarget, in_detail
from kcover_ebpf.trace.records import TracedThread
from kcover_ebpf.tunables.trace import PIPE_SEARCH_S, READING_S

_MOST_THREADS = 4096


class Table:
    """Creates the rows; remembers the first sample of each thread for its CPU share."""

    def __init__(
        self,
        job: Job,
        syscalls: SyscallTable,
        reader: ThreadReader,
        pods: Callable[[], Mapping[int, str]],
    ) -> None:
        """`pods`: process -> its pod, in a cluster."""
        self._job, self._syscalls, self._pods = job, syscalls, pods
        self._readings = WaitReadings(reader)
        self._first: dict[tuple[Pid, Tid], tuple[int, int]] = {}
        self.numbers: dict[int, dict[int, int]] = {}
        """Process -> thread ids in its pid namespace -> ours."""

    def note(self) -> None:
        """Remember the CPU time of threads seen for the first time."""
        for process in _living(self._job):
            for tid, thread in process.threads.items():
                seen = thread.sample.cpu_ns, thread.sample.boottime_ns
                self._first.setdefault((process.pid, tid), seen)

    def rows(self) -> list[TracedThread]:
        """All threads of all living processes of the job, leads of ranks first."""
        processes = sorted(_living(self._job), key=_order)
        self._read_numbers(processes)
        threads = [
            (process, thread.sample)
            for process in processes
            for thread in sorted(
                process.threads.values(), key=lambda thread_history: thread_history.sample.tid
            )
        ][:_MOST_THREADS]
        threads.sort(key=lambda pair: not _is_lead(*pair))
        waits = self._readings.read(
            [
                ReadingRequest(process.pid, sample.tid, sample.idle_since_ns, sample.syscall)
                for process, sample in threads
                if sample.syscall != NO_SYSCALL
            ],
            READING_S,
        )
        people = _People(self._job, waits, self._pods())
        return [
            self._row(process, sample, waits.get((process.pid, sample.tid)), people)
            for process, sample in threads
        ]

    def _read_numbers(self, processes: Sequence[ProcessHistory]) -> None:
        for process in processes:
            known = self.numbers.get(process.pid)
            if known is None or len(known) < len(process.threads):
                self.numbers[process.pid] = thread_reader.thread_numbers(
                    process.pid, process.threads
                )

    def _row(
        self,
        process: ProcessHistory,
        sample: ThreadSample,
        reading: ThreadReading | None,
        people: _People,
    ) -> TracedThread:
        lead = _is_lead(process, sample)
        name = self._syscalls.name(sample.syscall)
        known_details = self._known(process, sample, reading, people)
        text, targets = in_detail(sample.state, name, sample.args, known_details)
        return TracedThread(
            rank=process.rank,
            pid=process.pid,
            tid=sample.tid,
            comm=sample.comm,
            role=(process.role or Role.HELPER).value,
            pod=people.pods.get(process.pid),
            state=sample.state.value,
            call=name,
            text=text,
            since_s=people.since_s(process, sample),
            cpu_share=self._share(process.pid, sample),
            ends_in_s=self._left_s(reading),
            lead=lead,
            waits_for=targets,
        )

    def _known(
        self,
        process: ProcessHistory,
        sample: ThreadSample,
        reading: ThreadReading | None,
        people: _People,
    ) -> CallDetails:
        if reading is None:
            return CallDetails(children=people.children(process.pid))
        numbers = self.numbers.get(process.pid, {})
        lock = None
        if reading.lock_memory:
            # a lock in shared memory may be owned by any process of the job
            lock = futex.describe(sample.args[1], sample.args[2], reading.lock_memory, numbers)
        left_s = self._left_s(reading)
        return CallDetails(
            lock=lock,
            files=reading.files,
            ends={file.fd: people.ends(process, file.fd, file.inode) for file in reading.files},
            names=people.thread_names(process),
            children=people.children(process.pid),
            lock_holders=[people.process(pid, "process") for pid in reading.lock_holders],
            wait_channel=reading.wait_channel,
            timed=reading.timed,
            left="" if left_s is None else span(left_s),
        )

    def _left_s(self, reading: ThreadReading | None) -> float | None:
        if reading is None or reading.deadline_ns is None:
            return None
        return max(0.0, (reading.deadline_ns - self._job.now_ns) / NS)

    def _share(self, pid: Pid, sample: ThreadSample) -> float | None:
        first_cpu_ns, first_ns = self._first.get((pid, sample.tid), (0, 0))
        elapsed_ns = self._job.now_ns - first_ns
        if not first_ns or elapsed_ns <= 0:
            return None
        return round(min(1.0, (sample.cpu_ns - first_cpu_ns) / elapsed_ns), 3)


class _People:
    """The processes and threads of the job at one pass."""

    def __init__(
        self, job: Job, waits: Mapping[tuple[Pid, Tid], ThreadReading], pods: Mapping[int, str]
    ) -> None:
        self._job = job
        self.pods = pods
        self._ends = EndpointIndex(job.members.views.values())
        self._processes = job.snapshot().processes
        self._holders = self._search(waits)

    def _search(self, waits: Mapping[tuple[Pid, Tid], ThreadReading]) -> dict[Inode, list[Pid]]:
        # pipes first within the job, then, for a lead's wait, on the whole host
        inodes = {file.inode for wait in waits.values() for file in wait.files}
        pipes = frozenset(
            file.inode for wait in waits.values() for file in wait.files if file.kind == "pipe"
        )
        if not pipes & inodes:
            return {}
        own = list(self._job.members.views)
        found = pipe_holders(pipes, own, PIPE_SEARCH_S)
        lonely = frozenset(inode for inode in pipes if len(found.get(inode, [])) < 2)
        # the process that started the job is the likely partner: it is searched first
        above = [
            Pid(pid)
            for process in _living(self._job)
            for pid in process_tree.ancestors(process.pid)
        ]
        others = dict.fromkeys([*above, *procfs.every_process()])
        others = {pid: None for pid in others if pid not in self._job.members.views}
        for inode, pids in pipe_holders(lonely, others, PIPE_SEARCH_S).items():
            found.setdefault(inode, []).extend(pids)
        return found

    def since_s(self, process_history: ProcessHistory, sample: ThreadSample) -> float | None:
        """Seconds in the present wait; None for a thread that runs."""
        process = self._processes.get(process_history.pid)
        is_lead = _is_lead(process_history, sample)
        runs = sample.state is TaskState.RUNNING
        if is_lead and process is not None:
            burning = (
                process_history.lead is not None
                and process_history.lead.burning_since_ns is not None
            )
            age_s = None if runs and not burning else process.age_s
        else:
            age_s = None if runs else (self._job.now_ns - sample.idle_since_ns) / NS
        return None if age_s is None else round(max(0.0, age_s), 3)

    def thread_names(self, process: ProcessHistory) -> dict[int, str]:
        """Thread id -> name, for one process."""
        return {tid: thread.sample.comm for tid, thread in process.threads.items()}

    def children(self, pid: Pid) -> list[WaitTarget]:
        """Living children of a process of the job."""
        processes = self._job.members.views.values()
        found = [
            process
            for process in processes
            if process.seen and process.seen.ppid == pid and not process.exit
        ]
        return [self.process(process.pid, "child") for process in found]

    def process(self, pid: Pid, kind: str, fd: int | None = None) -> WaitTarget:
        """Description of a process: its rank if it has one."""
        process = self._job.members.views.get(pid)
        if process is None:
            return WaitTarget(kind, f"pid {pid} (not part of this job)", pid=pid, fd=fd)
        rank, role = process.rank, process.role
        if rank is None or role is None:
            return WaitTarget(kind, f"pid {pid} ({process.comm})", pid=pid, fd=fd)
        text = f"rank {rank}" if role is Role.RANK else f"rank {rank}'s {role.value} {pid}"
        return WaitTarget(kind, text, pid=pid, rank=rank, fd=fd)

    def ends(self, process: ProcessHistory, fd: int, inode: Inode) -> list[WaitTarget]:
        """Processes at the other end of a descriptor; empty if there are none, or none is known."""
        sample = process.sockets.get(fd)
        if sample is not None:
            return [] if sample.state == "LISTEN" else [self._socket(process, fd)]
        for descriptor in process.descriptors.values():
            if descriptor.fd == fd and descriptor.kind == "unix":
                pids = self._unix_peers(process, descriptor.peer_inode)
                return [self.process(pid, "unix", fd) for pid in pids]
        pids = [pid for pid in self._holders.get(inode, ()) if pid != process.pid]
        return [self.process(pid, "pipe", fd) for pid in pids]

    def _unix_peers(self, process: ProcessHistory, peer: Inode | None) -> list[Pid]:
        return [
            other.pid
            for other in self._job.members.views.values()
            if peer is not None
            and other.pid != process.pid
            and any(descriptor.inode == peer for descriptor in other.descriptors.values())
        ]

    def _socket(self, process: ProcessHistory, fd: int) -> WaitTarget:
        sample = process.sockets[fd]
        peer = self._ends.peer(sample)
        remote = address(sample.remote)
        who = remote if peer is None else f"{self.process(peer, '').text} {remote}"
        queued = [
            f"{size} B {what}"
            for size, what in (
                (sample.unread_bytes, "unread"),
                (sample.unsent_bytes, "unsent"),
                (sample.unacked_bytes, "unanswered"),
            )
            if size
        ]
        notes = queued or ["nothing queued"]
        if sample.last_receive_ns > 0:
            notes.append(f"last byte {span((self._job.now_ns - sample.last_receive_ns) / NS)} ago")
        if sample.state != "ESTABLISHED":
            notes.insert(0, sample.state)
        rank = None if peer is None else self.process(peer, "").rank
        text = f"{who} ({', '.join(notes)})"
        return WaitTarget("tcp", text, pid=peer, rank=rank, fd=fd, address=remote)


def _order(process: ProcessHistory) -> tuple[bool, int, bool, int]:
    return process.rank is None, process.rank or 0, process.role is not Role.RANK, process.pid


def _living(job: Job) -> list[ProcessHistory]:
    return [process for process in job.members.views.values() if process.exit is None]


def _is_lead(process: ProcessHistory, sample: ThreadSample) -> bool:
    lead = process.lead
    return sample.tid == (Tid(process.pid) if lead is None else lead.sample.tid)


class Reader(Protocol):
    """Reads what threads wait for; `host.thread_reader` in the product."""

    def waits(
        self, requests: Sequence[ReadingRequest], limit_s: float
    ) -> dict[tuple[Pid, Tid], ThreadReading]:
        """What each thread waits for; those not read within `limit_s` are missing."""
        ...


class WaitReadings:
    """Caches readings: not all of some hundred threads are read in time; each table reads more of them."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._known: dict[ReadingRequest, ThreadReading] = {}

    def read(
        self, requests: Sequence[ReadingRequest], limit_s: float
    ) -> Mapping[tuple[Pid, Tid], ThreadReading]:
        """What each thread waits for; one not read within `limit_s` has its last reading of the same wait, if any.

        Threads without a reading are read first.
        """
        ordered = sorted(requests, key=lambda request: request in self._known)
        fresh = self._reader.waits(ordered, limit_s)
        found = {
            request: fresh.get((request.pid, request.tid), self._known.get(request))
            for request in requests
        }
        self._known = {
            request: reading for request, reading in found.items() if reading is not None
        }
        return {(request.pid, request.tid): reading for request, reading in self._known.items()}
