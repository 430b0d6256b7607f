"""Devices that are tainted alone: within the breaker, and without keeping a node cordoned on suspicion."""

from __future__ import annotations

from dataclasses import replace

from kcover_ebpf.api.fault_policy import NodeActions
from kcover_ebpf.recovery.nodes.node_plan import CORDONED, NodeBreaker
from kcover_ebpf.tunables.recovery import SUSPECT_CORDON_S
from tests.unit.support.kept_policies import clear_policies
from tests.unit.support.node_bed import XID, Bed, F, Tainted

OPEN = "KcoverBreakerOpen"


def with_breaker(bed: Bed, most: int) -> None:
    bed.nodes._limits = replace(bed.nodes._limits, breaker=NodeBreaker(most, 10.0))
    bed.started_anew()


def test_node_breaker__a_fault_of_all_gpus_of_a_cluster_taints_those_of_a_few_nodes() -> None:
    bed = Tainted()
    with_breaker(bed, 3)
    for index in range(10):
        bed.breaks(f"n{index}")
    assert len(bed.rules) == 3
    assert bed.nodes.is_full
    assert [name for name, reason in bed.events if reason == OPEN] == [
        f"n{index}" for index in range(3, 10)
    ]
    assert bed.cordoned() == [], "nor is a node cordoned in the place of its devices"


def test_node_breaker__nodes_whose_devices_are_tainted_count_also_for_another_controller() -> None:
    bed = Tainted()
    with_breaker(bed, 3)
    for index in range(3):
        bed.breaks(f"n{index}")
    bed.started_anew()
    bed.breaks("n3")
    assert len(bed.rules) == 3
    bed.nodes.suspect("n4", "stuck", "team")
    assert bed.cordoned() == [], "on suspicion neither"
    bed.now_s += 301.0
    bed.breaks("n3")
    assert len(bed.rules) == 4, "the window is over"


def test_node_breaker__nodes_whose_devices_are_tainted_count_with_those_that_are_cordoned() -> None:
    bed = Tainted()
    with_breaker(bed, 2)
    bed.breaks("n1")
    other = replace(XID, device="0000:c3:00.0")
    bed.report(other)
    assert (len(bed.rules), bed.cordoned()) == (1, ["n0"])
    bed.breaks("n2")
    assert len(bed.rules) == 1


def test_node_breaker__a_second_device_of_a_node_takes_no_more_room() -> None:
    bed = Tainted()
    with_breaker(bed, 1)
    bed.breaks("n0")
    bed.breaks("n1")
    assert len(bed.rules) == 1
    other = replace(XID, device="0000:c3:00.0")
    bed.report(XID, other)
    assert bed.cordoned() == ["n0"], "the node counts already"
    assert ("n0", OPEN) not in bed.events


def test_node_breaker__rules_of_a_node_that_is_gone_count_no_more() -> None:
    bed = Tainted()
    with_breaker(bed, 1)
    bed.breaks("n1")
    del bed.store.raw_nodes["n1"]
    bed.breaks("n0")
    assert len(bed.rules) == 2


def test_suspect__a_cordon_on_suspicion_ends_while_a_device_is_tainted_alone() -> None:
    bed = Tainted()
    bed.nodes.suspect("n0", "preflight", "team")
    bed.inspect(F, gpu_result=F)
    bed.report(XID)
    assert bed.rules
    assert bed.cordoned() == ["n0"]
    bed.now_s += SUSPECT_CORDON_S + 1.0
    bed.report(XID)
    assert bed.cordoned() == []
    assert CORDONED not in bed.notes("n0")
    assert ("n0", "KcoverUncordoned") in bed.events
    assert bed.rules, "the device is tainted still"


def test_suspect__a_cordon_on_suspicion_ends_where_the_policy_cordons_for_no_device() -> None:
    bed = Bed()
    bed.nodes.suspect("n0", "stuck", "team")
    clear_policies(bed.store)
    bed.policy("kcover", NodeActions(cordon=False, taint=False))
    bed.now_s += SUSPECT_CORDON_S + 1.0
    bed.report(XID)
    assert bed.cordoned() == []


def test_suspect__it_does_not_end_where_the_breaker_alone_keeps_an_unfit_node_from_its_cordon() -> (
    None
):
    bed = Bed()
    with_breaker(bed, 1)
    bed.breaks("n1")
    bed.now_s += 301.0
    bed.nodes.suspect("n0", "stuck", "team")
    bed.now_s += SUSPECT_CORDON_S + 1.0
    bed.breaks("n2")
    bed.report(XID)
    assert "n0" in bed.cordoned()
