"""What a thread of a GPU job does at one time: the shapes that scripted jobs are made of.

The shapes come from public back traces (NVIDIA/nccl issues 117, 585, 899, 901) and from stubs for the
libraries. No GPU was used: that a driver really waits so is an assumption.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import accumulate
from zlib import crc32

from kcover_ebpf.facts.host import WaitedFile
from kcover_ebpf.facts.kernel import NO_SYSCALL, TaskState
from kcover_ebpf.ids import Inode

READ, POLL, NANOSLEEP, IOCTL, FSYNC, YIELD, CLOSE, FUTEX = 0, 7, 35, 16, 74, 24, 3, 202
WAIT4 = 61
"""System calls of x86_64."""

MODULES = {"python3.11": 0x1000, "libtorch.so": 0x2000, "libcuda.so.1": 0x3000, "[vdso]": 0x4000}
MODULES |= {"libnccl.so.2": 0x5000, "libc.so.6": 0x6000}
"""Where each lies in every process: 0x1000 bytes from there on."""

STORE_FD, HTTP_FD, LOADER_FD, RING_FD, PEER_RING_FD = 20, 50, 40, 30, 31


def words(module: str, first: int, count: int = 24) -> tuple[str, ...]:
    """Code words of a stack."""
    return tuple(f"{module}+{number:x}" for number in range(first, first + count))


@dataclass(frozen=True, slots=True)
class Activity:
    """One thing that a thread does; equal ones are one and the same place in its program."""

    name: str
    share: float = 0.0
    """Of a CPU."""
    state: TaskState = TaskState.SLEEPING
    syscall: int = NO_SYSCALL
    places: tuple[tuple[str, int], ...] = (("python3.11", 1),)
    """Modules that it is found in while it burns, with their weights."""
    stack: tuple[str, ...] = ()
    files: tuple[WaitedFile, ...] = ()
    wait_channel: str = ""
    timed: bool = False
    sleep_s: float | None = None
    """Length of the sleep it began; None if it is no sleep."""
    completes: bool = False
    """Its disk completes requests all the time."""
    write_bytes_s: int = 0
    wakes_s: int = 0
    """Times per second that it goes to sleep again, or yields its CPU."""
    in_place: bool = False
    """It burns in a loop that leaves its registers as they are."""
    beside: Activity | None = None
    """What a side thread of its process does meanwhile, where it has one for that."""

    burns: bool = field(init=False)
    """It uses a CPU for good."""
    argument: int = field(init=False)
    """First argument of its call."""
    modules: tuple[str, ...] = field(init=False)
    weights: tuple[int, ...] = field(init=False)
    """Of `places`, added up."""

    def __post_init__(self) -> None:
        """Every sample asks for what follows from the rest."""
        object.__setattr__(self, "burns", self.share >= 0.5)
        object.__setattr__(self, "argument", crc32(self.name.encode()) % 4096)
        object.__setattr__(self, "modules", tuple(name for name, _ in self.places))
        object.__setattr__(self, "weights", tuple(accumulate(place for _, place in self.places)))


_SYNCHRONIZE = ("libc.so.6+1", *words("libcuda.so.1", 0x10, 3), *words("libtorch.so", 0x20, 12))
_GPU = WaitedFile(12, "device", "/dev/nvidia0", Inode(0), "195:0", "")
_KFD = WaitedFile(12, "device", "/dev/kfd", Inode(0), "511:0", "")
_SHARD = WaitedFile(14, "file", "/data/checkpoint.pt", Inode(5), "259:0", "xfs")
_BUCKET = WaitedFile(14, "file", "/mnt/bucket/checkpoint.pt", Inode(6), "0:55", "fuse")

LAUNCH = Activity("launch", 1.0, TaskState.RUNNING, stack=words("python3.11", 0x10))
METRIC = Activity("metric", 1.0, TaskState.RUNNING, stack=words("python3.11", 0x60))
IMPORTS = Activity("imports", 0.9, TaskState.RUNNING, stack=words("python3.11", 0x40))
SPIN = Activity(
    "spin", 1.0, TaskState.RUNNING, places=(("libcuda.so.1", 3), ("[vdso]", 12)), stack=_SYNCHRONIZE
)
CLOCK = replace(SPIN, name="clock", stack=(*words("python3.11", 0x180, 1), *_SYNCHRONIZE))
"""The same where the vDSO's clock saves a register that points into the interpreter."""
YIELDING = Activity(
    "yield",
    1.0,
    TaskState.RUNNING,
    YIELD,
    (("libc.so.6", 1),),
    stack=_SYNCHRONIZE,
    wakes_s=1000,
)
BLOCK = Activity(
    "block",
    0.0,
    TaskState.SLEEPING,
    POLL,
    stack=_SYNCHRONIZE,
    files=(_GPU,),
    wait_channel="do_sys_poll",
)
IOCTL_WAIT = Activity(
    "ioctl",
    0.0,
    TaskState.SLEEPING,
    IOCTL,
    stack=_SYNCHRONIZE,
    files=(_KFD,),
    wait_channel="kfd_wait_on_events",
)
WAIT_STYLES = {
    "spin": SPIN,
    "clock": CLOCK,
    "yield": YIELDING,
    "block": BLOCK,
    "ioctl": IOCTL_WAIT,
}

AUTOGRAD = Activity("autograd", 0.0, TaskState.SLEEPING, FUTEX, stack=words("libtorch.so", 0x300))
"""The first thread waits for the one that runs the backward pass."""
IDLE = Activity(
    "idle",
    0.00005,
    TaskState.SLEEPING,
    FUTEX,
    timed=True,
    stack=words("libc.so.6", 0x90),
    wakes_s=10,
)
"""A helper thread that wakes ten times a second and finds nothing to do."""
PROXY = Activity(
    "proxy",
    1.0,
    TaskState.RUNNING,
    YIELD,
    (("libnccl.so.2", 1),),
    stack=words("libnccl.so.2", 0x10),
    wakes_s=1000,
)
"""NCCL's network thread while an operation is pending."""

FSYNC_DISK = Activity(
    "fsync",
    0.0,
    TaskState.UNINTERRUPTIBLE,
    FSYNC,
    stack=words("python3.11", 0x100),
    files=(_SHARD,),
    wait_channel="folio_wait_bit_common",
    completes=True,
)
FUSE_CLOSE = Activity(
    "fuse close",
    0.0,
    TaskState.SLEEPING,
    CLOSE,
    stack=words("python3.11", 0x110),
    files=(_BUCKET,),
    wait_channel="request_wait_answer",
)
SERIALIZE = Activity(
    "serialize", 1.0, TaskState.RUNNING, stack=words("python3.11", 0x120), write_bytes_s=400 << 20
)
LOCK = Activity("lock", 0.0, TaskState.SLEEPING, FUTEX, stack=words("python3.11", 0x900))
SLEEP = Activity(
    "sleep",
    0.0,
    TaskState.SLEEPING,
    NANOSLEEP,
    timed=True,
    sleep_s=3600.0,
    stack=words("python3.11", 0x910),
)
HELPED = Activity("helped", 0.0, TaskState.SLEEPING, FUTEX, stack=words("python3.11", 0xA00))
"""The first thread waits for a thread of its process of which nothing is seen: a future, a queue, a join."""
SERVED = Activity(
    "served",
    0.0,
    TaskState.SLEEPING,
    POLL,
    stack=words("python3.11", 0xB00),
    files=(WaitedFile(77, "unix", "socket:[99]", Inode(99), "", ""),),
    wait_channel="do_sys_poll",
)
"""It waits for an answer of a program outside the job."""
LOOP = Activity("Python loop", 1.0, TaskState.RUNNING, stack=words("python3.11", 0x920))
STOPPED = Activity("stopped", 0.0, TaskState.STOPPED)
FROZEN = Activity("frozen", 0.0, TaskState.FROZEN)
TRACED = Activity("traced", 0.0, TaskState.TRACED)
HALTS = frozenset({TaskState.STOPPED, TaskState.FROZEN, TaskState.TRACED})
"""States of all threads of a process at once."""
NAPS = Activity(
    "naps",
    0.01,
    TaskState.SLEEPING,
    NANOSLEEP,
    timed=True,
    wakes_s=200,
    stack=words("python3.11", 0x940),
)
"""It asks every 5 ms whether something has come."""
POLLS = replace(NAPS, name="polls", share=0.001, wakes_s=5, stack=words("python3.11", 0x960))
"""It looks for a file five times a second."""
FLAG = Activity("flag", 1.0, TaskState.RUNNING, stack=words("python3.11", 0x980), in_place=True)
"""It spins on a flag in shared memory."""
CHILD = Activity(
    "child",
    0.0,
    TaskState.SLEEPING,
    WAIT4,
    stack=words("python3.11", 0x9A0),
    wait_channel="do_wait",
)
BACKGROUND = Activity(
    "background",
    0.06,
    TaskState.SLEEPING,
    FUTEX,
    timed=True,
    stack=words("libc.so.6", 0xB0),
    write_bytes_s=20_000,
    wakes_s=50,
)
"""A side thread that samples metrics and writes logs all the time."""


def asleep(seconds: float) -> Activity:
    """One sleep of the given seconds."""
    stack = words("python3.11", 0x9C0)
    return Activity(
        "asleep",
        0.0,
        TaskState.SLEEPING,
        NANOSLEEP,
        timed=True,
        sleep_s=seconds,
        stack=stack,
        wait_channel="hrtimer_nanosleep",
    )


def helped(seconds: float) -> Activity:
    """`HELPED`, by a thread that visibly backs off for the given seconds."""
    return replace(HELPED, beside=asleep(seconds))


def on_socket(name: str, fd: int, inode: int, stack_at: int) -> Activity:
    """A poll on one connection."""
    file = WaitedFile(fd, "socket", f"socket:[{inode}]", Inode(inode), "", "")
    stack = words("libtorch.so", stack_at)
    return Activity(
        name, 0.0, TaskState.SLEEPING, POLL, stack=stack, files=(file,), wait_channel="do_sys_poll"
    )


def on_pipe(name: str, inode: int) -> Activity:
    """A poll on the pipe of a data loader."""
    file = WaitedFile(LOADER_FD, "pipe", f"pipe:[{inode}]", Inode(inode), "", "")
    stack = words("python3.11", 0x500)
    return Activity(
        name, 0.0, TaskState.SLEEPING, POLL, stack=stack, files=(file,), wait_channel="do_sys_poll"
    )
