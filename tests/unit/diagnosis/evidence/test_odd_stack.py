"""Of the Python stacks of all ranks the odd one is named, with file and line; that explains, and ends nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.diagnosis.clock.certainty import completed
from kcover_ebpf.diagnosis.decisions import decide
from kcover_ebpf.diagnosis.evidence.odd_stack import (
    OddStack,
    explained,
    innermost,
    odd_one,
)
from kcover_ebpf.diagnosis.evidence.snapshot import Finding
from kcover_ebpf.facts.python_stacks import PythonFrame, PythonStack, PythonStacksSeen
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.model.silence_summary import SilenceSummary
from kcover_ebpf.model.verdict import CAUSES, Cause, Evidence, EvidenceKind, Verdict, VerdictKind
from kcover_ebpf.settings import Act, Policy
from tests.unit.support.scripted_job import Stage, all_wait, trained

Frames = tuple[PythonFrame, ...]


def own(function: str, line: int, file: str = "train.py") -> PythonFrame:
    return PythonFrame(function, file, line)


def library(function: str, line: int, file: str = "torch/distributed/c10d.py") -> PythonFrame:
    return PythonFrame(function, file, line, is_library=True)


MAIN = own("<module>", 90)
COLLECTIVE = (
    library("wait", 27),
    library("all_reduce", 2806),
    own("step", 40),
    MAIN,
)
LOCK = (library("acquire", 320, "threading.py"), own("save", 71), own("step", 44), MAIN)
LOOP = (own("step", 60), MAIN)


def odd(*frames: Frames) -> OddStack[int] | None:
    return odd_one({rank: innermost(frame) for rank, frame in enumerate(frames)})


@pytest.mark.parametrize(
    ("stacks", "rank", "place", "others"),
    [
        (
            (COLLECTIVE, LOCK, COLLECTIVE, COLLECTIVE),
            1,
            "save (train.py:71), in acquire (threading.py:320)",
            "step (train.py:40), in all_reduce (torch/distributed/c10d.py:2806)",
        ),
        (
            (COLLECTIVE, COLLECTIVE, LOCK),
            2,
            "save (train.py:71), in acquire (threading.py:320)",
            "step (train.py:40), in all_reduce (torch/distributed/c10d.py:2806)",
        ),
        (
            (COLLECTIVE, COLLECTIVE, COLLECTIVE, LOOP),
            3,
            "step (train.py:60)",
            "step (train.py:40), in all_reduce (torch/distributed/c10d.py:2806)",
        ),
        (
            (LOOP, LOOP, (own("step", 61), MAIN)),
            2,
            "step (train.py:61)",
            "step (train.py:60)",
        ),
        (
            ((library("a", 1), library("b", 2)),) * 3 + ((library("c", 1),),),
            3,
            "c (torch/distributed/c10d.py:1)",
            "a (torch/distributed/c10d.py:1)",
        ),
    ],
    ids=[
        "another function",
        "of three ranks",
        "the same function, in no call",
        "another line, where all others are at one",
        "a program of which no frame is the user's",
    ],
)
def test_odd_one__the_rank_that_is_elsewhere_is_named_with_file_and_line(
    stacks: tuple[Frames, ...], rank: int, place: str, others: str
) -> None:
    assert odd(*stacks) == OddStack(rank, place, others, len(stacks) - 1)


def polling(line: int) -> Frames:
    return library("poll", line), own("exchange", line), MAIN


def waiting_within(depth: int) -> Frames:
    return (*(library(f"inner_{number}", 1) for number in range(depth)), *COLLECTIVE[1:])


@pytest.mark.parametrize(
    "stacks",
    [
        [],
        [COLLECTIVE],
        [COLLECTIVE, LOCK],
        [COLLECTIVE] * 4,
        [LOCK, LOCK, COLLECTIVE, COLLECTIVE, COLLECTIVE, COLLECTIVE],
        [LOCK, LOOP, COLLECTIVE, COLLECTIVE, COLLECTIVE],
        [LOCK, (), COLLECTIVE, COLLECTIVE, COLLECTIVE],
        [polling(line) for line in range(1, 5)],
        [polling(5), polling(5), polling(6), polling(7)],
        [waiting_within(depth) for depth in range(4)],
    ],
    ids=[
        "none",
        "one",
        "two",
        "all alike",
        "two are odd",
        "three places",
        "one was not read",
        "all poll in one loop",
        "most poll at one line",
        "all wait somewhere in one library call",
    ],
)
def test_odd_one__no_rank_is_named(stacks: list[Frames]) -> None:
    assert odd(*stacks) is None


def test_odd_one__a_rank_beside_others_that_poll_is_named() -> None:
    found = odd(*(polling(line) for line in range(4)), LOCK)
    assert found is not None
    assert (found.key, found.other_count) == (4, 4)


def test_innermost__what_is_sent_of_a_stack_is_bounded() -> None:
    deep = (*(library(f"l{number}", number) for number in range(50)), *(own("f" * 300, 1),) * 50)
    cut = innermost(deep)
    assert [frame.function for frame in cut] == ["l49", *["f" * 100] * 8]
    assert len(innermost((library("x", 1),) * 50)) == 8
    assert innermost((own("f", 1, "/long" * 90 + "/train.py"),))[0].file.endswith("/train.py")


FRAMES = st.lists(
    st.builds(
        PythonFrame,
        st.sampled_from("abc"),
        st.sampled_from(["x.py", "y.py"]),
        st.integers(0, 3),
        st.booleans(),
    ),
    max_size=4,
).map(tuple)


@given(st.lists(FRAMES, max_size=6), st.randoms())
def test_odd_one__the_order_of_ranks_does_not_matter(stacks: list[Frames], random: object) -> None:
    by_rank = {rank: innermost(stack) for rank, stack in enumerate(stacks)}
    mixed = list(by_rank.items())
    random.shuffle(mixed)  # type: ignore[attr-defined]
    one, other = odd_one(by_rank), odd_one(dict(mixed))
    assert (one and one.key, one and one.own) == (other and other.key, other and other.own)


# --- what it does to a verdict


def stage_with(odd_rank: int, mode: str, **changes: object) -> Stage:
    """Three of four ranks wait in a collective, and one is in another function."""
    stage = trained()
    stage.become(stage.rank(odd_rank), mode, **changes)
    all_wait(stage, odd_rank)
    stage.run(3)
    stacks = tuple(
        PythonStack(Pid(100 + rank), innermost(LOCK if rank == odd_rank else COLLECTIVE))
        for rank in range(4)
    )
    stage.feed(PythonStacksSeen(stage.now_ns, stacks))
    return stage


def outliers(evidence: tuple[Evidence, ...]) -> list[str]:
    return [
        other_evidence.text
        for other_evidence in evidence
        if other_evidence.kind is EvidenceKind.OUTLIER
    ]


def test_innermost__the_culprit_is_named_with_its_line_in_the_verdict() -> None:
    stage = stage_with(2, "stopped")
    stage.run(4)
    verdict = stage.tracker.latest
    assert verdict is not None
    assert verdict.culprit is not None
    assert verdict.culprit.rank == 2
    (text,) = outliers(verdict.evidence)
    assert text.startswith("rank 2 is at save (train.py:71), in acquire (threading.py:320); the 3 ")


def test_explained__where_no_rank_is_named_the_odd_one_is_offered_and_not_blamed() -> None:
    stage = stage_with(2, "stopped")
    snapshot = stage.job.snapshot()
    for kind, cause in ((VerdictKind.HUNG, Cause.WAIT_CYCLE), (VerdictKind.UNKNOWN, Cause.UNKNOWN)):
        found = explained(snapshot, Finding(kind, cause, stage.now_ns))
        (text,) = outliers(found.evidence)
        assert text.startswith("the odd one out, not necessarily the culprit: rank 2 is at save")
        assert found.culprit is None


def test_python_frame__a_verdict_is_reported_again_when_it_is_explained_and_not_again_after_that() -> (
    None
):
    stage = trained()
    stage.become(stage.rank(2), "stopped")
    all_wait(stage, 2)
    stage.run(7)
    before = len(stage.verdicts)
    assert stage.verdicts[-1].kind is VerdictKind.HUNG
    for line in (71, 72):
        stacks = tuple(
            PythonStack(Pid(100 + rank), (own("save", line),) if rank == 2 else LOOP)
            for rank in range(4)
        )
        stage.feed(PythonStacksSeen(stage.now_ns, stacks))
        stage.run(3)
    (again,) = stage.verdicts[before:]
    assert again.incident == stage.verdicts[before - 1].incident
    assert outliers(again.evidence)


def test_innermost__a_rank_that_evaluates_while_the_others_wait_stays_what_it_was() -> None:
    """Rank 0 is elsewhere by right: its position alone makes no fault, no culprit and no end of the job."""
    stage = stage_with(0, "run")
    stage.run(20)
    assert [
        verdict.kind for verdict in stage.verdicts if verdict.kind is not VerdictKind.WORKING
    ] == []
    stage.run(100)
    assert {verdict.kind for verdict in stage.verdicts} == {
        VerdictKind.WORKING,
        VerdictKind.UNKNOWN,
    }
    last = stage.verdicts[-1]
    assert outliers(last.evidence)
    assert decide(last, Act.RESTART).act is Act.OBSERVE


@pytest.mark.parametrize("new", [(0,), (0, 1, 2)])
def test_explained__a_rank_whose_wait_is_new_is_not_named_where_others_wait_at_its_place(
    new: tuple[int, ...],
) -> None:
    """Rank 3 takes a lock, in a wait as a queue has while all is well; others are the first to wait in their ways."""
    stage = trained()
    stage.become(stage.rank(3), "futex", last_send_ns=stage.now_ns - NS // 4)
    for rank in range(3):
        stage.become(stage.rank(rank), "futex", last_send_ns=stage.now_ns)
    for rank in new:
        stage.become(stage.rank(rank), "futex", stack=(f"libtorch_cpu.so+0x{rank}",))
    stage.run(6)
    assert stage.verdicts[-1].culprit is not None
    stacks = [PythonStack(Pid(100 + rank), innermost(COLLECTIVE)) for rank in range(3)]
    stacks.append(PythonStack(Pid(103), innermost(LOCK)))
    stage.feed(PythonStacksSeen(stage.now_ns, tuple(stacks)))
    stage.run(3)
    verdict = stage.verdicts[-1]
    assert verdict.culprit is not None
    assert verdict.culprit.rank == 3
    assert outliers(verdict.evidence)


KINDS = st.lists(st.sampled_from(EvidenceKind), max_size=4)


@given(st.sampled_from(VerdictKind), KINDS, st.sampled_from(Act))
def test_certainty__an_outlier_changes_no_decision(
    kind: VerdictKind, kinds: list[EvidenceKind], allowed: Act
) -> None:
    def decided(*more_kind: EvidenceKind) -> Act:
        reported = tuple(Evidence(evidence_kind, "text") for evidence_kind in (*kinds, *more_kind))
        cause = min(CAUSES[kind], key=lambda other_cause: other_cause.value)
        said = Verdict(kind, cause, 2e4, evidence=reported)
        return decide(completed(said, Policy(), SilenceSummary().patience(Policy())), allowed).act

    assert decided(EvidenceKind.OUTLIER) is decided()


def test_innermost__what_was_read_in_one_stall_says_nothing_about_the_next() -> None:
    stage = stage_with(2, "stopped")
    assert stage.job.snapshot().ranks[Pid(102)].python
    for rank in range(4):
        stage.become(stage.rank(rank), "train")
    stage.run(20)
    assert stage.job.snapshot().ranks[Pid(102)].python == ()
