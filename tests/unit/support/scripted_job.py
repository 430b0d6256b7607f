"""A scripted job for tests of the judging layers: facts as the kernel and the host would report them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kcover_ebpf.diagnosis.job import Job
from kcover_ebpf.diagnosis.tracker import Tracker
from kcover_ebpf.facts.host import (
    CodeSeen,
    Module,
    ProcessSeen,
    ReadingRequest,
    StorageState,
    ThreadReading,
    WaitedFile,
)
from kcover_ebpf.facts.kernel import (
    NO_SYSCALL,
    DescriptorSample,
    Detail,
    Fact,
    ProcessExit,
    ProcessTotals,
    SampleRequest,
    SignalSent,
    SocketSample,
    TaskState,
    ThreadSample,
    Tick,
)
from kcover_ebpf.facts.syscalls import SyscallTable
from kcover_ebpf.ids import NS, Inode, Pid, Tid
from kcover_ebpf.model.verdict import Verdict, VerdictKind
from kcover_ebpf.settings import Policy

START_NS = 1_000 * NS
FUTEX, NANOSLEEP, POLL, READ, OPENAT, PWRITE, YIELD = 202, 230, 7, 0, 257, 18, 24
FUTEX_PRIVATE = 0x80
FSYNC, IOCTL, FLOCK, PAUSE = 74, 16, 73, 34
COLLECTIVE = tuple(f"libtorch.so+{number:x}" for number in range(0x100, 0x120))
BARRIER = tuple(f"libtorch.so+{number:x}" for number in range(0x400, 0x420))
LOCK = tuple(f"python3.11+{number:x}" for number in range(0x900, 0x920))
CODE = {"python3.11": 0x1000, "libtorch.so": 0x2000, "libcuda.so.1": 0x3000, "[vdso]": 0x4000}
"""Where these lie in each process: 0x1000 bytes from there on."""
CODE |= {"libnccl.so.2": 0x5000, "libc.so.6": 0x6000, "libmpi.so.40": 0x7000}

STATES = {"stopped": TaskState.STOPPED, "traced": TaskState.TRACED, "frozen": TaskState.FROZEN}
STATES |= dict.fromkeys(("write", "fault"), TaskState.UNINTERRUPTIBLE)
RUNNING_MODES = ("run", "spin", "yield", "starved", "throttled", "quota")
STATES |= dict.fromkeys(RUNNING_MODES, TaskState.RUNNING)
"""State of the lead thread by mode; asleep in all others."""
CALLS = dict.fromkeys(("run", "spin", "throttled", "quota", "fault"), NO_SYSCALL)
CALLS |= dict.fromkeys(("sleep", "sleep_long", "nap", "pulse", "retry"), NANOSLEEP)
CALLS |= {
    "futex": FUTEX,
    "yield": YIELD,
    "starved": YIELD,
    "read": READ,
    "poll": POLL,
    "tick": POLL,
}
CALLS |= {"write": PWRITE, "fifo": OPENAT, "ioctl": IOCTL, "flock": FLOCK, "pause": PAUSE}
"""System call of the lead thread by mode."""
SHARES = {"train": 0.3, "pulse": 0.05, **dict.fromkeys(("run", "spin", "yield"), 1.0)}
SHARES |= dict.fromkeys(("throttled", "quota", "starved"), 0.01)
"""Of a CPU that the lead thread uses, by mode."""
STACK_POINTER = 0x7000


@dataclass
class Side:
    """A thread beside the first one of a process, from now on."""

    mode: str
    """yield, spin, futex, or timed: a futex with a time-out of `period_ns` that begins anew when it ends."""
    module: str = "libc.so.6"
    stack: tuple[str, ...] = ()
    period_ns: int = NS

    def since_ns(self, now_ns: int) -> int:
        return now_ns - now_ns % self.period_ns


@dataclass
class Proc:
    """What one process does from now on; change it between passes."""

    pid: int
    ppid: int = 1
    rank: int | None = None
    port: int = 0
    """Where its world meets."""
    argv: tuple[str, ...] = ("python3", "train.py")
    mode: str = "train"
    """train, futex, run, spin, yield, starved (yield without a CPU), sleep, sleep_long, stopped, traced, frozen,
    read, poll, write, fault, fifo, flock, nap (sleeps of milliseconds), quota (computes in 1% of the time),
    pulse (wakes from sleeps, and uses 5% of a CPU), retry (moves bytes between sleeps)."""
    stack: tuple[str, ...] = COLLECTIVE
    module: str = "python3.11"
    """Where it runs while it runs: one of `CODE`."""
    called_from: tuple[str, ...] = ()
    """Code words of its stack while it runs."""
    sides: dict[int, Side] = field(default_factory=dict)
    """By thread number."""
    naps_per_s: int = 0
    naps: int = 0
    io_bytes_s: int = 0
    side_cpu: float = 0.0
    throttled_share: float = 0.0
    """Share of the time for which its control group is throttled by a quota."""
    throttled_ns: int = 0
    files: tuple[WaitedFile, ...] = ()
    wait_channel: str = ""
    storage: StorageState | None = None
    deadline_ns: int | None = None
    timeout_ms: int = -1
    """Of its poll."""
    shared_futex: bool = False
    """Its futex is a semaphore of processes, in shared memory."""
    argument: int = 3
    """The first of its call; `STACK_POINTER` is where its stack ends while it does not run."""
    lock_holders: tuple[int, ...] = ()
    lock_thread: int | None = None
    timed: bool = False
    mode_since_ns: int = START_NS
    cpu_ns: int = 0
    delay_ns: int = 0
    written: int = 0
    sent: int = 0
    moves: int = 100_000
    last_send_ns: int = START_NS
    unread: int = 0
    unsent: int = 0
    backoff: int = 0
    alive: bool = True
    step: int = 0
    passes: int = 0
    read_ns: int = 0
    detail: Detail = Detail.OFF


@dataclass
class Stage:
    """Drives a `Job` second by second."""

    world: int = 4
    policy: Policy = field(default_factory=Policy)
    now_ns: int = START_NS
    procs: dict[int, Proc] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)
    connected: bool = True
    here: int | None = None
    """Ranks on this host, where the others are elsewhere."""
    forsaken: set[int] = field(default_factory=set)
    """Processes whose futexes no other process can reach."""
    modules: dict[str, int] = field(default_factory=CODE.copy)
    """What each process has loaded."""
    facts: list[Fact] | None = None
    """All that was fed to the job, where a test wants to feed it to another one."""

    def __post_init__(self) -> None:
        self.job = Job(self.policy, SyscallTable("x86_64"), whole=self.here is None)
        self.tracker = Tracker("job", "host")
        for rank in range(self.world if self.here is None else self.here):
            self.add(Proc(100 + rank, rank=rank))

    def add(self, proc: Proc) -> Proc:
        """A new process appears."""
        proc.mode_since_ns = self.now_ns
        self.procs[proc.pid] = proc
        ranked = {"RANK": str(proc.rank), "WORLD_SIZE": str(self.world)}
        ranked |= {"MASTER_PORT": str(proc.port)} if proc.port else {}
        environ = {} if proc.rank is None else ranked
        seen = ProcessSeen(
            self.now_ns, Pid(proc.pid), Pid(proc.ppid), "python3", proc.argv, environ
        )
        self.feed(replace(seen, pid_inside=proc.pid))
        return proc

    def rank(self, rank: int) -> Proc:
        return next(proc for proc in self.procs.values() if proc.rank == rank)

    def become(self, proc: Proc, mode: str, **changes: object) -> None:
        """From this moment on the process does something else."""
        proc.mode, proc.mode_since_ns = mode, self.now_ns
        for name, value in changes.items():
            setattr(proc, name, value)

    def feed(self, fact: Fact) -> None:
        if self.facts is not None:
            self.facts.append(fact)
        self.job.observe(fact)

    def exit(self, proc: Proc, code: int = 0, signal: int = 0) -> None:
        proc.alive = False
        self.feed(ProcessExit(self.now_ns, Pid(proc.pid), code, signal, False, "python3"))

    def stop_signal(self, proc: Proc, signal: int = 19) -> None:
        self.feed(SignalSent(self.now_ns, Pid(proc.pid), Tid(proc.pid), signal, Pid(9), "kill"))

    def run(self, seconds: float) -> Verdict | None:
        """Pass by pass at the job's own pace; returns the verdict reported last."""
        end_ns = self.now_ns + int(seconds * NS)
        while self.now_ns < end_ns:
            self.one_pass(NS // 4 if self.job.urgent else NS)
        return self.tracker.current

    def one_pass(self, period_ns: int, lost: int = 0, late: bool = False) -> None:
        self.now_ns += period_ns
        requests = self.job.sampling()
        for proc in self.procs.values():
            if proc.alive:
                self._sample(proc, period_ns, requests.get(Pid(proc.pid), SampleRequest()))
        self.feed(Tick(self.now_ns, period_ns, lost, late))
        for request in self.job.wants():
            self.feed(self._reading(request) if request.burning_sp is None else self._code(request))
        verdict = self.tracker.update(self.job, 0.0)
        if verdict is not None:
            self.verdicts.append(verdict)

    def _is_due(self, proc: Proc, wanted_request: SampleRequest) -> bool:
        """At first sight, when detail begins, and in its turn."""
        proc.passes += 1
        begins = wanted_request.detail.value > proc.detail.value
        proc.detail = wanted_request.detail
        return proc.passes == 1 or begins or (proc.passes + proc.pid) % wanted_request.every == 0

    def _sample(self, proc: Proc, period_ns: int, wanted_request: SampleRequest) -> None:
        share = SHARES.get(proc.mode, 0.0)
        proc.cpu_ns += int(share * period_ns)
        if proc.mode in ("throttled", "starved"):
            proc.delay_ns += int(0.99 * period_ns)
        proc.throttled_ns += int(proc.throttled_share * period_ns)
        proc.written += int(proc.io_bytes_s * period_ns / NS)
        proc.step += 1
        if proc.mode == "train":
            proc.sent += proc.moves
            proc.last_send_ns = self.now_ns
        sample = self._thread(proc)
        proc.naps += proc.naps_per_s * period_ns // NS if proc.mode == "nap" else 0
        moved = share >= 0.02 or proc.mode == "quota"
        if moved or wanted_request.detail.value or self.now_ns - period_ns <= proc.mode_since_ns:
            self.feed(replace(sample, voluntary_count=sample.voluntary_count + proc.naps))
        if self._is_due(proc, wanted_request):
            self._reconcile_all(proc, sample)
        if self.connected and proc.rank is not None:
            self._socket(proc)

    def _reconcile_all(self, proc: Proc, sample: ThreadSample) -> None:
        for tid, side in proc.sides.items():
            self.feed(self._side(proc, tid, side, sample))
        proc.read_ns = self.now_ns
        side_ns = int(proc.side_cpu * (self.now_ns - START_NS))
        self.feed(
            ProcessTotals(
                self.now_ns,
                Pid(proc.pid),
                Pid(proc.ppid),
                proc.cpu_ns + side_ns,
                0,
                proc.written * (proc.mode != "retry"),
                0,
                proc.written,
                major_faults=0,
                thread_count=1,
                throttled_ns=proc.throttled_ns,
                forsaken_count=int(proc.mode == "futex" and proc.pid in self.forsaken),
                asleep_chars=proc.written * (proc.mode == "retry"),
            )
        )

    def _thread(self, proc: Proc) -> ThreadSample:
        is_running = proc.mode == "train" and proc.step % 2 == 0
        number = CALLS.get(proc.mode, NANOSLEEP if is_running else FUTEX)
        pointer = STACK_POINTER + (
            proc.step % 7 * 64 if proc.mode in ("run", "train", "quota") else 0
        )
        since_ns = self.now_ns - NS // 50 if proc.mode == "train" else proc.mode_since_ns
        argument = proc.argument
        if proc.mode == "tick":
            # a poll of five seconds that begins anew, each time with its arguments at another address
            since_ns = self.now_ns - (self.now_ns - proc.mode_since_ns) % (5 * NS)
            argument = since_ns // NS
        return ThreadSample(
            boottime_ns=self.now_ns,
            pid=Pid(proc.pid),
            tid=Tid(proc.pid),
            start_ns=1,
            state=STATES.get(proc.mode, TaskState.SLEEPING),
            syscall=number,
            args=(argument, self._second(proc), proc.timeout_ms & 0xFFFFFFFF, 0, 0, 0),
            user_sp=pointer,
            user_ip=CODE[proc.module] + 0x10,
            site_since_ns=since_ns,
            idle_since_ns=since_ns,
            cpu_ns=proc.cpu_ns,
            run_delay_ns=proc.delay_ns,
            voluntary_count=proc.step,
            comm="python3",
        )

    def _second(self, proc: Proc) -> int:
        """Second argument of its call: the command of a futex, and in a loop a register."""
        if proc.mode == "futex":
            return 0 if proc.shared_futex else FUTEX_PRIVATE
        return proc.step if proc.mode == "run" else 0

    def _side(self, proc: Proc, tid: int, side: Side, lead_sample: ThreadSample) -> ThreadSample:
        burns = side.mode not in ("futex", "timed")
        number = FUTEX if not burns else YIELD if side.mode == "yield" else NO_SYSCALL
        if side.mode == "timed":
            since_ns = side.since_ns(self.now_ns)
            lead_sample = replace(lead_sample, idle_since_ns=since_ns, site_since_ns=since_ns)
        idle = 0x9010, self.now_ns % 97, 0, 0, 0, 0
        return replace(
            lead_sample,
            tid=Tid(tid),
            state=TaskState.RUNNING if burns else TaskState.SLEEPING,
            syscall=number,
            args=(0x9010, 9, 0, 0x9100, 0, 0) if side.mode == "timed" else idle,
            user_sp=0x9000,
            user_ip=CODE[side.module] + 0x10,
            cpu_ns=self.now_ns - START_NS if burns else 0,
            run_delay_ns=0,
            previous_ns=proc.read_ns,
        )

    def _code(self, request: ReadingRequest) -> CodeSeen:
        proc = self.procs[int(request.pid)]
        side = proc.sides.get(int(request.tid))
        stack = proc.called_from if side is None else side.stack
        modules = tuple(Module(at, at + 0x1000, name) for name, at in self.modules.items())
        seen = CodeSeen(self.now_ns, request.pid, request.tid, stack)
        return replace(seen, modules=modules if request.wants_modules else ())

    def _socket(self, proc: Proc) -> None:
        for other in self.procs.values():
            if other.rank is None or other.pid == proc.pid or other.port != proc.port:
                continue
            self.feed(
                SocketSample(
                    boottime_ns=self.now_ns,
                    pid=Pid(proc.pid),
                    fd=10 + other.rank,
                    inode=Inode(proc.pid * 100 + other.rank),
                    state="ESTABLISHED",
                    local=("127.0.0.1", proc.pid * 100 + other.rank),
                    remote=("127.0.0.1", other.pid * 100 + (proc.rank or 0)),
                    unread_bytes=proc.unread,
                    unsent_bytes=proc.unsent,
                    unacked_bytes=96 if proc.backoff or other.backoff else 0,
                    acked_bytes=proc.sent,
                    received_bytes=proc.sent,
                    backoff=max(proc.backoff, other.backoff),
                    send_window_bytes=65536,
                    last_send_ns=proc.last_send_ns,
                    last_receive_ns=proc.last_send_ns,
                )
            )

    def _reading(self, request: ReadingRequest) -> ThreadReading:
        proc = self.procs[int(request.pid)]
        side = proc.sides.get(int(request.tid))
        return replace(
            ThreadReading(self.now_ns, request.pid, request.tid, "", None, False, (), (), None, ()),
            stack=proc.stack if side is None else side.stack,
            files=proc.files,
            timed=proc.timed,
            wait_channel=proc.wait_channel,
            storage=proc.storage,
            deadline_ns=proc.deadline_ns
            if side is None
            else side.since_ns(self.now_ns) + side.period_ns,
            lock_thread=None if proc.lock_thread is None else Tid(proc.lock_thread),
            lock_holders=tuple(Pid(lock_holder) for lock_holder in proc.lock_holders),
        )


def pipe(stage: Stage, holder: Proc, fd: int, inode: int) -> WaitedFile:
    """A pipe that `holder` has open."""
    stage.feed(DescriptorSample(stage.now_ns, Pid(holder.pid), fd, "pipe", Inode(inode), None))
    return WaitedFile(fd, "pipe", f"pipe:[{inode}]", Inode(inode), "", "")


def trained(world: int = 4, seconds: float = 20, **options: object) -> Stage:
    """A healthy job whose ranks have trained for a while."""
    stage = Stage(world=world, **options)  # type: ignore[arg-type]
    stage.run(seconds)
    assert [
        verdict.kind for verdict in stage.verdicts if verdict.kind is not VerdictKind.WORKING
    ] == []
    return stage


def all_wait(stage: Stage, but: int) -> None:
    """Every other rank waits for it."""
    for proc in stage.procs.values():
        if proc.rank is not None and proc.rank != but and proc.alive:
            stage.become(proc, "futex", last_send_ns=stage.now_ns)
