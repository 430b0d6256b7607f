"""The node reconciler beside the watch of nodes, whose news may arrive before the answer to a write."""

from __future__ import annotations

from typing import Any

import pytest

from kcover_ebpf.api.fault_policy import NodeActions
from kcover_ebpf.controller import node_reconciler
from kcover_ebpf.kube.reflector import Change, Event
from kcover_ebpf.recovery.nodes import node_plan
from kcover_ebpf.recovery.nodes.node_plan import CONDITION, CORDONED, NodeView, view_of
from kcover_ebpf.tunables.controller import TAINTS_LISTED_S
from tests.unit.support.node_bed import XID, Bed, Tainted
from tests.unit.support.node_world import Cluster


class Overtaken(Cluster):
    """Whose watch reports what happened after a write before the answer to the write arrives."""

    def __init__(self) -> None:
        super().__init__()
        self.later: Event | None = None

    def merge_patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = super().merge_patch(path, body)
        answer["metadata"]["resourceVersion"] = "7"
        if self.later is not None:
            self.store.on_node(self.later)
        return answer


def test_node_reconciler__a_node_that_was_deleted_during_its_cordon_takes_no_place() -> None:
    cluster = Overtaken()
    cluster.later = Event(Change.GONE, {"metadata": {"name": "n0", "uid": "u0"}})
    cluster.breaks("n0")
    assert list(cluster.store.raw_nodes) == ["n1"]
    assert cluster.nodes.cordoned_count == 0
    assert not cluster.nodes.is_full


def test_node_reconciler__an_answer_does_not_replace_what_was_written_after_it() -> None:
    cluster = Overtaken()
    notes = {CORDONED: "2027-01-15T07:00:00Z xid_79"}
    metadata = {"name": "n0", "uid": "u0", "resourceVersion": "12", "annotations": notes}
    taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    spec = {"unschedulable": True, "taints": [taint]}
    cluster.later = Event(Change.SET, {"metadata": metadata, "spec": spec, "status": {}})
    cluster.breaks("n0")
    node = view_of(cluster.store.raw_nodes["n0"])
    assert (node.resource_version, node.taints) == ("12", (taint,))


def test_node_reconciler__another_node_of_the_same_name_is_not_taken_for_the_written_one() -> None:
    cluster = Overtaken()
    metadata = {"name": "n0", "uid": "another", "resourceVersion": "5"}
    cluster.later = Event(Change.SET, {"metadata": metadata, "spec": {}, "status": {}})
    cluster.breaks("n0")
    assert not view_of(cluster.store.raw_nodes["n0"]).ours


def test_node_reconciler__an_unfit_node_without_room_does_not_have_all_nodes_examined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In an outage there are hundreds of them, each every few seconds, and 5,000 nodes take 50 ms."""
    cluster = Cluster(1000)
    for index in range(5):
        cluster.breaks(f"n{index}")
    examined = []

    def counted(raw: Any) -> NodeView:
        examined.append(raw["metadata"]["name"])
        return view_of(raw)

    for module in (node_plan, node_reconciler):
        monkeypatch.setattr(module, "view_of", counted)
    cluster.breaks("n9")
    assert ("n9", "KcoverBreakerOpen") in cluster.events
    assert cluster.nodes.is_full
    assert cluster.nodes.cordoned_count == 5
    assert len(examined) < 50


def gone(cluster: Cluster, name: str) -> None:
    cluster.store.on_node(Event(Change.GONE, {"metadata": {"name": name}}))
    cluster.nodes.reconcile(name)


def test_node_reconciler__taints_of_devices_end_with_their_node() -> None:
    bed = Tainted()
    bed.breaks("n1")
    bed.report(XID)
    assert len(bed.rules) == 2
    gone(bed, "n1")
    assert list(bed.rules) == ["kcover-n0-0000-5d-00.0"]
    bed.now_s += TAINTS_LISTED_S + 1.0
    gone(bed, "n2")
    assert bed.nodes.devices.nodes == ["n0"]


def test_node_reconciler__taints_of_a_node_that_only_the_watch_lacks_stay() -> None:
    bed = Tainted()
    bed.report(XID)
    bed.unwatched = [{"metadata": {"name": "n0"}}]
    gone(bed, "n0")
    assert bed.rules
    bed.unwatched = []
    gone(bed, "n0")
    assert not bed.rules


def test_node_reconciler__a_silent_agent_does_not_say_that_a_fault_is_over() -> None:
    """As at each start of a controller: an unchanged report counts only once the Lease of its agent is read."""
    bed = Bed()
    bed.policy("kcover", NodeActions(cordon=False, taint=False))
    bed.report(XID)
    bed.report(XID)
    assert bed.conditions == [(CONDITION, "True")]
    bed.now_s += 3600.0
    bed.nodes.reconcile("n0")
    del bed.store.host_reports["n0"]
    bed.nodes.reconcile("n0")
    assert bed.conditions == [(CONDITION, "True")]
    bed.report()
    assert bed.conditions[1:] == [(CONDITION, "False")]
