"""`run --live`: the board of `kubectl kcover top` for this job, in the lower lines of the terminal."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from kcover_ebpf.api.fault_report import FaultReport, ReportedJob
from kcover_ebpf.diagnosis.decisions import Decision
from kcover_ebpf.diagnosis.job import Job
from kcover_ebpf.gang.gang_snapshot import ReceivedReport
from kcover_ebpf.model.roles import Role
from kcover_ebpf.model.verdict import Verdict
from kcover_ebpf.output import formatting
from kcover_ebpf.output.board_text import lines_of_one
from kcover_ebpf.output.job_board import (
    BoardJob,
    BoardNode,
    Cell,
    Mark,
    cell_name,
    cells_of,
    patience_of,
)
from kcover_ebpf.run.out import Out
from kcover_ebpf.run.terminal_table import HEIGHT, LiveSink
from kcover_ebpf.settings import Act

_ROW_RANKS = 16
"""Ranks in one line: as many as are shown by number."""
_DONE = {Act.SHUTDOWN: "ended", Act.RESTART: "restarted"}


def board_of_run(job: Job, name: str, verdict: Verdict | None, act: Act, now_s: float) -> BoardJob:
    """The job as of its last pass; `verdict`: the last one reported, `now_s`: unix seconds.

    While no fault and no stall is known, a waiting rank counts as training: ranks wait for each other all the time.
    """
    ranks = [rank for rank in job.snapshot().processes.values() if rank.role is Role.RANK]
    ranks.sort(key=lambda rank: (rank.rank is None, rank.rank or 0, rank.pid))
    is_faulty = verdict is not None and verdict.opens_incident
    if is_faulty or job.attention.stalled:
        culprit = verdict.culprit if verdict is not None and is_faulty else None
        report = FaultReport(
            os.uname().nodename,
            now_s,
            0,
            job=ReportedJob(name, {}),
            suspicious=True,
            ranks=tuple(ranks),
        )
        cells = cells_of(ReceivedReport(report, now_s), culprit, now_s)
    else:
        mark = Mark.TRAINS if job.pace.trained else Mark.STARTS
        cells = tuple(Cell(cell_name(rank), mark) for rank in ranks)
    state = {Mark.TRAINS: "training", Mark.STARTS: "starting"}
    worst = min((cell.mark for cell in cells), default=Mark.STARTS)
    return BoardJob(
        namespace="",
        name=name,
        kind=f"act {act.value}",
        state=verdict.kind.value
        if verdict is not None and is_faulty
        else state.get(worst, "stalled"),
        text=_text(verdict, act, now_s) if verdict is not None and is_faulty else "",
        incident=verdict.incident if verdict is not None and is_faulty else None,
        nodes=tuple(sorted(_rows(cells), key=lambda board_node: board_node.order)),
    )


def _rows(cells: Sequence[Cell]) -> list[BoardNode]:
    parts = [cells[at : at + _ROW_RANKS] for at in range(0, len(cells), _ROW_RANKS)]
    return [BoardNode(f"from {part[0].name}", tuple(part)) for part in parts]


def _text(verdict: Verdict, act: Act, now_s: float) -> str:
    said = formatting.headline(verdict)
    if verdict.acts_at_s is None or act not in _DONE:
        return said
    return f"{patience_of(verdict.acts_at_s - now_s, _DONE[act])} ({verdict.acts_why}); {said}"


class BoardSink(LiveSink):
    """Draws the board instead of the table of waits."""

    def __init__(self, out: Out, on_change: Callable[[str], None], name: str, act: Act) -> None:
        """`on_change`: as for `LiveSink`; `name`: of the job."""
        super().__init__(out, on_change)
        self._name, self._act = name, act
        self.job_of: Callable[[], Job | None] = lambda: None
        """The job now under watch; None before the first."""
        self._doing = ""
        """What is being done to the job; empty while it is only watched."""

    def on_start(self, fields: dict[str, Any]) -> None:
        """Show that the job runs, or runs again."""
        self._doing = ""
        super().on_start(fields)

    def on_action(self, decision: Decision, text: str) -> None:
        """Print the action above the board, and show on it that the job is being ended or restarted."""
        super().on_action(decision, text)
        if decision.act in _DONE:
            self._doing = f"is being {_DONE[decision.act]}: {text}"
            self._draw()

    def _content(self, columns: int) -> list[str]:
        job = self.job_of()
        if job is None:
            return []
        if self._doing:
            return [f"{self._name}: {self._doing}"[:columns]]
        board = board_of_run(job, self._name, self._verdict, self._act, time.time())
        return lines_of_one(board, columns, HEIGHT, colours=True)
