"""Judges a job that was stuck before it was watched, by what the kernel remembers of the time before. Pure.

A rank that waits busily, as ranks of MPI do, looks like one that computes until it was observed for long with a CPU of
its own. But nearly every pass finds it in polling calls, with or without a CPU, and the kernel keeps the time at which
each rank last sent something. So if no rank has sent anything to another one for seconds, those that only poll have
been waiting since then.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.diagnosis.evidence import evidence, wait_chain
from kcover_ebpf.diagnosis.evidence.snapshot import Finding, JobSnapshot, blame
from kcover_ebpf.diagnosis.failures import startup
from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.diagnosis.history.sampled_call import asks_again
from kcover_ebpf.diagnosis.job import Job
from kcover_ebpf.diagnosis.judge.judge import judge
from kcover_ebpf.diagnosis.waits.classify import with_cpu
from kcover_ebpf.facts.kernel import NO_SYSCALL, TaskState
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.rank_snapshot import RankSnapshot
from kcover_ebpf.model.verdict import Cause, Evidence, EvidenceKind, VerdictKind
from kcover_ebpf.tunables.trace import (
    ASKED_PART,
    ASKED_PASSES_KEPT,
    ASKED_PASSES_NEEDED,
    HELPED_SHARE,
    QUIET_S,
    UNEXPLAINED_S,
)

_AT_WORK = frozenset({Cause.COMPUTING, Cause.LOADING, Cause.CHECKPOINT})


@dataclass(slots=True)
class _Pass:
    since_ns: int
    """Boottime of the first of consecutive passes that found only polling and its own code."""
    asked: deque[bool]
    now_ns: int
    others_began_ns: int
    """CPU time of the process's other threads at that pass, in nanoseconds."""
    others_ns: int


class PassHistory:
    """What the lead threads of the ranks did in the last passes of one run."""

    def __init__(self) -> None:
        self._seen: dict[Pid, _Pass] = {}

    def note(self, job: Job) -> None:
        """Note the state of all ranks; called after each pass."""
        for pid, process in job.members.ranks.items():
            if process.lead is None:
                continue
            sample = process.lead.sample
            asks = asks_again(sample, job.table)
            if asks or (sample.syscall == NO_SYSCALL and sample.state is TaskState.RUNNING):
                others_ns = (process.totals.cpu_ns if process.totals else 0) - sample.cpu_ns
                asked = deque[bool](maxlen=ASKED_PASSES_KEPT)
                new = _Pass(job.now_ns, asked, job.now_ns, others_ns, others_ns)
                seen_pass = self._seen.setdefault(pid, new)
                seen_pass.asked.append(asks)
                seen_pass.now_ns, seen_pass.others_ns = job.now_ns, others_ns
            else:
                self._seen.pop(pid, None)

    def asks_since_ns(self, pid: Pid) -> int | None:
        """Boottime since which a rank only polls, with its own code in between; None if it does more."""
        seen_pass = self._seen.get(pid)
        if seen_pass is None or len(seen_pass.asked) < ASKED_PASSES_NEEDED:
            return None
        # a thread that only polls may wait for other threads of its process, which compute
        helped_ns = seen_pass.others_ns - seen_pass.others_began_ns
        alone = helped_ns < HELPED_SHARE * (seen_pass.now_ns - seen_pass.since_ns)
        asks = sum(seen_pass.asked) * ASKED_PART >= len(seen_pass.asked)
        return seen_pass.since_ns if alone and asks else None


def quiet_since_ns(job: Job, snapshot: JobSnapshot) -> int | None:
    """Boottime of the last data that a rank sent to another one here; None if there is no such connection.

    A rank without any is not that far yet: MPI connects when there is something to send.
    """
    lasts = [_last_sent_ns(process, snapshot) for process in job.members.ranks.values()]
    return max(lasts) if len(lasts) > 1 and any(lasts) else None


def _last_sent_ns(process: ProcessHistory, snapshot: JobSnapshot) -> int:
    # a rank that serves the others' store polls it as well
    others = snapshot.ranks.keys() - {process.pid}
    return max(
        (
            socket.last_send_ns
            for socket in process.sockets.values()
            if socket.state == "ESTABLISHED" and snapshot.ends.peer(socket) in others
        ),
        default=0,
    )


def _is_quiet(job: Job, snapshot: JobSnapshot) -> bool:
    since_ns = quiet_since_ns(job, snapshot)
    return since_ns is not None and job.now_ns - since_ns >= QUIET_S * NS


def snapshot_of(job: Job, history: PassHistory) -> JobSnapshot:
    """The snapshot of a job, in which ranks that only poll while no process sends anything count as waiting."""
    # a run in the middle of a job did not observe its start, and other hosts may have the missing ranks
    snapshot = replace(job.snapshot(), starting=False)
    if not _is_quiet(job, snapshot):
        return snapshot
    since_ns = {pid: history.asks_since_ns(pid) for pid in snapshot.ranks}
    if not any(since_ns.values()):
        return snapshot
    changed = dict(snapshot.processes)
    starved = any(snapshot.ranks[pid].state is State.THROTTLED for pid in since_ns if since_ns[pid])
    for pid, rank in snapshot.ranks.items():
        began_ns, lead = since_ns[pid], job.members.views[pid].lead
        if began_ns is not None:
            age_s = (job.now_ns - began_ns) / NS
            changed[pid] = replace(rank, state=State.PEERS, age_s=age_s, effort=None)
        elif rank.state is State.THROTTLED and starved and lead is not None:
            # no process gets a CPU here, which says nothing about a quota of this rank
            changed[pid] = replace(rank, state=with_cpu(job.members.views[pid], lead))
    return replace(snapshot, processes=changed)


def judge_again(job: Job, snapshot: JobSnapshot, finding: Finding) -> Finding:
    """The finding by that snapshot, or the given `finding` of the job itself if it shows nothing."""
    again = judge(snapshot)
    named = None if finding.pid is None else snapshot.processes.get(finding.pid)
    if named is not None and named.state is State.PEERS:
        # it gets no CPU, but it would only poll with it
        return again
    cycle = again.cause is Cause.WAIT_CYCLE
    if again.cause is Cause.TRAINING or (
        cycle and startup.awaits_missing_rank(job.members, job.pace)
    ):
        return finding
    return again


def a_rank_polls(job: Job, snapshot: JobSnapshot, history: PassHistory) -> bool:
    """True while a rank waits busily and no process sends: its wait may have begun before the run."""
    return _is_quiet(job, snapshot) and any(history.asks_since_ns(pid) for pid in snapshot.ranks)


def name_who_is_waited_for(job: Job, snapshot: JobSnapshot, finding: Finding) -> Finding:
    """UNKNOWN with the one rank that all others have long waited for, though it may be working; else `finding`.

    Work that is visible (bytes from or to storage, a sleep that ends) stays WORKING.
    """
    quiet_ns = quiet_since_ns(job, snapshot)
    quiet_s = None if quiet_ns is None else (job.now_ns - quiet_ns) / NS
    named = waited_for(snapshot, finding, quiet_s)
    first = snapshot.ranks.get(named.pid) if named is not finding and named.pid else None
    if first is None or gets_on(job, first, wait_chain.follow(snapshot, first)):
        return finding
    return named


def waited_for(snapshot: JobSnapshot, finding: Finding, quiet_s: float | None) -> Finding:
    """As `name_who_is_waited_for`, whether or not work is visible.

    `quiet_s`: seconds since any rank sent something to another; None if unknown.
    """
    if finding.kind is not VerdictKind.WORKING or finding.cause not in _AT_WORK:
        return finding
    ranks = list(snapshot.ranks.values())
    waiting, sinks = wait_chain.split(snapshot, ranks)
    if len(sinks) != 1 or not waiting or not wait_chain.is_effort(snapshot, sinks[0]):
        return finding
    first, end = sinks[0], wait_chain.follow(snapshot, sinks[0])
    waited_s = min(rank.age_s for rank in waiting)
    # waits that begin again all the time are only as old as the run
    quiet = quiet_s is not None and quiet_s >= UNEXPLAINED_S
    if waited_s < UNEXPLAINED_S and not (waited_s >= QUIET_S and quiet):
        return finding
    text = f"all {len(waiting)} other ranks have waited for at least {waited_s:.1f} s"
    said = [*finding.evidence, Evidence(EvidenceKind.PEERS, text)]
    if quiet_s is not None:
        text = f"no rank has sent anything to another rank over TCP for {quiet_s:.1f} s"
        said.append(Evidence(EvidenceKind.EDGE, text))
    said += evidence.sender(snapshot, first)
    return blame(snapshot, VerdictKind.UNKNOWN, finding.cause, first, said, end)


def gets_on(job: Job, first_rank: RankSnapshot, end_rank: RankSnapshot) -> bool:
    """True if a rank, its children or the end of its chain visibly makes progress."""
    if State.SLEEPING in (first_rank.state, end_rank.state):
        return True
    views = [job.members.views[pid] for pid in (first_rank.pid, end_rank.pid)]
    views += job.members.children(first_rank.pid)
    return any(
        process.efforts.storage_moved_ns
        and job.now_ns - process.efforts.storage_moved_ns < UNEXPLAINED_S * NS
        for process in views
    )
