"""What is outside of a gang while one of its nodes is silent: only what cannot be the address of one of its ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.api.fault_report import PodPorts
from kcover_ebpf.api.pods import Pod, pod_of
from kcover_ebpf.gang.gang_input import GangInput
from kcover_ebpf.gang.gang_judge import merge
from kcover_ebpf.ids import Endpoint
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.rank_snapshot import RankSnapshot, SocketSnapshot
from kcover_ebpf.model.verdict import VerdictKind
from tests.unit.support.report_builders import NOW_S, case, pod, rank, report, wire

STORE = Endpoint("203.0.113.7", 9000)
UNSEEN = Endpoint("10.0.0.3", 29500)
"""On the pod of a rank on the silent node."""


def pods(**of_last: object) -> tuple[Pod, ...]:
    found = [replace(pod(number), address=f"10.0.0.{number}") for number in range(4)]
    return (*found[:3], replace(found[3], **of_last))  # type: ignore[arg-type]


def waits(awaits: Endpoint, *sockets: SocketSnapshot, **more) -> RankSnapshot:
    """Rank 0 in a wait for an address that its node takes for a peer's."""
    age_s = more.pop("age_s", 70.0)
    return rank(0, State.PEERS, age_s, awaits=awaits, sockets=(wire(0, 1), *sockets), **more)


def seen(first: RankSnapshot, gang_pods: tuple[Pod, ...], *listens: PodPorts) -> GangInput:
    """Only the node of ranks 0 and 2 reports."""
    other = rank(2, State.FUTEX, 70.0, sockets=(wire(2, 3),))
    return replace(case(report("a", first, other, listens=listens)), pods=gang_pods)


def state_of(gang_input: GangInput) -> State:
    return next(iter(gang_input.gathered().job.ranks.values())).state


def paid(remote: Endpoint) -> SocketSnapshot:
    return SocketSnapshot(Endpoint("10.0.0.0", 4001), remote, "ESTABLISHED", payload=True)


def on_second_network() -> SocketSnapshot:
    return SocketSnapshot(Endpoint("192.168.7.1", 4001), STORE, "ESTABLISHED")


PLACED = {
    "no pod has the address": (waits(STORE), pods(), State.OUTSIDE),
    "a pod that is not seen has it": (waits(UNSEEN), pods(), State.PEERS),
    "a pod that has ended had it": (waits(UNSEEN), pods(phase="Failed"), State.PEERS),
    "payload goes there": (waits(STORE, paid(STORE)), pods(), State.PEERS),
    "a pod has the address of its node": (
        waits(STORE),
        pods(on_node_network=True),
        State.PEERS,
    ),
    "the address of a pod is not known": (waits(STORE), pods(address=""), State.PEERS),
    "ranks have a second network": (waits(STORE, on_second_network()), pods(), State.PEERS),
    "a pod came after the wait began": (waits(STORE), pods(created_s=NOW_S - 60), State.PEERS),
    "a pod is gone": (waits(STORE), pods()[:3], State.PEERS),
    "it has itself": (waits(Endpoint("127.0.0.1", 9000)), pods(), State.PEERS),
}  # fmt: skip


@pytest.mark.parametrize("name", PLACED)
def test_placed__while_a_node_is_silent(name: str) -> None:
    first, gang_pods, state = PLACED[name]
    assert state_of(seen(first, gang_pods)) is state


def test_placed__ranks_without_a_connection_say_nothing_of_their_addresses() -> None:
    bare = replace(waits(STORE), sockets=())
    gang_input = replace(case(report("a", bare, rank(2))), pods=pods())
    assert state_of(gang_input) is State.PEERS


def test_merge__a_rank_that_waits_for_a_service_is_named_beside_a_silent_node() -> None:
    verdict = merge(seen(waits(STORE, age_s=90.0), pods())).verdict
    assert (verdict.kind, verdict.culprit and verdict.culprit.rank) == (VerdictKind.UNKNOWN, 0)
    assert verdict.acts_at_s is None
    assert State.OUTSIDE.text in verdict.evidence[0].text


SIDECAR = Endpoint("10.0.0.2", 9000)
"""A port of a pod that is seen."""
OPENED = SocketSnapshot(Endpoint("10.0.0.0", 51000), SIDECAR, "ESTABLISHED")
ASKS = waits(SIDECAR, OPENED)
PORTS = PodPorts("uid-0", (4001,)), PodPorts("uid-2", (4023,))
LISTENED = {
    "no process of the job listens there": (ASKS, pods(), PORTS, State.OUTSIDE),
    "a rank listens there": (
        ASKS,
        pods(),
        (PORTS[0], PodPorts("uid-2", (4023, 9000))),
        State.PEERS,
    ),
    "a rank has the other end": (
        waits(wire(0, 2).remote, wire(0, 2)),
        pods(),
        (PORTS[0], PodPorts("uid-2")),
        State.PEERS,
    ),
    "it listened, and the other end connected": (
        ASKS,
        pods(),
        (PodPorts("uid-0", (51000,)), PORTS[1]),
        State.PEERS,
    ),
    "its connection is not known": (waits(SIDECAR), pods(), PORTS, State.PEERS),
    "its own ports are not known": (ASKS, pods(), PORTS[1:], State.PEERS),
    "those of the pod are not known": (ASKS, pods(), PORTS[:1], State.PEERS),
}  # fmt: skip


@pytest.mark.parametrize("name", LISTENED)
def test_placed__a_port_of_a_pod_is_a_service_where_no_process_of_the_job_listens(
    name: str,
) -> None:
    first, gang_pods, listens, state = LISTENED[name]
    if name == "a rank has the other end":
        peer = rank(2, State.FUTEX, 70.0, sockets=(wire(2, 0), wire(2, 3)))
        made = case(report("a", first, peer, listens=listens))
        assert state_of(replace(made, pods=gang_pods)) is state
        return
    assert state_of(seen(first, gang_pods, *listens)) is state


def test_placed__the_ports_of_a_pod_are_those_that_its_own_node_reports() -> None:
    forged = report("b", rank(1, State.FUTEX, 70.0), listens=PORTS)
    honest = report("a", ASKS, rank(2, State.FUTEX, 70.0), listens=PORTS[:1])
    assert state_of(replace(case(honest, forged), pods=pods())) is State.PEERS


@pytest.mark.parametrize("change", ["a rank has ended", "its address is shared", "connections"])
def test_placed__a_pod_of_which_not_all_is_known_may_have_a_rank_there(change: str) -> None:
    peer, gang_pods = rank(2, State.FUTEX, 70.0, sockets=(wire(2, 3),)), pods()
    ranks = [ASKS, peer]
    if change == "a rank has ended":
        ranks.append(rank(6, State.GONE, 70.0, pid=900, pod_uid="uid-2", exit="code 0"))
    elif change == "its address is shared":
        gang_pods = pods(address="10.0.0.2")
    else:
        ranks[1] = replace(peer, sockets=(wire(2, 3),) * 64)
    made = replace(case(report("a", *ranks, listens=PORTS)), pods=gang_pods)
    assert state_of(made) is State.PEERS


def test_placed__with_all_ranks_a_service_beside_one_is_no_peer() -> None:
    far = [rank(number, State.FUTEX, 70.0) for number in (1, 3)]
    near = rank(2, State.FUTEX, 70.0, sockets=(wire(2, 3),))
    made = case(report("a", ASKS, near, listens=PORTS), report("b", *far))
    assert state_of(replace(made, pods=pods())) is State.OUTSIDE
    unknown = case(report("a", ASKS, near), report("b", *far))
    assert state_of(replace(unknown, pods=pods())) is State.PEERS


@pytest.mark.parametrize("on_node_network", [True, False])
def test_pod_of__says_whether_it_uses_the_network_of_its_node(on_node_network: bool) -> None:
    spec = {"hostNetwork": True} if on_node_network else {}
    raw = {"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": spec}
    assert pod_of(raw).on_node_network is on_node_network
