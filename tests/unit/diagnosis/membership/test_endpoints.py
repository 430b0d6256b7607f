"""Which connections lead to ranks, here and on hosts that are not seen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.diagnosis.history.links import Links
from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.diagnosis.membership.endpoints import EndpointIndex
from kcover_ebpf.facts.host import ProcessSeen
from kcover_ebpf.facts.kernel import SocketSample
from kcover_ebpf.ids import NS, Pid, Tid
from kcover_ebpf.model.roles import Membership, Role
from tests.unit.support.link_builders import edge
from tests.unit.support.thread_samples import TABLE, sample

HERE, THERE, DATA = "10.0.0.1", "10.0.0.2", "10.0.0.9"
STORE = 29_500


def rank(pid: int = 100) -> ProcessHistory:
    """One of a job whose other ranks are elsewhere, ten seconds after its start."""
    process = ProcessHistory(Pid(pid), 0)
    process.membership = Membership(Role.RANK, pid - 100, 4, Pid(pid))
    environ = {"RANK": str(pid - 100), "MASTER_ADDR": HERE, "MASTER_PORT": str(STORE)}
    process.seen = ProcessSeen(0, Pid(pid), Pid(1), "python3", ("python3",), environ)
    process.on_thread(replace(sample(10.0), pid=Pid(pid), tid=Tid(pid)), TABLE)
    return process


def connection(fd: int, local: tuple[str, int], remote: tuple[str, int], sent: int) -> SocketSample:
    made = edge(Pid(100), fd, local=local, remote=remote, received_bytes=sent)
    return replace(made, boottime_ns=10 * NS)


FETCHED = connection(30, (HERE, 51_000), (DATA, 8080), 1 << 30)
ACCEPTED = connection(31, (HERE, STORE), (THERE, 40_000), 900)
LISTENING = connection(32, (HERE, STORE), ("0.0.0.0", 0), 0)
TO_STORE = connection(31, (HERE, 52_000), (THERE, STORE), 900)


def index(*sockets: SocketSample) -> tuple[EndpointIndex, ProcessHistory]:
    process = rank()
    for socket in sockets:
        process.on_socket(socket)
    return EndpointIndex([process], elsewhere=True), process


@pytest.mark.parametrize(
    "meeting",
    [(replace(LISTENING, state="LISTEN"), ACCEPTED), (TO_STORE,)],
    ids=["server", "client"],
)
def test_endpoints__what_is_fetched_before_the_first_step_leads_outside(
    meeting: tuple[SocketSample, ...],
) -> None:
    ends, process = index(FETCHED, *meeting)
    assert ends.leads_outside(process.pid, FETCHED)
    assert not ends.leads_outside(process.pid, meeting[-1])
    assert ends.payload_fds(process) == []


def test_endpoints__a_data_set_that_is_fetched_for_long_is_no_rank() -> None:
    ends, process = index(FETCHED, TO_STORE)
    for number in range(1, 9):
        process.on_socket(replace(FETCHED, received_bytes=(1 << 30) + number * 100_000))
        process.traffic.end_pass(number * NS, NS, healthy=True)
    assert ends.leads_outside(process.pid, FETCHED)
    process.on_socket(replace(TO_STORE, acked_bytes=100_000))
    process.traffic.end_pass(9 * NS, NS, healthy=True)
    process.on_socket(replace(TO_STORE, acked_bytes=200_000))
    process.traffic.end_pass(10 * NS, NS, healthy=True)
    trained = EndpointIndex([process], elsewhere=True)
    assert not trained.leads_outside(process.pid, TO_STORE)


def test_endpoints__where_no_rank_is_known_to_be_elsewhere_what_was_sent_decides() -> None:
    other = replace(ACCEPTED, local=(HERE, 53_000), remote=("10.0.0.5", 9000))
    ends, process = index(FETCHED, other)
    assert not ends.leads_outside(process.pid, FETCHED)
    assert ends.leads_outside(process.pid, other)
    assert ends.payload_fds(process) == [FETCHED.fd]


def test_endpoints__who_left_is_remembered_by_address_and_a_store_is_none_of_them() -> None:
    process = ProcessHistory(Pid(100), 0)
    process.membership = Membership(Role.RANK, 0, 4, Pid(100))
    peer = edge(Pid(100), 200, remote=("10.0.0.2", 40_000))
    store = edge(Pid(100), 300, remote=("10.0.0.3", 42_000))
    for number in range(1, 17):
        process.on_socket(replace(peer, acked_bytes=number * 100_000))
        if number > 14:
            process.on_socket(replace(store, acked_bytes=number * 100_000))
        process.traffic.end_pass(number * NS, NS, healthy=True)
    # the descriptor of the other one is closed
    process.sockets, process.links = {}, Links()
    process.on_socket(store)
    ends = EndpointIndex([process], elsewhere=True)
    assert ends.leads_outside(process.pid, store)
    assert not ends.leads_outside(process.pid, peer)
