"""Whose word has a node cordoned on suspicion."""

from __future__ import annotations

from kcover_ebpf.controller.suspicions import Suspicions
from kcover_ebpf.tunables.recovery import SUSPECT_CORDON_S


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
