"""Merges the snapshots that the nodes of a job sent into the one that `diagnosis.judge.judge` reads.

Processes of different nodes may have the same pid, so each gets a new one. The ages of all reports are rebased to one
moment of the controller's clock. Events on two nodes that are less than `REPORTS_APART_S` apart have no order.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from kcover_ebpf.api.agent_lease import AgentLease
from kcover_ebpf.api.fault_report import FaultReport
from kcover_ebpf.api.pods import Pod
from kcover_ebpf.dataclass import dataclass, replace
from kcover_ebpf.diagnosis.evidence.snapshot import JobSnapshot
from kcover_ebpf.diagnosis.history.stacks import KnownWaits
from kcover_ebpf.diagnosis.membership.endpoints import EndpointIndex
from kcover_ebpf.gang import collective_answers, outside
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.model.collective_counts import Recordings
from kcover_ebpf.model.rank_snapshot import RankPace, RankSnapshot
from kcover_ebpf.model.roles import Role
from kcover_ebpf.model.verdict import Verdict
from kcover_ebpf.settings import Policy
from kcover_ebpf.tunables.recovery import REPORTS_APART_S, REPORTS_VAGUE_S

_PID_BITS = 22
"""Bits of the kernel's largest pid (PID_MAX_LIMIT)."""


@dataclass(frozen=True, slots=True)
class ReceivedReport:
    """A report with its arrival; times are unix seconds by the controller's clock."""

    report: FaultReport
    arrived_s: float
    delay_s: float | None = 0.0
    """Seconds from its making to its arrival; None if nothing is known of its node's clock."""
    confirmed_s: float | None = None
    """When its agent last confirmed that it is still true; None if never."""
    heard_s: float | None = None
    """When the Lease of its agent was last renewed, whether or not that confirmed this report; None without a Lease."""
    valid_s: float | None = None
    """Seconds for which a confirmation is valid; None without a Lease."""
    paces: tuple[RankPace, ...] = ()
    """How much its ranks waited for those of other nodes, as of the last confirmation."""

    @property
    def current_s(self) -> float:
        """When it was last known to be true."""
        return max(self.arrived_s, self.confirmed_s or 0.0)

    @property
    def spoke_s(self) -> float:
        """When its node was last in the reported state, corrected by the delay of the report."""
        return max(self.arrived_s - (self.delay_s or 0.0), self.confirmed_s or 0.0)

    def age_s(self, now_s: float) -> float:
        """Seconds since it arrived or was confirmed, never negative."""
        return max(0.0, now_s - self.current_s)

    def since_made_s(self, now_s: float) -> float:
        """Seconds since it was made, as far as known: its ages count from then."""
        return max(0.0, now_s - self.arrived_s) + (self.delay_s or 0.0)

    def verdict(self, now_s: float) -> Verdict | None:
        """The node's own verdict, by the controller's clock."""
        verdict = self.report.verdict
        made_s = now_s - self.since_made_s(now_s)
        return None if verdict is None else verdict.shifted(made_s - self.report.time_s)

    def unheard_s(self, now_s: float) -> float:
        """Seconds since anything arrived from its agent."""
        return max(0.0, now_s - max(self.current_s, self.heard_s or 0.0))

    def is_stale(self, now_s: float) -> bool:
        """True once it says nothing about the present any more."""
        return self.age_s(now_s) > max(self.report.expires_after_s, self.valid_s or 0.0)


def confirmed(received: ReceivedReport, lease: AgentLease, renewed_s: float) -> ReceivedReport:
    """The report with what the Lease of its agent adds. `renewed_s`: unix seconds by the controller's clock."""
    report = received.report
    holds = report.sequence in lease.current
    others = tuple(ack for ack in lease.acks if ack not in report.acks)
    return replace(
        received,
        report=replace(report, acks=(*report.acks, *others)) if others else report,
        confirmed_s=renewed_s if holds else received.confirmed_s,
        heard_s=renewed_s,
        valid_s=float(lease.valid_s),
        paces=lease.paces.get(report.sequence, ()),
    )


@dataclass(frozen=True, slots=True)
class GangSnapshot:
    """The snapshot of all nodes, and the origin of each process in it."""

    job: JobSnapshot
    who: Mapping[Pid, tuple[FaultReport, RankSnapshot]]
    """New pid of each process -> the report that contained it, and its snapshot with the pid of its own node."""


def gather(
    seen: Sequence[ReceivedReport],
    now_s: float,
    policy: Policy,
    *,
    whole: bool = True,
    resumed_age_s: float = math.inf,
    pods: Sequence[Pod] = (),
) -> GangSnapshot:
    """One snapshot of all ranks that the reports contain. The order of the steps matters.

    1. The ages of each report are advanced to `now_s`, and no rank is in its state for longer than `resumed_age_s`.
    2. A wait that one node knows to end by itself is known on all nodes, because ranks run the same program.
    3. Payload is kept only on connections that may lead to another rank. A node cannot decide this alone.
    4. If all ranks of the job are present, each wait for an address is classified as one for a peer or for an outside
    service; else those that lead to no pod, or to a port of a pod on which no process of the job listens, are OUTSIDE.
    5. The first and the last sender lose their lead if another node is too close to call (`_unordered`).

    `whole`: no rank is on a node of which nothing is known now. `resumed_age_s`: seconds since a stopped rank was
    resumed on any node. `pods`: those of the gang.
    """
    who: dict[Pid, tuple[FaultReport, RankSnapshot]] = {}
    processes: dict[Pid, RankSnapshot] = {}
    answers: list[collective_answers.CountsOfNode] = []
    for index, received in enumerate(seen):
        late_s = received.since_made_s(now_s)
        answers += _answer(index, received.report, late_s)
        for rank in received.report.ranks:
            pid = _pid(index, rank.pid)
            who[pid] = received.report, rank
            processes[pid] = _rebased(index, rank, late_s).capped(resumed_age_s)
    processes = _with_known_waits(processes)
    everyone = [process for process in processes.values() if process.role is Role.RANK]
    size = max((rank.world_size or 0 for rank in everyone), default=0)
    endpoints = EndpointIndex(processes.values(), elsewhere=size > len(everyone))
    processes = {pid: _between_ranks(process, endpoints) for pid, process in processes.items()}
    ends = outside.ends_of(everyone, [received.report for received in seen], pods)
    processes = outside.placed(processes, ends, now_s, complete=not endpoints.elsewhere)
    snapshot = JobSnapshot(
        now_ns=round(now_s * NS),
        policy=policy,
        processes=_unordered(processes, who, _vague(seen)),
        ends=endpoints,
        whole=whole,
        cadence_known=all(received_report.report.knows_cadence for received_report in seen),
        lossy=any(received_report.report.lossy for received_report in seen),
        knows_waits=_knows_waits(seen, processes.values()),
        starting=len(everyone) < size and not any(received.report.trained for received in seen),
        collectives=collective_answers.joined(answers, everyone),
        recordings=_recordings(seen, now_s),
    )
    return GangSnapshot(snapshot, who)


def _knows_waits(seen: Sequence[ReceivedReport], processes: Iterable[RankSnapshot]) -> bool:
    reported = any(received.report.knows_waits for received in seen)
    return reported or any(process.known_wait for process in processes)


def _recordings(seen: Sequence[ReceivedReport], now_s: float) -> Recordings | None:
    """Recordings of all nodes, with the age of the oldest."""
    answered = [
        (index, received.report.recorders, received.since_made_s(now_s))
        for index, received in enumerate(seen)
        if received.report.recorders is not None
    ]
    if not answered:
        return None
    return Recordings(
        max(max(said.age_s, 0.0) + late_s for _, said, late_s in answered),
        tuple(
            replace(record, pid=_pid(index, record.pid))
            for index, said, _ in answered
            for record in said.records
        ),
    )


def _vague(seen: Sequence[ReceivedReport]) -> set[str]:
    """Names of nodes whose reports have an unknown delay."""
    return {received.report.node for received in seen if received.delay_s is None}


def _answer(
    index: int, report: FaultReport, late_s: float
) -> list[collective_answers.CountsOfNode]:
    counts = report.collectives
    if counts is None:
        return []
    counts = replace(counts, age_s=max(counts.age_s, 0.0) + late_s)
    return [collective_answers.CountsOfNode(counts, lambda pid: _pid(index, pid))]


def _pid(index: int, pid: int) -> Pid:
    return Pid((index + 1) << _PID_BITS | pid & ((1 << _PID_BITS) - 1))


def _rebased(index: int, rank: RankSnapshot, late_s: float) -> RankSnapshot:
    """The snapshot advanced to the present moment, with pids that no process of another node has."""
    return replace(
        rank.later(late_s),
        pid=_pid(index, rank.pid),
        tid=rank.tid or rank.pid,
        text=rank.text or rank.state.text,
        waits_for=tuple(_pid(index, pid) for pid in rank.waits_for),
        # older agents report the stack of what they read, and not that they did
        thread_read=rank.thread_read or rank.timed or bool(rank.stack),
    )


def _with_known_waits(processes: Mapping[Pid, RankSnapshot]) -> dict[Pid, RankSnapshot]:
    """A wait that one node knows to end by itself is marked as known on all nodes: ranks run the same program."""
    known = KnownWaits()
    for process in processes.values():
        if process.known_wait:
            known.learn(process.stack)
    return {
        pid: rank if rank.known_wait else replace(rank, known_wait=_is_known(rank, known))
        for pid, rank in processes.items()
    }


def _is_known(rank: RankSnapshot, known: KnownWaits) -> bool:
    return bool(rank.stack) and known.knows(rank.stack)


def _between_ranks(rank: RankSnapshot, endpoints: EndpointIndex) -> RankSnapshot:
    """Keeps payload only where the other end may be a rank, which the node alone cannot know; updates the last send."""
    sockets = tuple(
        replace(socket, payload=False)
        if socket.payload and not endpoints.joins_ranks(rank.pid, socket)
        else socket
        for socket in rank.sockets
    )
    ages = [
        socket.sent_age_s
        for socket in sockets
        if socket.payload and socket.state == "ESTABLISHED" and socket.sent_age_s is not None
    ]
    # a node with very many connections reports only when the last byte was sent over any of them
    return replace(rank, sockets=sockets, sent_age_s=min(ages, default=rank.sent_age_s))


def _unordered(
    processes: dict[Pid, RankSnapshot],
    who: Mapping[Pid, tuple[FaultReport, RankSnapshot]],
    vague: Collection[str],
) -> dict[Pid, RankSnapshot]:
    """Removes the lead of the first (and of the last) sender if it cannot be certain.

    The judge names the rank that sent earlier than all others, or later. Between nodes, times of sending are exact only
    to `REPORTS_APART_S`, and to `REPORTS_VAGUE_S` more if the delay of a report is unknown. If a rank on another node
    sent within that time, the order is not known: the first (or last) sender then gets the age of the next one, so the
    two are equal.
    """
    nodes = {pid: report.node for pid, (report, _) in who.items()}
    changed = dict(processes)
    for is_last in (False, True):
        sent = [
            (age_s, pid)
            for pid, process in processes.items()
            if process.role is Role.RANK and (age_s := process.sent_age_s) is not None
        ]
        if len(sent) < 2:
            break
        (age_s, pid), *rest = sorted(sent, reverse=not is_last)
        close = any(
            nodes[pid] != nodes[other_pid]
            and abs(age_s - other_age_s) < _apart_s((nodes[pid], nodes[other_pid]), vague)
            for other_age_s, other_pid in rest
        )
        if close:
            changed[pid] = replace(changed[pid], sent_age_s=rest[0][0])
    return changed


def _apart_s(nodes: Collection[str], vague: Collection[str]) -> float:
    return REPORTS_APART_S + (REPORTS_VAGUE_S if any(node in vague for node in nodes) else 0.0)
