"""All jobs of a cluster at one moment: the ranks that agents report, and what is being done about faults. Pure.

Agents report snapshots of ranks only while these may have stalled. For a healthy job the board shows the numbers of
its ranks if its agents compare them (`RankPace`), else its pods.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from enum import IntEnum

from kcover_ebpf.api.fault_report import FaultReport
from kcover_ebpf.api.incident import Incident, Phase, Status
from kcover_ebpf.api.job_kinds import GangId
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.gang.gang_snapshot import ReceivedReport
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.rank_snapshot import RankSnapshot
from kcover_ebpf.model.roles import Role
from kcover_ebpf.model.verdict import Culprit
from kcover_ebpf.output.formatting import CAUSE_TEXT, culprit_text, span


class Mark(IntEnum):
    """State of a rank, worst first."""

    CULPRIT = 0
    STOPPED = 1
    """Not the culprit, but cannot continue: for example stopped by an order."""
    WAITS = 2
    UNKNOWN = 3
    """No agent reports it (any more); never counted as healthy."""
    STARTS = 4
    TRAINS = 5


_UNABLE = frozenset({State.LEFT, State.GONE, State.DUMPING, State.STOPPED, State.FROZEN})


@dataclass(frozen=True, slots=True)
class Cell:
    """One rank, or a pod if its ranks are unknown."""

    name: str
    mark: Mark
    age_s: float | None = None
    """Seconds since its last progress, as far as known; None while it trains."""
    doing: str = ""


@dataclass(frozen=True, slots=True)
class BoardNode:
    """The ranks of a job on one node."""

    node: str
    cells: tuple[Cell, ...]

    @property
    def order(self) -> tuple[int, str]:
        """Sort key: the culprit's node first, then by severity and name."""
        return min((cell.mark for cell in self.cells), default=Mark.UNKNOWN), self.node


@dataclass(frozen=True, slots=True)
class BoardJob:
    """One job with its state, nodes and pending action."""

    namespace: str
    name: str
    kind: str
    state: str
    """One or two words, such as "training", "stalled", or the phase of its incident."""
    text: str
    """The fault and what is done about it; empty while it trains."""
    incident: str | None = None
    acts_in_s: float | None = None
    """Seconds until it is restarted if nothing moves; None if it is not to be, or is being restarted."""
    nodes: tuple[BoardNode, ...] = ()

    @property
    def is_well(self) -> bool:
        """True if no fault of the job is known."""
        return self.incident is None and all(node.order[0] >= Mark.STARTS for node in self.nodes)


def board_of(
    reports: Iterable[tuple[str, ReceivedReport]], incidents: Iterable[Incident], now_s: float
) -> tuple[BoardJob, ...]:
    """All jobs, those with a fault first; `reports`: each with its namespace; `now_s`: unix seconds."""
    by_gang: defaultdict[GangId, list[ReceivedReport]] = defaultdict(list)
    for namespace, received in reports:
        if received.report.job is not None:
            by_gang[GangId.of(namespace, received.report.job.selector)].append(received)
    live: dict[GangId, Incident] = {}
    for incident in sorted(incidents, key=lambda other_incident: other_incident.created_s):
        if incident.status is not None and not incident.status.is_closed:
            live[incident.gang] = incident
    jobs = [
        _job(gang_id, by_gang.get(gang_id, []), live.get(gang_id), now_s)
        for gang_id in by_gang.keys() | live.keys()
    ]
    return tuple(sorted(jobs, key=lambda job: (job.is_well, job.namespace, job.name)))


def _job(
    gang_id: GangId, seen: Sequence[ReceivedReport], incident: Incident | None, now_s: float
) -> BoardJob:
    status = incident.status if incident is not None else None
    culprit = status.culprit if status is not None else None
    nodes = [
        BoardNode(received.report.node, cells_of(received, culprit, now_s)) for received in seen
    ]
    nodes.sort(key=lambda board_node: board_node.order)
    named = next((received.report.job for received in seen if received.report.job), None)
    name = incident.job.name if incident is not None else named.name if named is not None else ""
    kind = incident.job.kind if incident is not None else (named and named.kind) or ""
    verdict, acts_in_s = status.verdict if status is not None else None, None
    if status is not None and verdict is not None and not _is_begun(status):
        acts_in_s = verdict.acts_at_s - now_s if verdict.acts_at_s is not None else None
    return BoardJob(
        namespace=gang_id.namespace,
        name=name,
        kind=kind,
        state=status.phase.value if status is not None else _state(nodes),
        text=_text(status, acts_in_s, now_s) if status is not None else "",
        incident=incident.name if incident is not None else None,
        acts_in_s=acts_in_s,
        nodes=tuple(nodes),
    )


def _is_begun(status: Status) -> bool:
    return status.phase.is_acting or status.phase.is_over


def _state(nodes: Sequence[BoardNode]) -> str:
    marks = {cell.mark for node in nodes for cell in node.cells}
    for mark, text in (
        (Mark.STOPPED, "stalled"),
        (Mark.WAITS, "stalled"),
        (Mark.UNKNOWN, "unknown"),
        (Mark.STARTS, "starting"),
        (Mark.TRAINS, "training"),
    ):
        if mark in marks:
            return text
    return "unknown"


def cells_of(received: ReceivedReport, culprit: Culprit | None, now_s: float) -> tuple[Cell, ...]:
    """The ranks that a node reports, in order; `culprit`: of the whole job, `now_s`: unix seconds."""
    report = received.report
    ranks = [snapshot for snapshot in report.ranks if snapshot.role is Role.RANK]
    if received.is_stale(now_s):
        names = [cell_name(snapshot) for snapshot in ranks] or [pod.name for pod in report.pods]
        return tuple(Cell(name, Mark.UNKNOWN, doing="not reported any more") for name in names)
    if ranks:
        late_s = received.since_made_s(now_s)
        ranks.sort(key=lambda snapshot: (snapshot.rank is None, snapshot.rank or 0, snapshot.pid))
        return tuple(_cell(snapshot, report, culprit, late_s) for snapshot in ranks)
    mark = Mark.TRAINS if report.trained else Mark.STARTS
    if report.suspicious:
        mark = Mark.WAITS
    if received.paces:
        numbered = sorted(received.paces, key=lambda pace: pace.rank or 0)
        return tuple(Cell(str(pace.rank), mark) for pace in numbered)
    here = culprit.pod_uid if culprit is not None else None
    return tuple(
        Cell(pod.name, Mark.CULPRIT if here and pod.uid == here else mark) for pod in report.pods
    )


def _cell(
    snapshot: RankSnapshot, report: FaultReport, culprit: Culprit | None, late_s: float
) -> Cell:
    is_culprit = (
        culprit is not None
        and culprit.node in (None, report.node)
        and (
            (culprit.rank is not None and culprit.rank == snapshot.rank)
            or (culprit.rank is None and culprit.pid is not None and culprit.pid == snapshot.pid)
        )
    )
    if is_culprit:
        mark = Mark.CULPRIT
    elif snapshot.state in _UNABLE:
        mark = Mark.STOPPED
    else:
        mark = Mark.TRAINS if snapshot.state is State.MOVING else Mark.WAITS
    ages = [
        age_s
        for age_s in (snapshot.sent_age_s, snapshot.received_age_s, snapshot.age_s)
        if age_s is not None
    ]
    age_s = None if mark is Mark.TRAINS else min(ages) + late_s
    return Cell(cell_name(snapshot), mark, age_s, snapshot.text or snapshot.state.text)


def cell_name(snapshot: RankSnapshot) -> str:
    """The rank's number, or its pid if it has none."""
    return str(snapshot.rank) if snapshot.rank is not None else f"pid {snapshot.pid}"


def _text(status: Status, acts_in_s: float | None, now_s: float) -> str:
    if status.phase.is_acting and status.action is not None:
        action = status.action
        for_s = span(now_s - action.started_s)
        return f"{action.way.value}, step {action.step} for {for_s}: {status.message}"
    said, verdict = status.message, status.verdict
    if verdict is None:
        return said
    if status.phase is Phase.OPEN:
        who = culprit_text(verdict.culprit) if verdict.culprit is not None else "no rank named"
        for_s = span(now_s - verdict.since_s)
        said = f"{verdict.kind.value}: {who} {CAUSE_TEXT[verdict.cause]}, for {for_s}"
    if acts_in_s is None:
        return said
    return f"{patience_of(acts_in_s)} ({verdict.acts_why}); {said}"


def patience_of(acts_in_s: float, what: str = "restarted") -> str:
    """Remaining patience as text; `what`: what is then done to the job."""
    if acts_in_s <= 0:
        return f"is due to be {what}"
    return f"will be {what} in {acts_in_s:.0f} s if nothing moves"
