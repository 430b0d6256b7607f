"""One run over a job as a stream of JSON lines: the table at once, then the stacks, then the verdict."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kcover_ebpf import __version__
from kcover_ebpf.api.fault_report import REPORT, FaultReport, PodRef
from kcover_ebpf.diagnosis import oneshot_waits
from kcover_ebpf.diagnosis.evidence import wait_chain
from kcover_ebpf.diagnosis.evidence.odd_stack import innermost
from kcover_ebpf.diagnosis.job import Job
from kcover_ebpf.diagnosis.oneshot_waits import PassHistory
from kcover_ebpf.facts.python_stacks import PythonStack, PythonStacksSeen
from kcover_ebpf.facts.syscalls import SyscallTable
from kcover_ebpf.gang import rank_report, report_size, unwatched
from kcover_ebpf.host.thread_reader import ThreadReader, ThreadReadings
from kcover_ebpf.ids import Pid
from kcover_ebpf.kernel.sampler import KernelSampler
from kcover_ebpf.model.verdict import Verdict
from kcover_ebpf.output import formatting
from kcover_ebpf.settings import Settings
from kcover_ebpf.trace import advice, passes, tcp_connections
from kcover_ebpf.trace.passes import Settling
from kcover_ebpf.trace.pod_target import PodTarget
from kcover_ebpf.trace.records import (
    TRACE,
    Conclusion,
    StackTable,
    ThreadTable,
    TracedThread,
    TraceHeader,
    exit_code_of,
)
from kcover_ebpf.trace.stack_helpers import Frames, Helpers
from kcover_ebpf.trace.thread_table import Table
from kcover_ebpf.tunables.trace import HELPERS_S, LIVE_S, STALL_S, TABLE_PASSES
from kcover_ebpf.watching.loop import Sensor, Target

_MOST_STACKS = 64
_MOST_CULPRIT_THREADS = 8


class Tracer:
    """Traces one job of this host."""

    def __init__(self, kernel: KernelSampler, target: Target, settings: Settings) -> None:
        self._target = target
        self._sensor = Sensor(kernel, target, settings)
        self._sensor.job.pace.unlearned_s = STALL_S
        machine = os.uname().machine
        self._table = Table(
            self._sensor.job,
            SyscallTable(machine),
            ThreadReader(ThreadReadings(machine)),
            self._pods,
        )
        self._helpers: Helpers | None = None
        self._history = PassHistory()

    def once(self, *, brief: bool = False) -> Iterator[str]:
        """One trace of some three seconds; the last line but one is the verdict, the last its exit code.

        `brief`: ends after the table of threads, if the verdict is known otherwise.
        """
        yield self._header()
        rows: list[TracedThread] = []
        patience = Settling(self._history)
        try:
            for number in passes.passes(self._sensor, self._history):
                if number <= TABLE_PASSES:
                    self._table.note()
                if number == TABLE_PASSES:
                    rows = self._table.rows()
                    yield self._rows(rows)
                    self._helpers = Helpers(_worth_a_stack(rows, None))
                if patience.is_over(self._sensor, number) or (brief and number > TABLE_PASSES):
                    break
            rows = self._table.rows()
            verdict = self._conclude()
            yield self._rows(rows)
            blind: list[str] = []
            yield self._stacks(rows, verdict, blind)
            # again, because the ranks' stacks explain it
            yield from self._conclusion(self._conclude(), blind)
        finally:
            self.close()

    def live(self) -> Iterator[str]:
        """Tables and verdicts, repeated until the caller stops."""
        yield self._header()
        due_s, patience, judged = 0.0, Settling(self._history), False
        for number in passes.passes(self._sensor, self._history):
            if number <= TABLE_PASSES:
                self._table.note()
            judged |= patience.is_over(self._sensor, number)
            if number < TABLE_PASSES or time.monotonic() < due_s:
                continue
            due_s = time.monotonic() + LIVE_S
            yield self._rows(self._table.rows())
            if judged:
                yield from self._conclusion(self._conclude(), [])

    def close(self) -> None:
        """Kill the stack helpers that still run."""
        if self._helpers is not None:
            self._helpers.close()

    def _pods(self) -> Mapping[int, str]:
        return self._target.pod_names if isinstance(self._target, PodTarget) else {}

    def _conclude(self) -> Verdict:
        """The verdict at this moment; its culprit with pod and node, if known."""
        verdict = passes.conclude(self._sensor, self._history)
        culprit = verdict.culprit
        pod = self._pods().get(culprit.pid) if culprit and culprit.pid else None
        if culprit is None or pod is None:
            return verdict
        placed = replace(culprit, pod=pod, node=os.environ.get("NODE_NAME"))
        return replace(verdict, culprit=placed)

    def _header(self) -> str:
        pods = tuple(sorted(set(self._pods().values())))
        header = TraceHeader(
            self._target.name, os.uname().nodename, pods, os.environ.get("NODE_NAME"), __version__
        )
        return _line("trace", TRACE.encode(header))

    def _rows(self, rows: Sequence[TracedThread]) -> str:
        return _line("threads", TRACE.encode(ThreadTable(tuple(rows))))

    def _stacks(self, rows: Sequence[TracedThread], verdict: Verdict, blind: list[str]) -> str:
        frames = Frames()
        if self._helpers is not None:
            frames = self._helpers.collect(HELPERS_S, self._table.numbers)
        seen = set(frames.native)
        late = [pair for pair in _worth_a_stack(rows, verdict) if pair[:2] not in seen]
        if late:
            # the thread at the end of the chain was not known when the first were read
            self._helpers = Helpers(late)
            more = self._helpers.collect(HELPERS_S, self._table.numbers)
            frames.python |= more.python
            frames.native |= more.native
            frames.kernel |= more.kernel
            frames.blind += [text for text in more.blind if text not in frames.blind]
        ranks = {(row.pid, row.tid): row.rank for row in rows}
        keys = dict.fromkeys(pair[:2] for pair in _worth_a_stack(rows, verdict))
        if verdict.culprit is not None:
            # the other half of a deadlock: another Python thread of the same process
            same = [key for key in frames.python if key[0] == verdict.culprit.pid]
            keys |= dict.fromkeys(same[:_MOST_CULPRIT_THREADS])
        stacks = tuple(frames.stack(pid, tid, ranks.get((pid, tid))) for pid, tid in keys)
        self._sensor.job.observe(_of_ranks(rows, frames, self._sensor.job.now_ns))
        blind += frames.blind
        return _line("stacks", TRACE.encode(StackTable(stacks, tuple(blind))))

    def _conclusion(self, verdict: Verdict, blind: Sequence[str]) -> Iterator[str]:
        job = self._sensor.job
        fields = formatting.verdict_object(verdict)
        fields["unobserved"] = [*fields["unobserved"], *blind]
        conclusion = Conclusion(
            headline=formatting.headline(verdict),
            reasons=tuple(formatting.reasons(verdict)),
            edges=tuple(tcp_connections.edges(job.members.views.values(), job.now_ns)),
            doubt=tuple(advice.doubt(verdict)),
            next_step=advice.next_step(verdict),
        )
        fields |= TRACE.encode(conclusion)
        if isinstance(self._target, PodTarget):
            node = os.environ.get("NODE_NAME") or os.uname().nodename
            fields["report"] = _report(
                job, self._history, verdict, node, self._pods(), self._target.uids
            )
        yield _line("verdict", fields)
        yield _line("end", {"exit_code": exit_code_of(verdict.kind.value)})


def _worth_a_stack(
    rows: Sequence[TracedThread], verdict: Verdict | None
) -> list[tuple[int, int, str]]:
    """(pid, tid, name of the process) of the threads that may explain the job, the culprit's first."""
    culprit = verdict.culprit if verdict is not None else None
    wanted: dict[tuple[int, int], None] = {}
    if culprit is not None:
        for row in rows:
            if row.tid == culprit.tid or (row.pid == culprit.pid and row.lead):
                wanted[row.pid, row.tid] = None
    leads = [row for row in rows if row.lead and row.role in ("rank", "loader")]
    for row in sorted(leads, key=lambda lead: lead.role != "rank"):
        wanted[row.pid, row.tid] = None
    by_tid = {row.tid: row for row in rows}
    for row in rows:
        for target in row.waits_for:
            if target.kind in ("lock", "thread") and target.tid in by_tid:
                wanted[row.pid, row.tid] = None
                wanted[by_tid[target.tid].pid, target.tid] = None
    names = {row.pid: row.comm for row in rows if row.lead}
    return [(pid, tid, names.get(pid, "")) for pid, tid in wanted][:_MOST_STACKS]


def _of_ranks(rows: Sequence[TracedThread], frames: Frames, now_ns: int) -> PythonStacksSeen:
    """The stacks of the threads that represent the ranks."""
    stacks = tuple(
        PythonStack(Pid(row.pid), innermost(spied.frames))
        for row in rows
        if row.lead and row.role == "rank"
        if (spied := frames.python.get((row.pid, row.tid))) is not None and spied.frames
    )
    return PythonStacksSeen(now_ns, stacks)


def _report(
    job: Job,
    history: PassHistory,
    verdict: Verdict,
    node: str,
    pods: Mapping[int, str],
    uids: Mapping[str, str],
) -> dict[str, Any]:
    """What a run over the pods of one node sends to be judged with other nodes, as JSON: as an agent would report it.

    `verdict`: of this node alone; `pods`: process -> its pod; `uids`: name of the pod -> uid.
    """
    now_s = time.time()
    of_pid = {Pid(pid): uids[pod] for pid, pod in pods.items() if pod in uids}
    snapshot = oneshot_waits.snapshot_of(job, history)
    getting_on = {
        pid
        for pid, rank in snapshot.ranks.items()
        if oneshot_waits.gets_on(job, rank, wait_chain.follow(snapshot, rank))
    }
    report = FaultReport(
        node=node,
        time_s=now_s,
        sequence=0,
        pods=tuple(PodRef(name, uid) for name, uid in sorted(uids.items())),
        # the person who runs the trace believes that it is stuck
        suspicious=True,
        trained=job.pace.trained,
        verdict=rank_report.verdict_of(
            verdict, node, now_s, of_pid, {uid: name for name, uid in uids.items()}
        ),
    )
    sent = unwatched.streamed(snapshot, getting_on)
    return REPORT.encode(report_size.fitted(rank_report.carrying(report, sent, of_pid)))


def _line(event: str, fields: dict[str, object]) -> str:
    return formatting.event_line(event, time.time(), fields)
