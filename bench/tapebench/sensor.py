"""What the sensor would say of a scripted gang: facts at each pass, and answers to requests for a reading."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from bench.tapebench.activities import LOADER_FD, MODULES, Activity
from bench.tapebench.connections import RATE, Connections
from bench.tapebench.gang import Gang, ScriptedProcess
from bench.tapebench.threads import ScriptedThread
from kcover_ebpf.facts.devices import FabricMoved
from kcover_ebpf.facts.host import (
    CodeSeen,
    Module,
    ProcessSeen,
    ReadingRequest,
    StorageState,
    ThreadReading,
)
from kcover_ebpf.facts.kernel import (
    DescriptorSample,
    Detail,
    Fact,
    ProcessTotals,
    SampleRequest,
    ThreadSample,
)
from kcover_ebpf.ids import NS, Inode, Pid

MODULE_LIST = tuple(Module(at, at + 0x1000, name) for name, at in MODULES.items())


_CALM = SampleRequest()


class ScriptedSensor:
    """Samples one gang as closely as the job requests, like the programs in the kernel."""

    def __init__(self, gang: Gang, *, rdma: bool) -> None:
        self._gang, self._rdma = gang, rdma
        self.connections = Connections(gang, rdma=rdma)
        self._requests: Mapping[Pid, SampleRequest] = {}
        self._details: dict[int, Detail] = {}
        """Of each process that was sampled, at the pass before."""
        self._pass_number = 0
        self._data_ns = 0

    def seen(self, process: ScriptedProcess) -> ProcessSeen:
        """A new process."""
        rank, world = process.rank, self._gang.world
        environ = {} if rank is None else {"RANK": str(rank), "WORLD_SIZE": str(world)}
        argv = ("python3", "train.py")
        pid, ppid = Pid(process.pid), Pid(process.ppid)
        return ProcessSeen(process.born_ns, pid, ppid, "python3", argv, environ)

    def request(self, requests: Mapping[Pid, SampleRequest]) -> None:
        """How closely each process is to be sampled from the next pass on; those that are left out: least."""
        self._requests = requests

    def sample(self, connected: Collection[Pid]) -> Iterator[Fact]:
        """One pass, without its end; the connections of `connected` alone are read."""
        self._pass_number += 1
        now_ns = self._gang.now_ns
        flowed_ns, self._data_ns = self._gang.data_ns - self._data_ns, self._gang.data_ns
        if flowed_ns:
            self.connections.sent_ns = now_ns
        for process in self._gang.processes.values():
            if not process.alive or process.born_ns > now_ns:
                continue
            pid = Pid(process.pid)
            wanted_request = self._requests.get(pid, _CALM)
            yield from self._visit(process, wanted_request)
            in_detail = wanted_request.detail is not Detail.OFF
            if pid in connected:
                yield from self.connections.sample(process, detail=in_detail)
                if in_detail and process.rank is None:
                    yield from self._pipe(process)
            if self._rdma and flowed_ns and process.rank is not None:
                yield FabricMoved(now_ns, pid, flowed_ns * RATE // NS)

    def _visit(
        self, process: ScriptedProcess, wanted_request: SampleRequest
    ) -> Iterator[ThreadSample | ProcessTotals]:
        """Its leads; all its threads, and its totals, where that is its turn (bpf/pass.bpf.h)."""
        before, detail = self._details.get(process.pid), wanted_request.detail
        self._details[process.pid] = detail
        begins = before is not None and detail.value > before.value
        turn = (self._pass_number + process.pid) % wanted_request.every
        is_whole = before is None or begins or turn == 0
        for thread in process.threads.values():
            is_lead = thread.tid in {process.pid, wanted_request.lead}
            if not (is_whole or is_lead):
                continue
            sample = thread.sample(self._gang.now_ns, detail, begins=begins, is_lead=is_lead)
            if sample is not None:
                yield sample
        if is_whole:
            process.settle(self._gang.now_ns)
            yield self._totals(process)

    def _totals(self, process: ScriptedProcess) -> ProcessTotals:
        return ProcessTotals(
            boottime_ns=self._gang.now_ns,
            pid=Pid(process.pid),
            ppid=Pid(process.ppid),
            cpu_ns=sum(thread.cpu_ns for thread in process.threads.values()),
            read_bytes=0,
            write_bytes=process.written,
            read_chars=0,
            write_chars=process.written,
            major_faults=0,
            thread_count=len(process.threads),
            forsaken_count=sum(thread.is_forsaken for thread in process.threads.values()),
        )

    def _pipe(self, loader: ScriptedProcess) -> Iterator[Fact]:
        now_ns, inode = self._gang.now_ns, Inode(loader.pid)
        yield DescriptorSample(now_ns, Pid(loader.pid), 7, "pipe", inode, None)
        yield DescriptorSample(now_ns, Pid(loader.ppid), LOADER_FD, "pipe", inode, None)

    def answer(self, request: ReadingRequest) -> Fact | None:
        """What a reading of one thread finds; None for one that is gone."""
        process = self._gang.processes[int(request.pid)]
        threads = (thread for thread in process.threads.values() if thread.tid == int(request.tid))
        thread = next(threads, None)
        if thread is None or not process.alive:
            return None
        if request.burning_sp is not None:
            modules = MODULE_LIST if request.wants_modules else ()
            stack = thread.now.stack
            return CodeSeen(self._gang.now_ns, request.pid, request.tid, stack, modules)
        return self._reading(request, thread, thread.now)

    def _reading(
        self, request: ReadingRequest, thread: ScriptedThread, act: Activity
    ) -> ThreadReading:
        now_ns = self._gang.now_ns
        deadline_ns = None
        if act.sleep_s is not None:
            deadline_ns = thread.since_ns + int(act.sleep_s * NS)
        elif act.timed:
            deadline_ns = now_ns + NS // 20
        storage = None
        if act.completes:
            storage = StorageState("259:0", 64, now_ns // (NS // 200), suspended=False)
        return ThreadReading(
            boottime_ns=now_ns,
            pid=request.pid,
            tid=request.tid,
            wait_channel=act.wait_channel,
            deadline_ns=deadline_ns,
            timed=act.timed,
            files=act.files,
            stack=act.stack,
            storage=storage,
            lock_holders=(),
        )
