"""Boards of jobs, small and large, for tests of what draws them."""

from __future__ import annotations

from kcover_ebpf.api.incident import Incident, JobRef, Phase, Status
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.verdict import Cause, Culprit, Verdict, VerdictKind
from kcover_ebpf.output.job_board import BoardJob, board_of
from tests.unit.support.judged import judged
from tests.unit.support.report_builders import NOW_S, SELECTOR, rank, report

HUNG = (report("a", rank(0), rank(2)), report("b", rank(1, State.STOPPED, 9.0), rank(3)))
HANG = Status(
    Phase.OPEN,
    verdict=Verdict(
        kind=VerdictKind.HUNG,
        cause=Cause.STOPPED,
        since_s=NOW_S - 9.0,
        acts_at_s=NOW_S + 41.0,
        acts_why="the job was silent for 20 s before",
        culprit=Culprit(rank=1, node="b", pod="j-1"),
    ),
)


def incident(status: Status = HANG, **more) -> Incident:
    ref = JobRef("Job", "j", "ju", "batch/v1")
    return Incident("ns", "j-1", ref, SELECTOR, status=status, **more)


def board(*seen, incidents=(), now_s: float = NOW_S) -> tuple[BoardJob, ...]:
    return board_of([("ns", received) for received in seen], incidents, now_s)


def big_jobs() -> tuple[BoardJob, ...]:
    """1,000 ranks on 125 nodes that all wait for one, and ten small jobs beside them."""
    seen = [
        report(
            f"n{node:03}",
            *(
                rank(number, State.STOPPED if number == 437 else State.FUTEX, pid=number)
                for number in range(node * 8, node * 8 + 8)
            ),
        )
        for node in range(125)
    ]
    culprit = Culprit(rank=437, node="n054")
    reports = [("ns", received) for received in seen]
    small = report("s", rank(0), ranks=(), suspicious=False)
    reports += [(f"small{number}", small) for number in range(10)]
    return board_of(reports, [incident(judged(HANG, culprit=culprit))], NOW_S)
