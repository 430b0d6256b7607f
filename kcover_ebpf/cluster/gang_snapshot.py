"""The pictures that the nodes of a job sent, as the one picture that `diagnosis.judge` judges.

Processes of different nodes may have the same number, so each gets one of its own. Ages of all
reports are rebased to one moment by the controller's clock. What two nodes did within
`APART_S` of each other has no order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeVar

from kcover_ebpf.api.fault_report import FaultReport, RankSnapshot, SocketSnapshot
from kcover_ebpf.cluster import collective_counts
from kcover_ebpf.diagnosis.process import NS, Effort, ProcessHistory
from kcover_ebpf.diagnosis.process_state import ProcessState, State
from kcover_ebpf.diagnosis.roles import Membership, Role
from kcover_ebpf.diagnosis.snapshot import JobSnapshot
from kcover_ebpf.diagnosis.stacks import KnownWaits
from kcover_ebpf.diagnosis.tcp_links import EndpointIndex, last_send_ns
from kcover_ebpf.facts.host import Inspection
from kcover_ebpf.facts.kernel import SignalSent, SocketSample
from kcover_ebpf.ids import Inode, Pid, Tid
from kcover_ebpf.settings import Policy

APART_S = 0.5
"""Reports travel and clocks are read at different moments: what is closer than this is not ordered."""
_VAGUE_S = 2.0
"""The same on top of it, where it is not known how long a report was on its way."""
_NOW_NS = 1 << 60
"""The moment of the picture on a clock of its own; ages are counted back from it."""
_REPORTED_PASSES = 60
"""As good as many: the node has seen that a connection carries payload."""
_PID_BITS = 22
"""The kernel's largest process number (PID_MAX_LIMIT)."""
_NOBODYS_WAIT = ("a wait that has ended",)
"""No rank has this stack: that some waits are known makes others new, though none of them is seen now."""
_E = TypeVar("_E", bound=Enum)
_O = TypeVar("_O")


@dataclass(frozen=True, slots=True)
class ReceivedReport:
    """A report, and when it came."""

    report: FaultReport
    arrived_s: float
    """Unix seconds by the controller's clock."""
    delay_s: float | None = 0.0
    """Seconds from its making to its arrival; None where nothing is known of its node's clock."""

    def age_s(self, now_s: float) -> float:
        """Seconds since it came, never negative."""
        return max(0.0, now_s - self.arrived_s)

    def since_made_s(self, now_s: float) -> float:
        """Seconds since it was made, as far as that is known: its ages count from then."""
        return self.age_s(now_s) + (self.delay_s or 0.0)

    def is_stale(self, now_s: float) -> bool:
        """True if it says nothing any more."""
        return self.age_s(now_s) > self.report.expires_after_s


@dataclass(frozen=True, slots=True)
class GangSnapshot:
    """The picture, and who is who in it."""

    picture: JobSnapshot
    who: Mapping[Pid, tuple[FaultReport, RankSnapshot]]


class _Clock:
    """Ages of one report, on the picture's clock."""

    def __init__(self, late_s: float) -> None:
        self._late_s = late_s

    def ns(self, age_s: float | None) -> int:
        """When that was; 0 (never) for None."""
        return 0 if age_s is None else _NOW_NS - int((max(age_s, 0.0) + self._late_s) * NS)


def gather(seen: Sequence[ReceivedReport], now_s: float, policy: Policy) -> GangSnapshot:
    """One picture of all ranks that the reports show."""
    views: dict[Pid, ProcessHistory] = {}
    standings: dict[Pid, ProcessState] = {}
    thresholds: dict[Pid, float] = {}
    who: dict[Pid, tuple[FaultReport, RankSnapshot]] = {}
    answers: list[collective_counts.Answer] = []
    known = KnownWaits()
    for index, each in enumerate(seen):
        clock = _Clock(each.since_made_s(now_s))
        answers += _answer(index, each.report, clock)
        for rank in each.report.ranks:
            pid = _pid(index, rank.pid)
            who[pid] = each.report, rank
            standings[pid] = _standing(index, rank, clock)
            if rank.known_wait:
                known.learn(rank.stack)
            if rank.role == Role.RANK.value:
                views[pid] = _view(pid, rank, clock)
                thresholds[pid] = rank.threshold_s or policy.stall_floor_s
    if any(each.report.knows_waits for each in seen):
        known.learn(_NOBODYS_WAIT)
    ends = EndpointIndex(views.values(), elsewhere=_world_size(views) > len(views))
    _unorder(views, ends, {pid: report.node for pid, (report, _) in who.items()}, _vague(seen))
    ended = {pid: rank.exit for pid, (_, rank) in who.items() if rank.exit is not None}
    left = {pid: standings[pid] for pid in ended if pid in views and ended[pid] == "code 0"}
    picture = JobSnapshot(
        now_ns=_NOW_NS,
        policy=policy,
        ranks={pid: view for pid, view in views.items() if pid not in ended},
        standings=standings,
        ends=ends,
        lossy=any(each.report.lossy for each in seen),
        thresholds_s=thresholds,
        known=known,
        stop_signals=_stop_signals(who),
        left=left,
        starting=_is_starting(seen, views),
        collectives=collective_counts.joined(answers),
    )
    return GangSnapshot(picture, who)


def _vague(seen: Sequence[ReceivedReport]) -> set[str]:
    """Nodes of which it is not known how long their reports are on their way."""
    return {each.report.node for each in seen if each.delay_s is None}


def _is_starting(seen: Sequence[ReceivedReport], views: Mapping[Pid, ProcessHistory]) -> bool:
    return len(views) < _world_size(views) and not any(each.report.trained for each in seen)


def _world_size(views: Mapping[Pid, ProcessHistory]) -> int:
    sizes = (view.member.world_size or 0 for view in views.values() if view.member is not None)
    return max(sizes, default=0)


def _answer(index: int, report: FaultReport, clock: _Clock) -> list[collective_counts.Answer]:
    said = report.collectives
    if said is None:
        return []
    since_ns = clock.ns(said.age_s + said.span_s)
    return [
        collective_counts.Answer(said, clock.ns(said.age_s), since_ns, lambda pid: _pid(index, pid))
    ]


def _stop_signals(who: Mapping[Pid, tuple[FaultReport, RankSnapshot]]) -> dict[Pid, SignalSent]:
    found = {}
    for pid, (_, rank) in who.items():
        sent = rank.stop_signal
        if sent is not None:
            sender = Pid(sent.sender_pid)
            found[pid] = SignalSent(_NOW_NS, pid, Tid(pid), sent.signal, sender, sent.sender or "?")
    return found


def _pid(index: int, pid: int) -> Pid:
    return Pid((index + 1) << _PID_BITS | pid & ((1 << _PID_BITS) - 1))


def _standing(index: int, rank: RankSnapshot, clock: _Clock) -> ProcessState:
    pid = _pid(index, rank.pid)
    since_ns = clock.ns(rank.age_s) or _NOW_NS
    inspection = Inspection(
        boottime_ns=_NOW_NS,
        pid=pid,
        tid=Tid(rank.tid or rank.pid),
        wait_channel="",
        deadline_ns=None,
        timed=rank.timed,
        files=(),
        stack=rank.stack,
        storage=None,
        lock_holders=(),
    )
    return ProcessState(
        pid=pid,
        tid=rank.tid or rank.pid,
        rank=rank.rank,
        role=_enum(Role, rank.role, Role.HELPER),
        state=_enum(State, rank.state, State.OTHER),
        since_ns=since_ns,
        text=rank.text or rank.state,
        inspection=inspection if rank.stack or rank.timed else None,
        proven=rank.proven,
        waits_for=tuple(_pid(index, each) for each in rank.waits_for),
        effort=_enum(Effort, rank.effort, None),
    )


def _view(pid: Pid, rank: RankSnapshot, clock: _Clock) -> ProcessHistory:
    view = ProcessHistory(pid, first_seen_ns=1)
    view.member = Membership(Role.RANK, rank.rank, rank.world_size, pid, joined=rank.joined)
    view.peer_bytes_ns = clock.ns(rank.received_age_s)
    sockets = (_socket(pid, fd, each, clock) for fd, each in enumerate(rank.sockets))
    view.sockets = {sample.fd: sample for sample in sockets if sample is not None}
    for fd, each in enumerate(rank.sockets):
        if fd in view.sockets:
            view.traffic.observe(None, view.sockets[fd])
            view.traffic.tell(fd, passes=_REPORTED_PASSES if each.payload else 0)
    # a node with very many connections reports only when the last byte was sent over any of them
    view.sent_ns = clock.ns(rank.sent_age_s)
    return view


_NO_SOCKET = SocketSample(
    boottime_ns=_NOW_NS,
    pid=Pid(0),
    fd=-1,
    inode=Inode(0),
    state="CLOSE",
    local=("", 0),
    remote=("", 0),
    unread_bytes=0,
    unsent_bytes=0,
    unacked_bytes=0,
    acked_bytes=0,
    received_bytes=0,
    retransmit_count=0,
    backoff=0,
    probe_count=0,
    send_window_bytes=0,
    last_send_ns=0,
    last_receive_ns=0,
    changed_ns=0,
)


def _socket(pid: Pid, fd: int, seen: SocketSnapshot, clock: _Clock) -> SocketSample | None:
    local, remote = _address(seen.local), _address(seen.remote)
    if local is None or remote is None:
        return None
    return replace(
        _NO_SOCKET,
        pid=pid,
        fd=fd,
        state=seen.state,
        local=local,
        remote=remote,
        unread_bytes=seen.unread,
        unsent_bytes=seen.unsent,
        unacked_bytes=seen.unacked,
        backoff=seen.backoff,
        send_window_bytes=seen.window,
        last_send_ns=clock.ns(seen.sent_age_s),
        changed_ns=clock.ns(seen.sent_age_s) or _NOW_NS,
    )


def _address(text: str) -> tuple[str, int] | None:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdecimal():
        return None
    return host.removeprefix("[").removesuffix("]"), int(port)


def _unorder(
    views: Mapping[Pid, ProcessHistory],
    ends: EndpointIndex,
    nodes: Mapping[Pid, str],
    vague: Collection[str],
) -> None:
    """Take away the lead of whoever sent first (or last) where somebody on another node is close to it."""
    times = sorted(
        (at_ns, pid) for pid, view in views.items() if (at_ns := last_send_ns(view, ends))
    )
    if len(times) < 2:
        return
    for (at_ns, pid), *others in (times, times[::-1]):
        close = any(
            nodes[pid] != nodes[other]
            and abs(at_ns - other_ns) < _apart_s((nodes[pid], nodes[other]), vague) * NS
            for other_ns, other in others
        )
        if close:
            _send_at(views[pid], at_ns, others[0][0])


def _apart_s(nodes: Collection[str], vague: Collection[str]) -> float:
    return APART_S + (_VAGUE_S if any(node in vague for node in nodes) else 0.0)


def _send_at(view: ProcessHistory, at_ns: int, instead_ns: int) -> None:
    if view.sent_ns == at_ns:
        view.sent_ns = instead_ns
    for fd, sample in view.sockets.items():
        close = sample.last_send_ns == at_ns or sample.last_send_ns > instead_ns
        if sample.last_send_ns and close:
            view.sockets[fd] = replace(sample, last_send_ns=instead_ns)


def _enum(kind: type[_E], value: str | None, other: _O) -> _E | _O:
    # a newer agent may say what we do not know yet
    try:
        return kind(value)
    except ValueError:
        return other


def ranks_of(seen: Iterable[ReceivedReport]) -> list[tuple[FaultReport, RankSnapshot]]:
    """Every living rank that the reports show."""
    return [
        (each.report, rank)
        for each in seen
        for rank in each.report.ranks
        if rank.role == Role.RANK.value and rank.exit is None
    ]
