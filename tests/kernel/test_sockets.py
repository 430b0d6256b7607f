"""TCP edges and other descriptors, most of them owned by the test's own process."""

import ctypes
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcover_ebpf.facts.kernel import (
    DescriptorSample,
    Fact,
    SocketSample,
    TcpRetransmit,
    TcpStateChange,
)
from kcover_ebpf.ids import Pid
from kcover_ebpf.kernel.probes import FAMILIES, load_family
from kcover_ebpf.kernel.records import wire
from kcover_ebpf.kernel.sampler import KernelSampler
from kcover_ebpf.settings import Settings
from testbed.skips import ROOT
from tests.kernel.helpers import (
    CLOSELY,
    EACH_PASS,
    FIRINGS,
    of_kind,
    program,
    running,
    state_of,
    until,
)

SYN = 1
"""What the side that connected has acknowledged before any data."""
UNCONNECTED_EVERY = 16
"""As in kernel/sockets.py."""

ME = Pid(os.getpid())
TICK_NS = 10_000_000
"""The longest tick a kernel may have."""


class Pair:
    """A TCP connection with itself: both ends in this process."""

    def __init__(self, host: str, to: str | None = None) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        dual = family == socket.AF_INET6 and host == "::"
        self.listener = socket.create_server((host, 0), family=family, dualstack_ipv6=dual)
        self.port = self.listener.getsockname()[1]
        self.near = socket.create_connection((to or host, self.port))
        self.far, _ = self.listener.accept()

    def close(self) -> None:
        for one in (self.near, self.far, self.listener):
            one.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair("127.0.0.1")
    yield made
    made.close()


def inode(one: socket.socket | int) -> int:
    return os.fstat(one if isinstance(one, int) else one.fileno()).st_ino


def edges(kernel: KernelSampler, pid: Pid = ME) -> dict[int, SocketSample]:
    """A pass; the sockets of the process that were sent, by inode."""
    return {one.inode: one for one in of_kind(kernel.sample([pid]), SocketSample)}


def test_both_ends_of_a_connection_are_read(kernel: KernelSampler, pair: Pair) -> None:
    kernel.watch(ME)
    pair.near.send(b"x" * 100)
    pair.far.recv(40)
    sent = edges(kernel)
    near, far = sent[inode(pair.near)], sent[inode(pair.far)]
    assert (near.fd, far.fd) == (pair.near.fileno(), pair.far.fileno())
    assert near.local == pair.near.getsockname() == far.remote
    assert near.remote == pair.near.getpeername() == far.local
    assert near.state == far.state == "ESTABLISHED"
    assert (near.acked_bytes, near.received_bytes) == (SYN + 100, 0)
    assert (far.acked_bytes, far.received_bytes) == (0, 100)
    assert (near.unread_bytes, far.unread_bytes) == (0, 60)
    assert (near.unsent_bytes, near.unacked_bytes, near.backoff) == (0, 0, 0)
    assert near.send_window_bytes > 10_000
    assert sent[inode(pair.listener)].state == "LISTEN"


@pytest.mark.parametrize(
    ("host", "to", "local", "remote"),
    [
        ("::1", None, "::1", "::1"),
        ("::", "127.0.0.1", "127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", None, "127.0.0.1", "127.0.0.1"),
    ],
    ids=["IPv6", "IPv4 on an IPv6 socket", "IPv4"],
)
def test_addresses_of_ipv4_and_ipv6_are_read(
    kernel: KernelSampler, host: str, to: str | None, local: str, remote: str
) -> None:
    made = Pair(host, to)
    kernel.watch(ME)
    try:
        far = edges(kernel)[inode(made.far)]
    finally:
        made.close()
    assert far.local == (local, made.port)
    assert far.remote[0] == remote


def test_only_sockets_that_moved_are_sent(kernel: KernelSampler, pair: Pair) -> None:
    kernel.watch(ME)
    first = edges(kernel)
    assert {inode(pair.near), inode(pair.far), inode(pair.listener)} <= set(first)
    assert edges(kernel) == {}
    pair.near.send(b"x")
    assert set(edges(kernel)) == {inode(pair.near), inode(pair.far)}
    kernel.request(ME, CLOSELY)
    detailed = edges(kernel)
    kernel.request(ME, EACH_PASS)
    assert set(detailed) == set(first)
    assert edges(kernel) == {}


def test_a_process_without_a_connection_is_walked_once_it_announces_one(
    kernel: KernelSampler,
) -> None:
    kernel.watch(ME)
    assert edges(kernel) == {}
    made = Pair("127.0.0.1")
    try:
        kernel.wait(0)
        assert set(edges(kernel)) == {inode(item) for item in (made.near, made.far, made.listener)}
        near, far = inode(made.near), inode(made.far)
        for _ in range(4):
            made.near.send(b"x")
            assert set(edges(kernel)) == {near, far}, "from now on in every pass"
    finally:
        made.close()


def test_a_connection_that_nothing_announced_is_found_in_its_turn(kernel: KernelSampler) -> None:
    kernel.watch(ME)
    assert edges(kernel) == {}
    made = Pair("127.0.0.1")
    try:
        # what is announced is not read, as if it had been dropped
        found = [len(edges(kernel)) for _ in range(UNCONNECTED_EVERY)]
    finally:
        made.close()
    assert max(found) == 3
    assert sum(found) == 3


def test_sockets_of_processes_that_were_not_asked_for_are_not_sent(
    kernel: KernelSampler, pair: Pair
) -> None:
    with running(program("crowd"), "sockets", "1") as other:
        other.line()
        kernel.watch(ME)
        assert of_kind(kernel.sample([]), SocketSample) == []
        assert other.pid not in {
            one.pid for one in of_kind(kernel.sample([other.pid]), SocketSample)
        }


def test_a_process_that_is_gone_has_no_descriptors(kernel: KernelSampler) -> None:
    with running(program("crowd"), "sockets", "1") as target:
        target.line()
        kernel.watch(target.pid)
        assert len(edges(kernel, target.pid)) == 3
    for _ in range(2):
        assert edges(kernel, target.pid) == {}
        kernel.wait(0.1)


def test_when_a_socket_last_sent_and_received_is_known(kernel: KernelSampler, pair: Pair) -> None:
    kernel.watch(ME)
    for _ in range(3):
        before_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        pair.near.send(b"x")
        after_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        time.sleep(0.3)
        sample = edges(kernel)
        for at_ns in (
            sample[inode(pair.near)].last_send_ns,
            sample[inode(pair.far)].last_receive_ns,
        ):
            assert before_ns - 2 * TICK_NS <= at_ns <= after_ns + 2 * TICK_NS


def test_a_reader_that_does_not_read_is_seen_at_both_ends(
    kernel: KernelSampler, pair: Pair
) -> None:
    kernel.watch(ME)
    pair.near.setblocking(False)
    written = 0
    try:
        while True:
            written += pair.near.send(bytes(65536))
    except BlockingIOError:
        pass
    time.sleep(0.1)
    sample = edges(kernel)
    near, far = sample[inode(pair.near)], sample[inode(pair.far)]
    assert far.unread_bytes > 0
    assert near.unsent_bytes > 0
    assert near.acked_bytes - SYN == far.received_bytes == far.unread_bytes
    assert near.unsent_bytes + near.unacked_bytes + near.acked_bytes - SYN == written
    assert near.send_window_bytes < 65536
    kernel.request(ME, CLOSELY)
    until(lambda: edges(kernel)[inode(pair.near)].backoff > 0, "a zero-window probe")


def test_the_end_of_a_stream_is_no_data(kernel: KernelSampler, pair: Pair) -> None:
    kernel.watch(ME)
    pair.near.send(b"xyz")
    pair.near.shutdown(socket.SHUT_WR)
    time.sleep(0.05)
    far = edges(kernel)[inode(pair.far)]
    assert (far.state, far.unread_bytes) == ("CLOSE_WAIT", 3)
    pair.far.recv(3)
    assert edges(kernel)[inode(pair.far)].unread_bytes == 0


def test_a_socket_with_two_descriptors_is_sent_with_both(kernel: KernelSampler, pair: Pair) -> None:
    copy = os.dup(pair.near.fileno())
    kernel.watch(ME)
    try:
        for _ in range(2):
            sent = of_kind(kernel.sample([ME]), SocketSample)
            fds = {one.fd for one in sent if one.inode == inode(copy)}
            assert fds == {copy, pair.near.fileno()}
            pair.near.send(b"x")
    finally:
        os.close(copy)


@pytest.mark.needs("netns", "nftables")
def test_retransmits_over_a_link_that_loses_everything_are_reported(kernel: KernelSampler) -> None:
    script = str(ROOT / "testbed" / "faults" / "blackhole.py")
    with running("unshare", "--net", sys.executable, script) as target:
        port = int(target.line().split()[1])
        kernel.watch(target.pid)
        ends = [
            one for one in edges(kernel, target.pid).values() if one.remote == ("127.0.0.1", port)
        ]
        assert len(ends) == 1, "sockets of another network namespace are seen"
        sender = ends[0]
        target.say()
        assert target.line() == "cut"
        kernel.request(target.pid, CLOSELY)
        events: list[Fact] = []

        def backed_off() -> SocketSample | None:
            events.extend(kernel.wait(0.05))
            now = edges(kernel, target.pid)[sender.inode]
            return now if now.backoff >= 3 else None

        last = until(backed_off, "three times a doubled time-out")
    assert last.unacked_bytes == 1000
    assert last.acked_bytes == sender.acked_bytes, "what was not acknowledged is no progress"
    assert last.last_send_ns > sender.last_send_ns
    repeated = of_kind(events, TcpRetransmit)
    assert 3 <= len(repeated) <= 8
    assert {(one.pid, one.local) for one in repeated} == {(target.pid, sender.local)}
    assert {one.remote for one in repeated} == {("127.0.0.1", port)}


def test_connections_that_open_and_close_are_reported_in_every_state(kernel: KernelSampler) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    kernel.watch(ME)
    remote = listener.getsockname()
    for _ in range(FIRINGS):
        with socket.create_connection(remote):
            listener.accept()[0].close()
    listener.close()
    time.sleep(0.1)
    changes = of_kind(kernel.wait(0.5), TcpStateChange)
    assert {one.pid for one in changes} == {ME}
    # of each connection at least SYN_SENT, ESTABLISHED and CLOSE
    assert len(changes) >= 3 * FIRINGS


def test_a_connection_that_is_refused_is_reported(kernel: KernelSampler) -> None:
    closed = socket.create_server(("127.0.0.1", 0))
    remote = closed.getsockname()
    closed.close()
    kernel.watch(ME)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(remote)
    changes = of_kind(kernel.wait(0.5), TcpStateChange)
    assert [one.pid for one in changes] == [ME, ME], "SYN_SENT and CLOSE"


def test_descriptors_are_reported_in_detail_only(kernel: KernelSampler, tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    one, other = socket.socketpair()
    os.mkfifo(tmp_path / "fifo")
    fifo = os.open(tmp_path / "fifo", os.O_RDWR)
    kernel.watch(ME)
    try:
        assert of_kind(kernel.sample([ME]), DescriptorSample) == []
        kernel.request(ME, CLOSELY)
        found = {sample.fd: sample for sample in of_kind(kernel.sample([ME]), DescriptorSample)}
        inodes = {fd: inode(fd) for fd in (read_end, write_end, fifo)}
        pair_inodes = (inode(one), inode(other))
    finally:
        for fd in (read_end, write_end, fifo):
            os.close(fd)
        one_fd, other_fd = one.fileno(), other.fileno()
        one.close()
        other.close()
    for fd, kind in ((read_end, "pipe"), (write_end, "pipe"), (fifo, "fifo")):
        sample = found[fd]
        assert (sample.kind, sample.inode, sample.peer_inode) == (kind, inodes[fd], None)
    for fd, mine, theirs in (
        (one_fd, pair_inodes[0], pair_inodes[1]),
        (other_fd, pair_inodes[1], pair_inodes[0]),
    ):
        sample = found[fd]
        assert (sample.kind, sample.inode, sample.peer_inode) == ("unix", mine, theirs)


LEADERLESS = """
import ctypes, os, socket, sys, threading, time
here, there = socket.create_server(("127.0.0.1", 0)), socket.socket()
there.connect(here.getsockname())
threading.Thread(target=time.sleep, args=(60,)).start()
print(here.getsockname()[1], flush=True)
sys.stdin.readline()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
"""


def test_connections_outlive_the_first_thread(kernel: KernelSampler) -> None:
    with running(sys.executable, "-c", LEADERLESS) as target:
        target.line()
        kernel.watch(target.pid)
        counts = [len(of_kind(kernel.sample([target.pid]), SocketSample))]
        target.say()
        until(lambda: state_of(target.pid, target.pid) == "Z", "the end of the first thread")
        kernel.request(target.pid, CLOSELY)
        for _ in range(3):
            found = of_kind(kernel.sample([target.pid]), SocketSample)
            counts.append(len({one.inode for one in found}))
    assert counts == [2, 2, 2, 2]


def test_a_walk_over_sockets_at_rest_pauses_and_goes_on_where_it_was(kernel: KernelSampler) -> None:
    """They send no record that would end a read, and others wait until one ends."""
    at_rest = [socket.socket() for _ in range(500)]
    kernel.watch(ME)
    (sockets,) = [family for family in FAMILIES if family.name == "sockets"]
    loaded = load_family(sockets, kernel.maps, Settings())
    try:
        kernel.sample([])
        link = loaded.links["sample_sockets"]
        sent = len(link.read_iterator())
        kernel.sample([])
        walk, parts = link.walk(), []
        while not walk.is_over:
            parts.append(walk.read(sys.maxsize))
        walk.close()
    finally:
        loaded.close()
        for one in at_rest:
            one.close()
    assert sent >= len(at_rest) * ctypes.sizeof(wire.SocketEvent), "the first walk sends all"
    assert not any(parts)
    assert len(parts) >= 3
