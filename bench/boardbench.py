"""What the boards cost to draw: CPU time to merge what is known of all ranks and to make the lines of a screen.

python -m bench.boardbench [--ranks N] [--rounds N]     prints a line of JSON for each board

`top`: reports of nodes of eight ranks and an incident, as `kubectl kcover top` has them once they are read; of these
ranks all wait for one. `run`: the same number of ranks on one host, with the histories that the sensor keeps of them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace

from bench import machine
from kcover_ebpf.api.fault_report import FaultReport, ReportedJob
from kcover_ebpf.api.incident import Incident, JobRef, Phase, Status
from kcover_ebpf.diagnosis.job import Job
from kcover_ebpf.facts.host import ProcessSeen
from kcover_ebpf.facts.kernel import Tick
from kcover_ebpf.facts.syscalls import SyscallTable
from kcover_ebpf.gang.gang_snapshot import ReceivedReport
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.rank_snapshot import RankSnapshot
from kcover_ebpf.model.roles import Role
from kcover_ebpf.model.verdict import Cause, Culprit, Verdict, VerdictKind
from kcover_ebpf.output.board_text import lines_of, lines_of_one
from kcover_ebpf.output.job_board import board_of
from kcover_ebpf.run.live_board import board_of_run
from kcover_ebpf.settings import Act, Policy

_NOW_S = 1_700_000_000.0
_SELECTOR = {"job": "llm"}
_NODE_RANKS = 8
_WIDTH, _HEIGHT = 200, 50
_LIVE_HEIGHT = 13


def _report(node: int) -> ReceivedReport:
    first = node * _NODE_RANKS
    ranks = tuple(
        RankSnapshot(Pid(number), Role.RANK, State.FUTEX, age_s=9.0, rank=number)
        for number in range(first, first + _NODE_RANKS)
    )
    job = ReportedJob("llm", _SELECTOR, "Job")
    report = FaultReport(f"n{node:04}", _NOW_S, 1, job=job, suspicious=True, ranks=ranks)
    return ReceivedReport(report, _NOW_S)


def _incident(rank: int) -> Incident:
    status = Status(
        Phase.OPEN,
        verdict=Verdict(
            kind=VerdictKind.HUNG,
            cause=Cause.STOPPED,
            since_s=_NOW_S - 9.0,
            acts_at_s=_NOW_S + 41.0,
            culprit=Culprit(rank=rank, node=f"n{rank // _NODE_RANKS:04}"),
        ),
    )
    return Incident("ml", "llm-1", JobRef("Job", "llm", "u", "batch/v1"), _SELECTOR, status=status)


def top_drawn(ranks: int) -> Callable[[], object]:
    """Merges and draws the board of a cluster once."""
    reports = [("ml", _report(node)) for node in range(ranks // _NODE_RANKS)]
    incident = _incident(ranks // 2)

    def draw() -> object:
        return lines_of(board_of(reports, [incident], _NOW_S), _WIDTH, _HEIGHT, colours=True)

    return draw


def run_drawn(ranks: int) -> Callable[[], object]:
    """Draws the board of a run once, as of another pass each time."""
    job = Job(Policy(), SyscallTable("x86_64"))
    for number in range(ranks):
        environ = {"RANK": str(number), "WORLD_SIZE": str(ranks)}
        job.observe(ProcessSeen(NS, Pid(100 + number), Pid(1), "python3", ("python3",), environ))
    culprit = Culprit(rank=ranks // 2, pid=100 + ranks // 2)
    verdict = Verdict(VerdictKind.HUNG, Cause.STOPPED, job="llm", incident="llm-1", culprit=culprit)
    due = replace(verdict, acts_at_s=_NOW_S + 41.0, acts_why="its own past")
    now_ns = 2 * NS

    def draw() -> object:
        nonlocal now_ns
        now_ns += NS
        job.observe(Tick(now_ns, NS, 0, late=False))
        board = board_of_run(job, "llm", due, Act.RESTART, _NOW_S)
        return lines_of_one(board, _WIDTH, _LIVE_HEIGHT, colours=True)

    return draw


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="bench/boardbench.py", description=__doc__)
    parser.add_argument("--ranks", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=50)
    args = parser.parse_args()
    for name, draw in (("top", top_drawn(args.ranks)), ("run", run_drawn(args.ranks))):
        costs_ms = []
        for _ in range(args.rounds):
            began_s = time.process_time()
            draw()
            costs_ms.append(1000 * (time.process_time() - began_s))
        costs_ms.sort()
        found = {
            "board": name,
            "ranks": args.ranks,
            "median_ms": round(costs_ms[len(costs_ms) // 2], 1),
        }
        print(
            json.dumps(found | {"worst_ms": round(costs_ms[-1], 1), "machine": machine.described()})
        )


if __name__ == "__main__":
    main()
