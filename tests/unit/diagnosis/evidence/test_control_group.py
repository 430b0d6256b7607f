"""Whoever waits where most ranks wait is kept there by the others, whatever its own threads wait for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.diagnosis.evidence.control_group import compared
from kcover_ebpf.diagnosis.evidence.snapshot import JobSnapshot
from kcover_ebpf.diagnosis.judge.judge import judge
from kcover_ebpf.ids import Pid
from kcover_ebpf.model.process_state import Effort, State
from kcover_ebpf.model.rank_snapshot import EffortRates
from kcover_ebpf.model.verdict import VerdictKind
from tests.unit.support.scripted_job import BARRIER, COLLECTIVE, Stage, all_wait, trained

RANKS = 4


def waiting(helped: set[int], elsewhere: int | None) -> JobSnapshot:
    """All ranks are in waits that were seen to end; `helped`: these have a thread that waits for a timer."""
    stage: Stage = trained(RANKS)
    all_wait(stage, -1)
    stage.run(8)
    snapshot = stage.job.snapshot()
    changed = {
        Pid(100 + number): replace(
            snapshot.processes[Pid(100 + number)],
            state=State.HELPED if number in helped else State.FUTEX,
            stack=BARRIER if number == elsewhere else COLLECTIVE,
            beside=("timer",) if number in helped else (),
            known_wait=True,
        )
        for number in range(RANKS)
    }
    return replace(snapshot, processes={**snapshot.processes, **changed})


@pytest.mark.parametrize(
    ("helped", "elsewhere", "left"),
    [
        ({0, 1, 2}, 3, set()),
        ({0, 1}, None, set()),
        # one apart from the others may well wait for its own thread
        ({3}, 3, {3}),
        # a pause of all
        ({0, 1, 2, 3}, None, {0, 1, 2, 3}),
    ],
    ids=["all but the culprit", "some of all", "one alone", "all"],
)
def test_compared__a_helper_keeps_no_rank_where_most_ranks_wait(
    helped: set[int], elsewhere: int | None, left: set[int]
) -> None:
    found = compared(waiting(helped, elsewhere)).ranks.values()
    assert {rank.rank for rank in found if rank.state is State.HELPED} == left
    assert {rank.state for rank in found} <= {State.HELPED, State.FUTEX}


@pytest.mark.parametrize(
    ("known", "kind"), [(True, VerdictKind.HUNG), (False, VerdictKind.WORKING)]
)
def test_compared__who_asks_for_something_as_no_rank_did_before_may_be_at_work(
    known: bool, kind: VerdictKind
) -> None:
    """As who builds an index and rests every millisecond, seen with one other rank of four that waits for it."""
    snapshot = waiting(set(), None)
    asks, waits = snapshot.processes[Pid(100)], snapshot.processes[Pid(101)]
    asks = replace(asks, state=State.NAPPING, stack=(), known_wait=known)
    waits = replace(waits, stack=BARRIER, known_wait=False)
    seen = replace(snapshot, processes={rank.pid: rank for rank in (asks, waits)}, knows_waits=True)
    found = judge(seen)
    assert (found.kind, found.culprit and found.culprit.rank) == (kind, 1 if known else None)


LOGS = EffortRates(compute=1.3, storage=1.4)
"""What each rank does beside training, of which each is known for something else at the moment."""


@pytest.mark.parametrize(
    ("own", "others", "explains"),
    [
        (LOGS, LOGS, False),
        (replace(LOGS, storage=4.0), LOGS, True),
        (LOGS, EffortRates(), True),
        # agents that report only what a rank does most of late
        (None, None, True),
    ],
    ids=["as the others", "more than the others", "the others do nothing", "not known"],
)
def test_compared__rates_of_a_kind_count_and_not_which_kind_was_seen_last(
    own: EffortRates | None, others: EffortRates | None, *, explains: bool
) -> None:
    snapshot = waiting(set(), 3)
    doing = {
        Pid(100): (Effort.COMPUTE, State.COMPUTING, others),
        Pid(101): (Effort.COMPUTE, State.COMPUTING, others),
        Pid(102): (None, State.FUTEX, others),
        Pid(103): (Effort.STORAGE, State.STORING, own),
    }
    changed = {
        pid: replace(
            snapshot.processes[pid],
            state=state,
            wait=None if effort is None else State.FUTEX,
            effort=effort,
            effort_rate=0.0 if effort is None else 1.1,
            effort_rates=rates,
            known_wait=pid != 103,
        )
        for pid, (effort, state, rates) in doing.items()
    }
    found = compared(replace(snapshot, processes={**snapshot.processes, **changed}))
    assert found.processes[Pid(103)].effort is (Effort.STORAGE if explains else None)
