"""Ranks that are connected to each other."""

from dataclasses import replace

from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.facts.kernel import SocketSample
from kcover_ebpf.ids import NS, Inode, Pid
from kcover_ebpf.model.roles import Membership, Role


def mesh(count: int) -> dict[Pid, ProcessHistory]:
    """Ranks with pids from 100, each connected with each."""
    views = {Pid(100 + rank): ProcessHistory(Pid(100 + rank), 0) for rank in range(count)}
    for pid, view in views.items():
        view.membership = Membership(Role.RANK, pid - 100, count, pid)
        for other in views:
            if other != pid:
                view.on_socket(edge(pid, other))
        train(view)
    return views


def train(process: ProcessHistory) -> None:
    """Payload over all its connections, in healthy passes."""
    for number in range(1, 9):
        for fd, sample in list(process.sockets.items()):
            process.on_socket(replace(sample, fd=fd, acked_bytes=number * 10_000))
        process.traffic.end_pass(number * NS, NS, healthy=True)


def edge(pid: Pid, other: int, **changes: object) -> SocketSample:
    """An idle connection from `pid` to process `other`."""
    base = SocketSample(
        boottime_ns=0,
        pid=pid,
        fd=other,
        inode=Inode(pid * 1000 + other),
        state="ESTABLISHED",
        local=("10.0.0.1", pid * 100 + other % 100),
        remote=("10.0.0.1", other * 100 + pid % 100),
        unread_bytes=0,
        unsent_bytes=0,
        unacked_bytes=0,
        acked_bytes=0,
        received_bytes=0,
        backoff=0,
        send_window_bytes=65536,
        last_send_ns=NS,
        last_receive_ns=NS,
    )
    return replace(base, **changes)  # type: ignore[arg-type]
