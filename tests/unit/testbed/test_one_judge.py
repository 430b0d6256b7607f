"""One judge: a job gets the same verdict whether one host sees all its ranks or two nodes report half of them each."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from kcover_ebpf.facts.host import CollectivesSeen
from kcover_ebpf.facts.python_stacks import PythonFrame, PythonStack, PythonStacksSeen
from kcover_ebpf.facts.recorders import RecordersSeen
from kcover_ebpf.gang.gang_judge import merge
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.model.verdict import Cause, EvidenceKind, VerdictKind
from testbed.driver.recorder_dumps import steps
from tests.unit.support.job_stories import (
    STORIES,
    all_wait,
    behind_at_a_lock,
    behind_in_a_subgroup,
    by_nccl,
    computes_for_long,
    others,
    stopped,
)
from tests.unit.support.recorder_builders import record
from tests.unit.support.report_builders import case
from tests.unit.support.scripted_job import LOCK
from tests.unit.support.two_nodes import NODES, Agent, Recorded, on_one_host, on_two_nodes, recorded


@pytest.mark.parametrize(("act", "kind", "cause", "rank"), STORIES.values(), ids=STORIES)
def test_one_judge__two_nodes_say_what_one_host_says(
    act: Callable[[Recorded], None], kind: VerdictKind, cause: Cause, rank: int | None
) -> None:
    stage = recorded()
    act(stage)
    alone, merged = on_one_host(stage), on_two_nodes(stage)
    together = merged.verdict
    assert (alone.kind, alone.cause, alone.rank) == (kind, cause, rank)
    culprit = merged.culprit.rank if merged.culprit is not None else None
    assert (together.kind, together.cause, culprit) == (kind, cause, rank)
    if rank is not None:
        assert merged.culprit is not None
        assert (merged.culprit.pod, merged.culprit.node) == (f"j-{rank}", NODES[rank % 2])


ASKED = {name: story for name, story in STORIES.items() if name.startswith("NCCL")}


@pytest.mark.parametrize("askers", ["b", "ab"], ids=["the other node asks", "both ask"])
@pytest.mark.parametrize(("act", "kind", "cause", "rank"), ASKED.values(), ids=ASKED)
def test_one_judge__it_does_not_matter_which_node_asks(
    act: Callable[[Recorded], None],
    kind: VerdictKind,
    cause: Cause,
    rank: int | None,
    askers: str,
) -> None:
    stage = recorded()
    act(stage)
    merged = on_two_nodes(stage, askers=askers)
    culprit = merged.culprit.rank if merged.culprit is not None else None
    assert (merged.verdict.kind, merged.verdict.cause, culprit) == (kind, cause, rank)


def test_one_judge__who_sent_the_stop_signal_is_known_to_all() -> None:
    stage = recorded()
    stopped(stage)
    said = [
        evidence.text
        for evidence in on_two_nodes(stage).evidence
        if evidence.kind is EvidenceKind.EVENT
    ]
    assert said == ["signal 19 was sent by kill (9)"]
    assert said == [
        evidence.text
        for evidence in on_one_host(stage).evidence
        if evidence.kind is EvidenceKind.EVENT
    ]


def test_one_judge__counts_say_the_same_over_nodes() -> None:
    stage = recorded()
    behind_in_a_subgroup(stage)
    words = [
        evidence.text
        for evidence in on_one_host(stage).evidence
        if evidence.kind is EvidenceKind.COLLECTIVE
    ]
    merged = on_two_nodes(stage).evidence
    assert words == [
        evidence.text for evidence in merged if evidence.kind is EvidenceKind.COLLECTIVE
    ]
    assert words


def recorded_as(stage: Recorded, odd: int, ends: str | None) -> None:
    """All ranks spin, and the recorder of one holds another end than the others'."""
    others(stage, -1, "spin")
    stage.run(15)
    waits = steps(5, ends="all_reduce")
    calls = [steps(5, ends=ends) if number == odd else waits for number in range(stage.world)]
    records = tuple(record(rank, call) for rank, call in enumerate(calls))
    stage.feed(RecordersSeen(stage.now_ns, records))
    stage.run(20)


@pytest.mark.parametrize(
    ("ends", "cause"),
    [(None, Cause.NOT_IN_COLLECTIVE), ("all_gather", Cause.COLLECTIVE_MISMATCH)],
    ids=["behind", "mismatch"],
)
def test_one_judge__recordings_say_the_same_over_nodes(ends: str | None, cause: Cause) -> None:
    """Each node has two of the four ranks: of a mismatch it sees a tie."""
    stage = recorded()
    recorded_as(stage, 2, ends)
    one, merged = on_one_host(stage), on_two_nodes(stage)
    assert (one.cause, one.rank) == (cause, 2)
    assert merged.verdict.cause is cause
    assert merged.culprit is not None
    assert (merged.culprit.rank, merged.culprit.node) == (2, "a")
    words = [evidence.text for evidence in one.evidence if evidence.kind is EvidenceKind.COLLECTIVE]
    assert words == [
        evidence.text for evidence in merged.evidence if evidence.kind is EvidenceKind.COLLECTIVE
    ]
    assert any("/jobs/train.py:40 (step)" in word for word in words)


USUAL = (
    PythonFrame("all_reduce", "torch/distributed/c10d.py", 2806, is_library=True),
    PythonFrame("step", "train.py", 40),
)
APART = (PythonFrame("save", "train.py", 71), PythonFrame("step", "train.py", 44))


def stacks_read(stage: Recorded, odd: int, skipped: int | None = None) -> None:
    """The Python stacks of all ranks but one are read; rank `odd` is elsewhere."""
    stacks = tuple(
        PythonStack(Pid(100 + rank), APART if rank == odd else USUAL)
        for rank in range(stage.world)
        if rank != skipped
    )
    stage.feed(PythonStacksSeen(stage.now_ns, stacks))
    stage.run(1)


@pytest.mark.parametrize(
    ("act", "odd", "begins"),
    [
        (
            stopped,
            1,
            "rank 1 is at save (train.py:71); the 3 other ranks are at step (train.py:40), in ",
        ),
        (
            all_wait,
            2,
            "the odd one out, not necessarily the culprit: rank 2 is at save (train.py:71)",
        ),
        (computes_for_long, 0, "rank 0 is at save (train.py:71); the 3 other ranks"),
    ],
    ids=["of the culprit", "where no rank is named", "of what may be an evaluation"],
)
def test_one_judge__the_odd_stack_is_the_same_over_nodes(
    act: Callable[[Recorded], None], odd: int, begins: str
) -> None:
    """Each node has two of the four ranks, of which neither is odd."""
    stage = recorded()
    act(stage)
    before, merged_before = on_one_host(stage), on_two_nodes(stage)
    stacks_read(stage, odd)
    one, merged = on_one_host(stage), on_two_nodes(stage)
    (text,) = (evidence.text for evidence in one.evidence if evidence.kind is EvidenceKind.OUTLIER)
    assert text.startswith(begins)
    assert [text] == [
        evidence.text for evidence in merged.evidence if evidence.kind is EvidenceKind.OUTLIER
    ]
    # it explains, and changes nothing else
    assert (one.kind, one.cause, one.rank) == (before.kind, before.cause, before.rank)
    verdict, earlier = merged.verdict, merged_before.verdict
    assert (verdict.kind, verdict.cause) == (earlier.kind, earlier.cause)
    assert merged.culprit == merged_before.culprit


def test_one_judge__no_rank_is_odd_while_the_stack_of_one_is_not_known() -> None:
    stage = recorded()
    stopped(stage)
    stacks_read(stage, 1, skipped=2)
    merged = on_two_nodes(stage)
    assert merged.verdict.cause is Cause.STOPPED
    assert EvidenceKind.OUTLIER not in {evidence.kind for evidence in merged.evidence}


def test_one_judge__a_node_whose_nccl_gives_no_answer_does_not_hide_what_the_other_reported() -> (
    None
):
    stage = recorded()
    behind_at_a_lock(stage)
    agents = [
        Agent(node, {Pid(100 + number): f"uid-{number}" for number in (at, at + 2)})
        for at, node in enumerate(NODES)
    ]
    for agent in agents:
        agent.replay(stage)
    silent = CollectivesSeen(stage.now_ns, stage.now_ns, trouble="timed out")
    agents[0].job.observe(silent)
    merged = merge(case(*(other_agent.report(0.3) for other_agent in agents)))
    assert merged.verdict.cause is Cause.NOT_IN_COLLECTIVE
    assert merged.verdict.unobserved == ()
    agents[1].job.observe(silent)
    merged = merge(case(*(other_agent.report(0.3) for other_agent in agents)))
    assert merged.verdict.cause is not Cause.NOT_IN_COLLECTIVE
    assert [text for text in merged.verdict.unobserved if "timed out" in text]


MODES = st.sampled_from(
    ["futex", "yield", "run", "spin", "sleep_long", "stopped", "poll", "frozen"]
)
SAID = st.sampled_from([None, "behind", "missing", "failed", "equal"])


@settings(
    max_examples=settings().max_examples // 5,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
)
@given(
    st.lists(st.tuples(MODES, st.booleans()), min_size=4, max_size=4),
    st.integers(0, 3),
    SAID,
    st.integers(4, 25),
)
@example(
    # two came into their states at once: whichever is taken, it is the same one
    [("poll", False), ("run", False), ("sleep_long", False), ("yield", False)],
    3,
    "behind",
    19,
)
def test_one_judge__whatever_the_ranks_do_two_nodes_do_not_contradict_one_host(
    modes: list[tuple[str, bool]], number: int, said: str | None, seconds: int
) -> None:
    """Where one host goes by the order of two moments, two nodes may name none."""
    stage = recorded()
    for rank, (mode, is_odd) in enumerate(modes):
        stage.become(stage.rank(rank), mode, **({"stack": LOCK} if is_odd else {}))
        stage.one_pass(NS)
    if said is None:
        stage.run(seconds)
    else:
        word = {} if said == "equal" else {said: (by_nccl(number, trouble="system error"),)}
        stage.ask(seconds, **word)
    alone, merged = on_one_host(stage), on_two_nodes(stage, late_s=0.0)
    together = merged.verdict
    assert (together.kind, together.cause) == (alone.kind, alone.cause)
    if merged.culprit is not None:
        assert merged.culprit.rank == alone.rank
