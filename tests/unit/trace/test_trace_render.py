"""A trace as text, as Markdown and as one object."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kcover_ebpf.model.traced import Stack
from kcover_ebpf.model.verdict import Cause, Culprit, Evidence, EvidenceKind, Verdict, VerdictKind
from kcover_ebpf.output import formatting
from kcover_ebpf.output.formatting import event_line
from kcover_ebpf.trace import advice, render
from kcover_ebpf.trace.describe_call import WaitTarget
from kcover_ebpf.trace.records import TRACE, Line, TracedThread, TraceHeader, parse
from kcover_ebpf.views.rank_numbers import ranks_text

HUNG = Verdict(
    job="train",
    incident="train-1",
    kind=VerdictKind.HUNG,
    cause=Cause.BLOCKED_LOCK,
    time_s=1_000.0,
    since_s=900.0,
    culprit=Culprit(rank=2, pid=42, tid=43),
    evidence=(Evidence(EvidenceKind.SINK, "rank 2: futex, for 100.0 s"),),
    victims=(0, 1),
)
HOLDER = WaitTarget("lock", "mutex 0x10 owned by thread 44 (saver)", tid=44, address="0x10")
ROWS = (
    TracedThread(
        0,
        40,
        40,
        "python3",
        "rank",
        None,
        "S",
        "futex",
        "futex: condition 0x7f01",
        99.0,
        0.0,
        None,
        True,
    ),
    TracedThread(
        1,
        41,
        41,
        "python3",
        "rank",
        None,
        "S",
        "futex",
        "futex: condition 0x7f02",
        98.0,
        0.01,
        None,
        True,
    ),
    TracedThread(
        2,
        42,
        42,
        "python3",
        "rank",
        None,
        "S",
        "futex",
        HOLDER.text,
        100.0,
        0.0,
        None,
        True,
        (HOLDER,),
    ),
    TracedThread(
        2, 42, 44, "saver", "rank", None, "D", "fsync", "fsync fd 3 /ckpt (nfs4)", 101.0, 0.0
    ),
    TracedThread(
        0, 40, 45, "helper", "rank", None, "S", "epoll_wait", "epoll_wait fd 3", 500.0, 0.0
    ),
    TracedThread(
        1, 41, 46, "helper", "rank", None, "S", "epoll_wait", "epoll_wait fd 3", 500.0, 0.0
    ),
)
STACKS = (
    Stack(40, 40, 0, ("backward (a.py:1)",), ("cond_wait (libc)",), ("futex_wait",)),
    Stack(41, 41, 1, ("backward (a.py:1)",), ("cond_wait (libc)",), ("futex_wait",)),
    Stack(42, 42, 2, ("save (b.py:9)",), (), ("futex_wait",)),
)
EDGES = [
    {
        "from": "rank 0", "to": "rank 2", "local": "a:1", "remote": "b:2", "state": "ESTABLISHED",
        "unread_bytes": 0, "unsent_bytes": 0, "unacked_bytes": queued, "backoff": 0,
        "send_age_s": 1.0, "receive_age_s": None,
    }
    for queued in (96, 0)
]  # fmt: skip


def record(event: str, fields: dict[str, object]) -> Line:
    return parse(event_line(event, 1_000.0, fields))


def trace() -> list[Line]:
    fields = formatting.verdict_object(HUNG) | {
        "unobserved": ["Python frames (py-spy is not installed)"],
        "edges": EDGES,
        "headline": formatting.headline(HUNG),
        "reasons": formatting.reasons(HUNG),
        "doubt": advice.doubt(HUNG),
        "next_step": advice.next_step(HUNG),
    }
    return [
        record("trace", TRACE.encode(TraceHeader("train", "host", ("pod-a",), "node-1", "1"))),
        record("threads", {"threads": [TRACE.encode(row) for row in ROWS]}),
        record("threads", {"threads": [TRACE.encode(row) for row in ROWS]}),
        record("stacks", {"stacks": [TRACE.encode(stack) for stack in STACKS], "unobserved": []}),
        record("verdict", fields),
        record("end", {"exit_code": 1}),
    ]


TEXT = """\
RANK  ROLE         PID/TID  NAME     S  FOR          CPU  WAITS IN
2     rank         42       python3  S  1m 40s       0%   mutex 0x10 owned by thread 44 (saver)
0,1   rank         40 +1    python3  S  1m 38s-1m 39s  1%   futex: condition 0x7f01
2     rank thread  42/44    saver    D  1m 41s       0%   fsync fd 3 /ckpt (nfs4)
and 2 other threads: 2 in epoll_wait  (--all shows them)

rank 2: thread 42
  python  save (b.py:9)
  kernel  futex_wait

ranks 0,1: thread 40 and 1 more at the same place
  python  backward (a.py:1)
  native  cond_wait (libc)
  kernel  futex_wait

FROM    TO      LOCAL  REMOTE  STATE        UNREAD  UNSENT  UNACKED  BACKOFF  SENT      RECEIVED
rank 0  rank 2  a:1    b:2     ESTABLISHED  0       0       96       0        1.0s ago  never
1 other connections

HUNG  rank 2 (pid 42, thread 43) blocked_lock: waits for a lock that is not released, for 1m 40s; ranks 0, 1 wait
  - rank 2: futex, for 100.0 s [sink]
  not observable: Python frames (py-spy is not installed)
  doubt: the job was not observed while healthy: nothing to compare with
  next: read the frames of rank 2 (pid 42, thread 43): the line that takes the lock, and which thread owns it"""


def squeezed(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_text_view__the_text_has_the_odd_one_first_and_the_verdict_last() -> None:
    view = render.TextView()
    shown = [line for other_line in trace() for line in view.show(other_line)]
    assert shown[0].startswith("train (pod-a) on node-1, ")
    assert squeezed("\n".join(shown[1:])) == squeezed(TEXT)


def test_table__every_thread_has_a_line_of_its_own_when_asked() -> None:
    assert len(render.table(ROWS, every_thread=True)) == 1 + len(ROWS)


def test_markdown_view__markdown_holds_everything_at_the_end() -> None:
    view = render.MarkdownView()
    lines = trace()
    assert [line for other_line in lines[:-1] for line in view.show(other_line)] == []
    text = "\n".join(view.show(lines[-1]))
    for part in ("## train", "**HUNG", "### Threads", "### Frames", "### Connections"):
        assert part in text
    assert text.count("~~~~~~") == 8


def test_live_view__a_live_screen_is_drawn_at_each_table_and_verdict() -> None:
    view = render.LiveView()
    drawn = [bool(view.show(line)) for line in trace()]
    assert drawn == [False, True, True, False, True, False]


def test_merged__one_object_is_the_verdict_with_threads_and_stacks() -> None:
    whole = json.loads(render.merged(trace()))
    assert (whole["event"], whole["verdict"], whole["culprit"]["rank"]) == ("verdict", "HUNG", 2)
    assert len(whole["threads"]) == len(ROWS)
    assert len(whole["stacks"]) == len(STACKS)


def test_table__what_the_job_calls_itself_cannot_command_the_terminal() -> None:
    row = TracedThread(None, 1, 1, "\x1b[2J", "rank", lead=True, text="read /tmp/\x1b]0;x\x07")
    shown = "\n".join([*render.table([row]), *render.stacks([Stack(1, 1, None, ("\x1b[2J",))])])
    assert "\x1b" not in shown
    assert "\x07" not in shown


@pytest.mark.parametrize("cause", list(Cause))
@pytest.mark.parametrize("kind", list(VerdictKind))
@pytest.mark.parametrize("known", [True, False])
def test_next_step__every_verdict_has_a_next_step(
    kind: VerdictKind, cause: Cause, known: bool
) -> None:
    verdict = replace(HUNG, kind=kind, cause=cause, culprit=HUNG.culprit if known else None)
    step = advice.next_step(verdict)
    assert step
    assert "{" not in step


@pytest.mark.parametrize("was_restarted", [False, True])
def test_next_step__who_stopped_a_rank_is_named_where_that_was_seen(was_restarted: bool) -> None:
    sent = Evidence(EvidenceKind.EVENT, "signal 19 was sent by bash (77)")
    stopped = replace(HUNG, cause=Cause.STOPPED, evidence=(*HUNG.evidence, sent))
    step = advice.next_step(stopped, was_restarted=was_restarted)
    assert f"({sent.text})" in step
    unseen = advice.next_step(replace(stopped, evidence=()), was_restarted=was_restarted)
    assert "signal" not in unseen


RANKS = [
    ([], "-"),
    ([None], "-"),
    ([3], "3"),
    ([1, 0], "0,1"),
    ([0, 1, 2, 5, 7, 8, 9], "0-2,5,7-9"),
]


@pytest.mark.parametrize(("ranks", "text"), RANKS)
def test_ranks_text__ranks_are_written_as_runs(ranks: list[int | None], text: str) -> None:
    assert ranks_text(ranks) == text
