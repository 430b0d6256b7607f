"""Ranks that ask the clock until their device is done: the vDSO in which they are found says nothing of what for."""

from __future__ import annotations

import pytest

from kcover_ebpf.ids import NS
from kcover_ebpf.model.verdict import Cause, VerdictKind
from tests.unit.support.gpu_ranks import DOUBTFUL, SAVED, Gpu
from tests.unit.support.seen_verdicts import ended, faults


def test_clock_waits__a_lone_rank_that_only_asks_the_clock_is_seen_to_train() -> None:
    """Its own thread is its only clock, and where that waits nothing but its stack shows."""
    gpu = Gpu(here=1, names={"[vdso]": 1})
    gpu.spend(60)
    assert gpu.stage.job.pace.trained
    gpu.spend(15 * 60)
    assert faults(gpu.stage) == []


@pytest.mark.parametrize("others", [SAVED, DOUBTFUL], ids=["saved", "doubtful"])
def test_clock_waits__registers_that_the_clock_saves_are_no_work_of_a_stuck_lone_rank(
    others: tuple[str, ...],
) -> None:
    """It was found in its interpreter and its driver in turns, and so was training for ever."""
    gpu = Gpu(here=1, others=others)
    gpu.spend(15 * 60)
    assert gpu.stage.job.pace.trained
    assert faults(gpu.stage) == []
    gpu.stuck = {0}
    began_s = gpu.stage.now_ns / NS
    gpu.spend(5 * 60)
    (found,) = faults(gpu.stage, began_s)
    assert (found.kind, found.cause) == (VerdictKind.HUNG, Cause.DEVICE_WAIT)
    assert found.culprit is None


@pytest.mark.parametrize("called_from", [SAVED, DOUBTFUL, ()], ids=["saved", "doubtful", "unread"])
def test_clock_waits__a_rank_that_asks_the_clock_alone_does_not_spin_in_place(
    called_from: tuple[str, ...],
) -> None:
    """Its registers are the same at each sample: it was named, and its job ended, during a long kernel."""
    gpu = Gpu(world=4)
    stage = gpu.stage
    gpu.spend(180)
    began_s = stage.now_ns / NS
    gpu.stuck, gpu.left_alone = {0, 2, 3}, {1}
    stage.become(stage.rank(1), "spin", module="[vdso]", called_from=called_from)
    gpu.spend(120)
    found = faults(stage, began_s)
    assert [(verdict.cause, verdict.culprit) for verdict in found] == [(Cause.DEVICE_WAIT, None)]
    assert not any(map(ended, found))
