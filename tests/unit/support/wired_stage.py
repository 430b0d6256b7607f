"""A scripted job with connections that carry payload."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from kcover_ebpf.facts.kernel import SocketSample
from kcover_ebpf.ids import NS, Inode, Pid

from .scripted_job import START_NS, Proc, Stage

NOTHING = SocketSample(
    boottime_ns=0,
    pid=Pid(0),
    fd=0,
    inode=Inode(0),
    state="ESTABLISHED",
    local=("10.1.0.5", 51000),
    remote=("198.51.100.7", 443),
    unread_bytes=0,
    unsent_bytes=0,
    unacked_bytes=0,
    acked_bytes=0,
    received_bytes=0,
    backoff=0,
    send_window_bytes=65536,
    last_send_ns=START_NS,
    last_receive_ns=START_NS,
)


RTO_NS = 200_000_000


@dataclass
class Wired(Stage):
    """A job whose data goes round a ring, whose store and keep-alives tick every second, at phases of their own."""

    heartbeats: bool = True
    silent_data: bool = False
    """Its data goes where no socket is (RDMA, NVLink)."""
    seed: int = 1
    cut: tuple[int, int] | None = None
    cut_ns: int = 0
    """The data connection from one rank to the next one loses everything since then."""
    unread: dict[tuple[int, int], int] = field(default_factory=dict)
    """Bytes that a process has not read, by its pid and descriptor."""
    _phases: dict[tuple[int, str], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        super().__post_init__()

    def _socket(self, proc: Proc) -> None:
        rank = proc.rank or 0
        after = (rank + 1) % self.world
        if not self.silent_data:
            self._pair(proc.pid, 20, 40_000 + rank, 41_000 + after, proc.sent, proc.last_send_ns)
            before = (rank - 1) % self.world
            self._pair(proc.pid, 21, 41_000 + rank, 40_000 + before, proc.sent, proc.last_send_ns)
        if self.heartbeats:
            self._beat(proc.pid, 30, 50_000 + rank, 51_000 + after, (rank, "ras"), 64)
            before = (rank - 1) % self.world
            self._beat(proc.pid, 31, 51_000 + rank, 50_000 + before, (before, "ras"), 64)
            if rank:
                self._beat(proc.pid, 32, 30_000 + rank, 29_500, (rank, "store"), 29)
                first = self.rank(0).pid
                self._beat(first, 100 + rank, 29_500, 30_000 + rank, (rank, "store"), 29)

    def _beat(
        self, pid: int, fd: int, local: int, remote: int, name: tuple[int, str], size: int
    ) -> None:
        phase_s = self._phases.setdefault(name, self.random.random())
        age_ns = int((self.now_ns / NS - phase_s) % 1.0 * NS)
        count = int(self.now_ns / NS - phase_s)
        self._pair(pid, fd, local, remote, count * size, self.now_ns - age_ns)

    def _pair(self, pid: int, fd: int, local: int, remote: int, moved: int, sent_ns: int) -> None:
        lost = self.cut is not None and pid == 100 + self.cut[0] and remote == 41_000 + self.cut[1]
        self.feed(
            replace(
                NOTHING,
                boottime_ns=self.now_ns,
                pid=Pid(pid),
                fd=fd,
                inode=Inode(pid * 1000 + fd),
                local=("10.0.0.1", local),
                remote=("10.0.0.1", remote),
                acked_bytes=moved,
                received_bytes=moved,
                unread_bytes=self.unread.get((pid, fd), 0),
                last_send_ns=sent_ns,
                last_receive_ns=sent_ns,
                **(unanswered(self.now_ns - self.cut_ns) if lost else {}),  # type: ignore[arg-type]
            )
        )


def unanswered(age_ns: int) -> dict[str, int]:
    """What the kernel says of a segment that was first sent so long ago, and never acknowledged."""
    backoff = 0
    while RTO_NS * ((1 << (backoff + 1)) - 1) <= age_ns:
        backoff += 1
    return {"backoff": backoff, "unacked_bytes": 1448}


def outside(stage: Stage, proc: Proc, **more: object) -> None:
    """A connection of a rank to a service on the internet."""
    known = {"boottime_ns": stage.now_ns, "pid": Pid(proc.pid), "fd": 77, "inode": Inode(777)}
    stage.feed(replace(NOTHING, **(known | more)))  # type: ignore[arg-type]


def all_become(stage: Stage, mode: str) -> None:
    for proc in stage.procs.values():
        stage.become(proc, mode, last_send_ns=stage.now_ns)
