"""What is done with a node whose device announced a fault, and when it is uncordoned."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.api.fault_policy import NodeActions
from kcover_ebpf.api.fault_report import ReportedDeviceFault
from kcover_ebpf.recovery.nodes.node_plan import (
    CLEARED,
    CORDONED,
    NodeBreaker,
    NodePlan,
    NodeView,
    plan,
    view_of,
)

NOW_S = 1767225600.0
NODE = NodeView("n", "u", False, {}, (), "")
XID = ReportedDeviceFault(
    "0000:5d:00.0", "xid_79", "fell off the bus", fatal=True, unfit=True, age_s=10.0
)
OURS = replace(
    NODE,
    cordoned=True,
    annotations={CORDONED: "2025-12-31T23:00:00Z xid"},
    condition="True",
    condition_text="0000:5d:00.0 xid_79: fell off the bus; beside it: taint nvidia.com/x",
)


def decide(
    node: NodeView = NODE,
    faults: tuple[ReportedDeviceFault, ...] = (XID,),
    actions: NodeActions | None = None,
    by_dra: frozenset[str] = frozenset(),
    room: bool = True,
) -> NodePlan:
    return plan(node, faults, NOW_S, actions or NodeActions(), by_dra, room)


def test_plan__a_fatal_fault_keeps_new_pods_off_the_node():
    found = decide()
    assert found.condition is not None
    assert found.condition[0]
    assert (found.cordon, found.taint, found.refused) == (True, True, "")
    assert "xid_79" in found.reason


def test_plan__the_condition_names_what_whoever_replaces_the_device_asks_for():
    found = decide(faults=(replace(XID, uuid="GPU-0", serial="165", slot="4"),))
    assert found.condition == (
        True,
        "0000:5d:00.0 (UUID GPU-0, serial number 165, slot 4) xid_79: fell off the bus",
    )
    found = decide()
    assert found.condition == (True, "0000:5d:00.0 xid_79: fell off the bus")


def test_plan__a_fault_that_ends_the_job_and_leaves_the_device_fit_changes_nothing():
    found = decide(faults=(replace(XID, unfit=False),))
    assert (found.condition, found.reason, found.let_go) == (None, "", False)


def test_plan__a_device_that_is_unfit_keeps_pods_off_also_where_its_job_continues():
    assert decide(faults=(replace(XID, fatal=False),)).reason


def test_plan__what_was_done_is_not_done_again():
    found = decide(OURS)
    assert (found.condition, found.reason, found.let_go) == (None, "", False)


def test_plan__a_second_device_that_fails_is_named_as_well():
    second = replace(XID, device="0000:86:00.0", serial="166")
    found = decide(OURS, faults=(XID, second))
    assert found.condition is not None
    assert "0000:86:00.0 (serial number 166) xid_79: " in found.condition[1]
    assert found.reason == "", "it is cordoned already"
    known = replace(OURS, condition_text=found.condition[1])
    assert decide(known, faults=(XID, second)).condition is None
    many = tuple(replace(XID, device=f"0000:{n:02x}:00.0", text="x" * 500) for n in range(4))
    cut = decide(OURS, faults=many).condition
    assert cut is not None
    assert decide(replace(OURS, condition_text=cut[1]), faults=many).condition is None


def test_plan__the_breaker_refuses_and_the_condition_is_reported_all_the_same():
    found = decide(room=False)
    assert found.condition is not None
    assert found.reason == ""
    assert "breaker" in found.refused


def test_plan__a_device_that_is_handed_out_alone_is_tainted_alone():
    found = decide(by_dra=frozenset({XID.device}))
    assert found.devices == (XID,)
    assert found.reason == ""
    whole = decide(by_dra=frozenset({XID.device}), actions=NodeActions(device_taint=False))
    assert whole.reason


def test_plan__silence_is_no_cure():
    assert not decide(OURS, faults=()).let_go


CURES = {
    "after the cordon": ("2025-12-31T23:30:00Z", True),
    "before it": ("2025-12-31T22:00:00Z", False),
}


@pytest.mark.parametrize(("cleared", "let_go"), CURES.values(), ids=CURES)
def test_plan__a_node_declared_well_is_uncordoned(cleared, let_go):
    node = replace(OURS, annotations={**OURS.annotations, CLEARED: cleared})
    assert decide(node, faults=()).let_go is let_go


def test_plan__devices_tainted_before_a_clearance_are_given_back_after_it():
    cleared = replace(NODE, condition="True", annotations={CLEARED: "2025-12-31T23:30:00Z"})
    found = decide(cleared, faults=(), by_dra=frozenset({XID.device}))
    assert found.cleared_s == NOW_S - 1800
    assert found.condition == (False, "no device fault")
    assert decide(replace(NODE, condition="True"), faults=()).cleared_s is None
    assert decide(cleared, by_dra=frozenset({XID.device})).cleared_s is None


def test_plan__a_new_fault_after_that_counts():
    node = replace(NODE, annotations={CLEARED: "2025-12-31T23:30:00Z"})
    assert decide(node).reason
    assert not decide(node, faults=(replace(XID, age_s=7200.0),)).reason


@pytest.mark.parametrize(
    ("cordoned", "nodes", "recent", "room"),
    [
        (0, 2, 0, True),
        (1, 2, 0, False),
        (9, 100, 0, True),
        (10, 100, 0, False),
        (5, 1500, 5, False),
    ],
)
def test_node_breaker__the_breaker(cordoned, nodes, recent, room):
    assert NodeBreaker().room(cordoned, nodes, recent) is room


def test_view_of__a_node_of_the_api():
    raw = {
        "metadata": {"name": "n", "uid": "u", "annotations": {CORDONED: "x"}},
        "spec": {"unschedulable": True, "taints": [{"key": "k"}]},
        "conditions": [{"type": "KcoverDeviceFault", "status": "True"}],
    }
    found = view_of(raw)
    assert (found.ours, found.cordoned, found.condition) == (True, True, "True")
