"""What is outside of a gang while one of its nodes is silent: only what cannot be the address of one of its ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

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


def seen(first: RankSnapshot, gang_pods: tuple[Pod, ...]) -> GangInput:
    """Only the node of ranks 0 and 2 reports."""
    other = rank(2, State.FUTEX, 70.0, sockets=(wire(2, 3),))
    return replace(case(report("a", first, other)), pods=gang_pods)


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
def test_outside_of_pods__while_a_node_is_silent(name: str) -> None:
    first, gang_pods, state = PLACED[name]
    assert state_of(seen(first, gang_pods)) is state


def test_outside_of_pods__ranks_without_a_connection_say_nothing_of_their_addresses() -> None:
    bare = replace(waits(STORE), sockets=())
    gang_input = replace(case(report("a", bare, rank(2))), pods=pods())
    assert state_of(gang_input) is State.PEERS


def test_merge__a_rank_that_waits_for_a_service_is_named_beside_a_silent_node() -> None:
    verdict = merge(seen(waits(STORE, age_s=90.0), pods())).verdict
    assert (verdict.kind, verdict.culprit and verdict.culprit.rank) == (VerdictKind.UNKNOWN, 0)
    assert verdict.acts_at_s is None
    assert State.OUTSIDE.text in verdict.evidence[0].text


@pytest.mark.parametrize("on_node_network", [True, False])
def test_pod_of__says_whether_it_has_a_network_of_its_own(on_node_network: bool) -> None:
    spec = {"hostNetwork": True} if on_node_network else {}
    raw = {"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": spec}
    assert pod_of(raw).on_node_network is on_node_network
