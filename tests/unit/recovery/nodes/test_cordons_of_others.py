"""What others did to a node stays when ours is undone: whose a cordon is, is noted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.api.fault_policy import InspectionAction, NodeActions
from kcover_ebpf.kube.reflector import Change, Event
from kcover_ebpf.recovery.nodes.node_health import OFFENCES
from kcover_ebpf.recovery.nodes.node_plan import CORDONED, CORDONED_BY
from tests.unit.support.kept_policies import clear_policies
from tests.unit.support.node_bed import Bed, F, P


def test_cordons_of_others__a_cordon_of_a_person_is_never_touched() -> None:
    bed = Bed()
    raw = dict(bed.store.raw_nodes["n0"])
    bed.store.on_node(Event(Change.SET, raw | {"spec": {"unschedulable": True}, "status": {}}))
    bed.inspect(P, rounds=50)
    assert bed.cordoned() == ["n0"]
    assert bed.notes("n0") == {}


@pytest.mark.parametrize("taint", [True, False], ids=["taint and cordon", "cordon alone"])
def test_cordons_of_others__a_cordon_of_a_person_stays_also_where_the_node_fails_meanwhile(
    taint: bool,
) -> None:
    bed = Bed()
    clear_policies(bed.store)
    bed.policy("kcover", NodeActions(inspection=InspectionAction.ALL, taint=taint))
    bed.by_hand("n0", True)
    bed.inspect(F, rounds=2)
    assert CORDONED in bed.notes("n0")
    assert bed.notes("n0")[CORDONED_BY] == "others"
    bed.inspect(P, rounds=3)
    assert set(bed.notes("n0")) == {OFFENCES}, "what is ours is undone"
    assert not bed.store.raw_nodes["n0"]["spec"].get("taints")
    assert bed.cordoned() == ["n0"]
    bed.by_hand("n0", False)
    bed.inspect(F, rounds=2)
    assert bed.notes("n0")[CORDONED_BY] == "kcover", "the next cordon is ours"


def test_cordons_of_others__a_cordon_of_a_person_stays_where_we_only_tainted_the_node_before() -> (
    None
):
    bed = Bed()
    clear_policies(bed.store)
    bed.policy("kcover", NodeActions(inspection=InspectionAction.ALL, cordon=False))
    bed.inspect(F, rounds=2)
    assert bed.cordoned() == []
    bed.by_hand("n0", True)
    bed.inspect(P, rounds=3)
    assert CORDONED not in bed.notes("n0")
    assert bed.cordoned() == ["n0"]


def test_cordons_of_others__who_undoes_our_cordon_and_cordons_the_node_again_keeps_it() -> None:
    bed = Bed()
    bed.inspect(F, rounds=2)
    bed.by_hand("n0", False)
    assert bed.cordoned() == []
    bed.by_hand("n0", True)
    bed.inspect(P, rounds=3)
    assert CORDONED not in bed.notes("n0")
    assert bed.cordoned() == ["n0"]


def test_cordons_of_others__a_cordon_noted_by_an_older_version_is_taken_for_ours() -> None:
    bed = Bed()
    bed.inspect(F, rounds=2)
    del bed.notes("n0")[CORDONED_BY]
    bed.inspect(P, rounds=3)
    assert bed.cordoned() == []


def test_cordons_of_others__a_dry_run_notes_nothing() -> None:
    bed = Bed()
    bed.inspect(F, rounds=2)
    bed.nodes._limits = replace(bed.nodes._limits, dry_run=True)
    bed.by_hand("n0", False)
    assert bed.notes("n0")[CORDONED_BY] == "kcover"
