"""Nodes that are kept out on suspicion: by whose policy, how many, and for how long."""

from __future__ import annotations

from typing import Any

import pytest

from kcover_ebpf.api.fault_policy import FaultPolicy, NamedPolicy, NodeActions
from kcover_ebpf.api.fault_report import FaultReport, ReportedDeviceFault
from kcover_ebpf.cluster.gang_snapshot import ReceivedReport
from kcover_ebpf.controller.cache import ObjectCache, Uid
from kcover_ebpf.controller.node_reconciler import NodeLimits, NodeReconciler
from kcover_ebpf.errors import ActionError
from kcover_ebpf.kube.reflector import Change, Event
from kcover_ebpf.recovery.node_plan import CORDONED, UNTIL, NodeBreaker, view_of
from kcover_ebpf.tunables.recovery import SUSPECT_CORDON_S

OLD = {
    "name": "rule",
    "creationTimestamp": "2025-01-01T00:00:00Z",
    "labels": {"kcover.io/node": "n0"},
}


class Cluster:
    """Nodes of an API server that believes everything."""

    def __init__(self, count: int = 2, breaker: NodeBreaker | None = None) -> None:
        self.now_s = 1_767_225_600.0
        self.leads = True
        self.events: list[tuple[str, str]] = []
        self.store = ObjectCache(lambda _: None, wall=lambda: self.now_s)
        for index in range(count):
            self._put(
                {"metadata": {"name": f"n{index}", "uid": f"u{index}"}, "spec": {}, "status": {}}
            )
        self.nodes = NodeReconciler(
            self,  # type: ignore[arg-type]
            self.writing,  # type: ignore[arg-type]
            self.store,
            NodeLimits("kcover", breaker or NodeBreaker(), 300.0),
            lambda about, reason, text, trouble: self.events.append((about["name"], reason)),
        )

    def writing(self) -> Cluster:
        if not self.leads:
            raise ActionError("not the leader")
        return self

    def _put(self, raw: dict[str, Any]) -> None:
        self.store.on_node(Event(Change.SET, raw))

    def merge_patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        name = path.rsplit("/", 1)[1]
        old = self.store.raw_nodes[name]
        notes = dict(old["metadata"].get("annotations") or {}) | body["metadata"]["annotations"]
        kept = {key: value for key, value in notes.items() if value is not None}
        spec = dict(old["spec"]) | body.get("spec", {})
        metadata = {"name": name, "uid": old["metadata"]["uid"], "annotations": kept}
        raw = {"metadata": metadata, "spec": spec, "status": {}}
        self._put(raw)
        return raw

    def strategic_patch(self, *_: Any) -> dict[str, Any]:
        return {}

    def delete(self, *_: Any) -> None:
        pytest.fail("nothing is to be deleted")

    def get(self, *_: object) -> dict[str, Any]:
        return {}

    def cordoned(self) -> list[str]:
        return [
            name for name, raw in self.store.raw_nodes.items() if raw["spec"].get("unschedulable")
        ]

    def notes(self, name: str) -> dict[str, str]:
        found: dict[str, str] = self.store.raw_nodes[name]["metadata"].get("annotations") or {}
        return found

    def policy(self, namespace: str, node: NodeActions) -> None:
        made = FaultPolicy(node=node)
        self.store.policies[Uid(namespace)] = NamedPolicy(namespace, "p", made)

    def list(self, *_: Any) -> dict[str, Any]:
        return {"items": [{"metadata": OLD}]}

    def breaks(self, name: str) -> None:
        fault = ReportedDeviceFault(
            "0000:5d:00.0", "xid_79", "x", fatal=True, unfit=True, age_s=1.0
        )
        report = FaultReport(name, self.now_s, 1, devices=(fault,))
        self.store.host_reports[name] = ReceivedReport(report, self.now_s)
        self.nodes.reconcile(name)


@pytest.mark.parametrize(
    ("namespace", "cordoned"), [("kcover", []), ("tenant", ["n0"])], ids=["ours", "a tenant's"]
)
def test_keep_out__only_a_policy_of_the_operator_forbids_it(
    namespace: str, cordoned: list[str]
) -> None:
    cluster = Cluster()
    cluster.policy(namespace, NodeActions(cordon=False))
    cluster.nodes.keep_out("n0", "stuck")
    assert cluster.cordoned() == cordoned


def test_look__policies_of_tenants_say_nothing_about_devices_of_nodes() -> None:
    cluster = Cluster()
    cluster.policy("tenant", NodeActions(cordon=False, taint=False))
    cluster.breaks("n0")
    assert cluster.cordoned() == ["n0"]


def test_keep_out__a_node_is_let_in_again_by_itself() -> None:
    cluster = Cluster()
    cluster.nodes.keep_out("n0", "stuck")
    assert UNTIL in cluster.notes("n0")
    cluster.now_s += SUSPECT_CORDON_S - 1.0
    cluster.nodes.reconcile("n0")
    assert cluster.cordoned() == ["n0"]
    cluster.now_s += 2.0
    assert cluster.nodes.names_kept_out == ["n0"], "so it is looked at without any report"
    cluster.nodes.reconcile("n0")
    assert cluster.cordoned() == []
    assert cluster.notes("n0") == {}
    assert cluster.events == [("n0", "KcoverCordoned"), ("n0", "KcoverUncordoned")]


def test_look__an_unfit_device_keeps_a_suspected_node_out_for_good() -> None:
    cluster = Cluster()
    cluster.nodes.keep_out("n0", "stuck")
    cluster.breaks("n0")
    assert CORDONED in cluster.notes("n0")
    assert UNTIL not in cluster.notes("n0")


def test_keep_out__suspicion_takes_half_of_the_breaker_and_none_of_the_devices_room() -> None:
    cluster = Cluster(100, NodeBreaker(most=4, most_percent=4.0))
    for index in range(6):
        cluster.nodes.keep_out(f"n{index}", "stuck")
    assert len(cluster.cordoned()) == 2
    assert not cluster.nodes.is_full
    for index in range(10, 16):
        cluster.breaks(f"n{index}")
    assert len(cluster.cordoned()) == 6
    assert cluster.nodes.is_full


def test_nodes__nothing_is_written_by_a_controller_that_does_not_lead() -> None:
    cluster = Cluster(100)
    cluster.nodes.keep_out("n0", "stuck")
    cluster.leads = False
    with pytest.raises(ActionError):
        cluster.nodes.keep_out("n1", "stuck")
    with pytest.raises(ActionError):
        cluster.breaks("n1")
    cluster.now_s += SUSPECT_CORDON_S + 1.0
    with pytest.raises(ActionError):
        cluster.nodes.reconcile("n0")
    assert cluster.cordoned() == ["n0"]


def test_nodes__a_controller_that_does_not_lead_taints_and_frees_no_device() -> None:
    cluster = Cluster()
    cluster.leads = False
    node = view_of(cluster.store.raw_nodes["n0"])
    fault = ReportedDeviceFault("0000:5d:00.0", "xid_79", "x")
    with pytest.raises(ActionError):
        cluster.nodes.devices.taint(node, fault, {}, "")
    (rule,) = cluster.nodes.devices.of_node("n0", cluster.now_s)
    with pytest.raises(ActionError):
        cluster.nodes.devices.untaint(node, rule)
