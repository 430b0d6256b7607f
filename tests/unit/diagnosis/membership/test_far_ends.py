"""Where connections lead: what changes is taken socket by socket, and gives what going through all of them gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.diagnosis.history.links import Links
from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.diagnosis.membership import far_ends
from kcover_ebpf.diagnosis.membership.far_ends import FarEnds
from kcover_ebpf.facts.host import ProcessSeen
from kcover_ebpf.facts.kernel import SocketSample
from kcover_ebpf.ids import Pid
from kcover_ebpf.tunables.host import LINKS_A_PASS
from tests.unit.support.link_builders import edge

NO_END = ("0.0.0.0", 0)
STATES = ("ESTABLISHED", "LISTEN", "CLOSE_WAIT")
PIDS = (Pid(1), Pid(2), Pid(3))


@st.composite
def samples(draw: st.DrawFn) -> SocketSample:
    state, pid = draw(st.sampled_from(STATES)), draw(st.sampled_from(PIDS))
    ports = st.sampled_from((80, 5000, 5001, 5002))
    local = "127.0.0.1", draw(ports)
    remote = NO_END if state == "LISTEN" else ("127.0.0.1", draw(ports))
    fd = draw(st.integers(3, 6))
    return replace(edge(pid, 0), fd=fd, state=state, local=local, remote=remote)


def process(pid: Pid, ppid: int = 0) -> ProcessHistory:
    made = ProcessHistory(pid, 0)
    made.seen = ProcessSeen(0, pid, Pid(ppid), "python3", ("python3",), {}, pid_inside=0)
    return made


def family() -> dict[Pid, ProcessHistory]:
    """Each but the first started by the one before."""
    return {pid: process(pid, pid - 1) for pid in PIDS}


def plain(views: Mapping[Pid, ProcessHistory], pid: Pid) -> tuple[dict[Pid, list[int]], set[int]]:
    """By peer the descriptors of a process's own connections, and those that lead away: all sockets gone through."""
    ends: dict[object, Pid] = {}
    for other in views.values():
        for sample in other.sockets.values():
            ends.setdefault((sample.local, sample.remote), other.pid)
    peers: dict[Pid, list[int]] = {}
    away = set()
    for sample in views[pid].sockets.values():
        peer = ends.get((sample.remote, sample.local))
        if sample.state != "ESTABLISHED":
            continue
        if peer is None:
            away.add(sample.fd)
        elif ends[sample.local, sample.remote] == pid:
            peers.setdefault(peer, []).append(sample.fd)
    return {peer: sorted(fds) for peer, fds in peers.items()}, away


@given(st.lists(samples(), max_size=30))
def test_far_ends__what_changes_gives_what_going_through_all_gives(
    changes: list[SocketSample],
) -> None:
    views, ends = family(), FarEnds()
    found, wanted = [], []
    for sample in changes:
        views[sample.pid].on_socket(sample)
        ends.observe(views)
        for pid in PIDS:
            links = ends.of(pid)
            peers = {peer: sorted(fds) for peer, fds in links.peers.items()}
            found.append((peers, set(links.away)))
            wanted.append(plain(views, pid))
    assert found == wanted


@given(st.lists(samples(), max_size=30))
def test_links__are_those_of_the_sockets_there_are(changes: list[SocketSample]) -> None:
    links, sockets = Links(), dict[int, SocketSample]()
    for sample in changes:
        links.observe(sockets.get(sample.fd), sample)
        sockets[sample.fd] = sample
    led = [sample for sample in sockets.values() if sample.remote[1]]
    assert set(links.fds) == {sample.fd for sample in led}
    assert set(links.pairs) == {(sample.local, sample.remote) for sample in led}
    for port in (80, 5000, 5001, 5002):
        listening = [sample for sample in sockets.values() if sample.state == "LISTEN"]
        assert links.listens_on(port) == any(sample.local[1] == port for sample in listening)


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one whenever all connections are gone through."""
    counted: list[int] = []
    whole = far_ends._links_of

    def count(views: Mapping[Pid, ProcessHistory]) -> object:
        counted.append(len(views))
        return whole(views)

    monkeypatch.setattr(far_ends, "_links_of", count)
    return counted


def connection(fd: int) -> SocketSample:
    local, remote = ("127.0.0.1", 2000 + fd), ("127.0.0.2", 2000 + fd)
    return replace(edge(Pid(1), 0), fd=fd, local=local, remote=remote)


def test_far_ends__sockets_at_rest_are_gone_through_once_and_those_that_listen_never(
    walks: list[int],
) -> None:
    views, ends = family(), FarEnds()
    for fd in range(3, 1000):
        views[Pid(1)].on_socket(connection(fd))
    for _ in range(20):
        ends.observe(views)
    assert len(walks) == 1
    for fd in range(1000, 2000):
        listener = replace(edge(Pid(1), 0), fd=fd, state="LISTEN", remote=NO_END)
        views[Pid(1)].on_socket(listener)
        ends.observe(views)
    assert len(walks) == 1
    assert len(views[Pid(1)].connections) == 997


def test_far_ends__a_pod_that_opens_one_more_in_each_pass_costs_a_bounded_walk_a_pass(
    walks: list[int],
) -> None:
    """Else sixteen thousand would be gone through in each of them."""
    views, ends, count = family(), FarEnds(), 4 * LINKS_A_PASS
    for fd in range(3, count):
        views[Pid(1)].on_socket(connection(fd))
    for passed in range(41):
        views[Pid(1)].on_socket(connection(count + passed))
        ends.observe(views)
    assert len(walks) <= 11
    # and what changed last is found in the end
    for _ in range(4):
        ends.observe(views)
    assert count + 40 in ends.of(Pid(1)).away
