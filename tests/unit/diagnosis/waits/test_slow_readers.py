"""A write whose reader reads slowly moves on, though the writer sleeps; one whose reader does not read does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kcover_ebpf.facts.host import WaitedFile
from kcover_ebpf.facts.kernel import DescriptorSample
from kcover_ebpf.ids import Inode, Pid
from kcover_ebpf.model.verdict import Cause, VerdictKind
from tests.unit.support.blocked_ranks import WRITE, sitting_in
from tests.unit.support.link_builders import edge
from tests.unit.support.scripted_job import LOCK, Proc, Stage, all_wait, trained
from tests.unit.support.seen_verdicts import not_working

SENDTO, SENDMSG = 44, 46
FD, QUEUE, PER_S = 60, 1 << 20, 5_000
LOCAL, FAR = ("127.0.0.1", 7000), ("127.0.0.1", 7001)


def feed_pipe(stage: Stage, taken: int) -> None:
    stage.feed(
        DescriptorSample(stage.now_ns, Pid(101), FD, "pipe", Inode(900), None, taken // 4096)
    )


def feed_unix(stage: Stage, taken: int) -> None:
    stage.feed(
        DescriptorSample(stage.now_ns, Pid(101), FD, "unix", Inode(900), Inode(901), QUEUE - taken)
    )


def feed_tcp(stage: Stage, taken: int) -> None:
    """Its kernel has acknowledged more."""
    stage.feed(
        edge(
            Pid(101),
            FD,
            boottime_ns=stage.now_ns,
            inode=Inode(900),
            remote=("192.0.2.1", 443),
            acked_bytes=1 + taken // 64,
            unsent_bytes=QUEUE - taken // 64,
        )
    )


def feed_tcp_inside(stage: Stage, taken: int) -> None:
    """Its kernel acknowledges nothing until the window opens again; only the queue of the reader is shorter."""
    now_ns = stage.now_ns
    stage.feed(edge(Pid(101), FD, boottime_ns=now_ns, inode=Inode(900), local=LOCAL, remote=FAR))
    stage.feed(
        edge(
            Pid(500),
            9,
            boottime_ns=now_ns,
            inode=Inode(901),
            local=FAR,
            remote=LOCAL,
            unread_bytes=QUEUE - taken,
        )
    )


KINDS = {
    "pipe": ("pipe", WRITE, feed_pipe),
    "unix, write": ("socket", WRITE, feed_unix),
    "unix, sendto": ("socket", SENDTO, feed_unix),
    "unix, sendmsg": ("socket", SENDMSG, feed_unix),
    "tcp": ("socket", SENDTO, feed_tcp),
    "tcp, write": ("socket", WRITE, feed_tcp),
    "tcp, sendmsg inside": ("socket", SENDMSG, feed_tcp_inside),
}


@pytest.mark.parametrize("drains", [True, False])
@pytest.mark.parametrize(("kind", "call", "feed"), KINDS.values(), ids=KINDS)
def test_slow_readers__a_write_that_is_read_moves_on(
    kind: str, call: int, feed: Callable[[Stage, int], None], drains: bool
) -> None:
    stage = trained()
    if feed is feed_tcp_inside:
        stage.add(Proc(500, ppid=101, argv=("logger",), mode="futex"))
        stage.run(5)
    file = WaitedFile(FD, kind, f"{kind}:[900]", Inode(900), "", "")
    with sitting_in(call):
        stage.become(stage.rank(1), "read", files=(file,), argument=FD, stack=LOCK)
        all_wait(stage, 1)
        for second in range(100):
            feed(stage, PER_S * second if drains else 0)
            stage.run(1)
    named = {verdict.culprit and verdict.culprit.rank for verdict in not_working(stage)}
    assert named == (set() if drains else {1})


def test_slow_readers__a_reader_that_stops_is_named_then() -> None:
    stage = trained()
    file = WaitedFile(FD, "socket", "socket:[900]", Inode(900), "", "")
    with sitting_in(WRITE):
        stage.become(stage.rank(1), "read", files=(file,), argument=FD, stack=LOCK)
        all_wait(stage, 1)
        for second in range(60):
            feed_unix(stage, PER_S * min(second, 30))
            stage.run(1)
            assert second > 30 or not_working(stage) == []
    (verdict, *_) = not_working(stage)
    assert (verdict.kind, verdict.cause) == (VerdictKind.HUNG, Cause.BLOCKED_READ)
    assert verdict.culprit is not None
    assert verdict.culprit.rank == 1
