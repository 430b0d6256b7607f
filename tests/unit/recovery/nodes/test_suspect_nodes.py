"""Nodes that are cordoned on suspicion: by whose word and policy, how many, and for how long."""

from __future__ import annotations

import pytest

from kcover_ebpf.api.fault_policy import NodeActions
from kcover_ebpf.api.fault_report import ReportedDeviceFault
from kcover_ebpf.controller.node_patches import release
from kcover_ebpf.errors import ActionError
from kcover_ebpf.recovery.nodes.node_plan import CORDONED, CORDONED_BY, UNTIL, NodeBreaker, view_of
from kcover_ebpf.recovery.nodes.suspect_nodes import Suspicions
from kcover_ebpf.tunables.recovery import SUSPECT_CORDON_S
from tests.unit.support.node_bed import Bed, P
from tests.unit.support.node_world import Cluster


@pytest.mark.parametrize(
    ("namespace", "cordoned"), [("kcover", []), ("tenant", ["n0"])], ids=["ours", "a tenant's"]
)
def test_suspect__only_a_policy_of_the_operator_forbids_it(
    namespace: str, cordoned: list[str]
) -> None:
    cluster = Cluster()
    cluster.policy(namespace, NodeActions(cordon=False))
    cluster.nodes.suspect("n0", "stuck", "team")
    assert cluster.cordoned() == cordoned


def test_suspect__policies_of_tenants_say_nothing_about_devices_of_nodes() -> None:
    cluster = Cluster()
    cluster.policy("tenant", NodeActions(cordon=False, taint=False))
    cluster.breaks("n0")
    assert cluster.cordoned() == ["n0"]


def test_suspect__a_node_is_uncordoned_by_itself() -> None:
    cluster = Cluster()
    cluster.nodes.suspect("n0", "stuck", "team")
    assert UNTIL in cluster.notes("n0")
    cluster.now_s += SUSPECT_CORDON_S - 1.0
    cluster.nodes.reconcile("n0")
    assert cluster.cordoned() == ["n0"]
    cluster.now_s += 2.0
    assert cluster.nodes.cordoned_names == ["n0"], "so it is reconciled without any report"
    cluster.nodes.reconcile("n0")
    assert cluster.cordoned() == []
    assert cluster.notes("n0") == {}
    assert cluster.events == [("n0", "KcoverCordoned"), ("n0", "KcoverUncordoned")]


def test_suspect__an_unfit_device_keeps_a_suspected_node_cordoned() -> None:
    cluster = Cluster()
    cluster.nodes.suspect("n0", "stuck", "team")
    cluster.breaks("n0")
    assert CORDONED in cluster.notes("n0")
    assert UNTIL not in cluster.notes("n0")


def test_suspect__a_cordon_on_suspicion_stays_ours_when_a_device_fails() -> None:
    cluster = Cluster()
    cluster.nodes.suspect("n0", "stuck", "team")
    cluster.breaks("n0")
    assert cluster.notes("n0")[CORDONED_BY] == "kcover"
    release(cluster, view_of(cluster.store.raw_nodes["n0"]))  # type: ignore[arg-type]
    assert cluster.cordoned() == []


def test_suspect__suspicion_takes_half_of_the_breaker_and_none_of_the_devices_room() -> None:
    cluster = Cluster(100, NodeBreaker(most=4, most_percent=4.0))
    for index in range(6):
        cluster.nodes.suspect(f"n{index}", "stuck", f"team-{index}")
    assert len(cluster.cordoned()) == 2
    assert not cluster.nodes.is_full
    for index in range(10, 16):
        cluster.breaks(f"n{index}")
    assert len(cluster.cordoned()) == 6
    assert cluster.nodes.is_full


def test_nodes__nothing_is_written_by_a_controller_that_does_not_lead() -> None:
    cluster = Cluster(100)
    cluster.nodes.suspect("n0", "stuck", "team")
    cluster.leads = False
    with pytest.raises(ActionError):
        cluster.nodes.suspect("n1", "stuck", "another")
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


def test_suspect__a_node_that_passes_its_inspection_is_not_cordoned_on_the_word_of_one_tenant() -> (
    None
):
    bed = Bed()
    bed.inspect(P)
    bed.nodes.suspect("n0", "stuck", "evil")
    assert bed.cordoned() == []
    assert bed.events[-1] == ("n0", "KcoverNotCordoned")
    bed.nodes.suspect("n0", "stuck", "another")
    assert bed.cordoned() == ["n0"]


def test_suspicions__one_namespace_alone_has_one_node_cordoned_at_a_time() -> None:
    said = Suspicions()
    assert said.why_not("n0", "evil", 0.0, is_clean=False) is None
    assert said.why_not("n0", "evil", 1.0, is_clean=False) is None, "the same again"
    assert "n0 was already cordoned" in str(said.why_not("n1", "evil", 2.0, is_clean=False))
    assert said.why_not("n2", "other", 3.0, is_clean=False) is None
    later_s = SUSPECT_CORDON_S + 2.0
    assert said.why_not("n1", "evil", later_s, is_clean=False) is None


def test_suspicions__a_node_that_passes_its_inspection_needs_a_second_namespace() -> None:
    said = Suspicions()
    assert "inspection passes" in str(said.why_not("n0", "evil", 0.0, is_clean=True))
    assert "inspection passes" in str(said.why_not("n0", "evil", 9.0, is_clean=True))
    assert said.why_not("n0", "other", 10.0, is_clean=True) is None


def test_suspicions__what_was_said_long_ago_is_no_second_word() -> None:
    said = Suspicions()
    said.why_not("n0", "evil", 0.0, is_clean=True)
    assert said.why_not("n0", "other", SUSPECT_CORDON_S + 1.0, is_clean=True) is not None
