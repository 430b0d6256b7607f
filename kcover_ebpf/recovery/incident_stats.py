"""What incidents cost: time lost by phase, effective training time, time between interruptions, to recovery. Pure.

Everything is computed from the incidents that exist, so it survives restarts of the controller and of Prometheus, and
reaches as far back as incidents are kept (docs/cluster.md).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields

from kcover_ebpf.api.incident import Incident, Lost, Phase, Status
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.model.verdict import Cause

UNNAMED = "(not known)"


@dataclass(frozen=True, slots=True)
class LostTime:
    """Seconds lost, all incidents together; what an incident does not know counts as nothing."""

    detect_s: float = 0.0
    decide_s: float = 0.0
    shut_down_s: float = 0.0
    reschedule_s: float = 0.0
    first_progress_s: float = 0.0

    @property
    def total_s(self) -> float:
        """All of it."""
        stopped_s = self.shut_down_s + self.reschedule_s
        return self.detect_s + self.decide_s + stopped_s + self.first_progress_s


@dataclass(frozen=True, slots=True)
class JobStats:
    """One job within the window."""

    namespace: str
    kind: str
    name: str
    incidents: int
    restarts: int
    lost: LostTime
    ettr: float | None
    """Effective training time ratio: 1 - time lost / its age within the window; None where its age is not known."""
    lost_steps: int = 0
    """Steps that were done again after restarts, or lost since the last checkpoint, as far as its logs show them."""
    work_lost_s: float = 0.0
    """Seconds of training that they had taken."""
    goodput: float | None = None
    """As `ettr`, less `work_lost_s`; None where its logs show no step."""


@dataclass(frozen=True, slots=True)
class GroupStats:
    """Interruptions of one node, or by one cause."""

    name: str
    interruptions: int
    mtbi_s: float
    """Mean time between interruptions: the window divided by their number."""
    mttr_s: float | None
    """Mean time from the first sign until all ranks made progress again; None where no job recovered."""
    lost_s: float


@dataclass(frozen=True, slots=True)
class IncidentStats:
    """All of it; times in seconds."""

    window_s: float
    incidents: int
    interruptions: int
    """Incidents in which a job had to be restarted, or would have had to be: not those that went by."""
    restarts: int
    lost: LostTime
    jobs: tuple[JobStats, ...]
    """Those that lost most first."""
    nodes: tuple[GroupStats, ...]
    causes: tuple[GroupStats, ...]


def stats_of(
    incidents: Iterable[Incident],
    since_s: float,
    now_s: float,
    created_s: Mapping[str, float] | None = None,
) -> IncidentStats:
    """The statistics of all incidents made within the window; `created_s`: of jobs, by uid, unix seconds."""
    known = [
        (incident, incident.status)
        for incident in incidents
        if incident.status is not None and incident.created_s >= since_s
    ]
    broken = [(incident, status) for incident, status in known if _interrupts(status)]
    by_job: defaultdict[str, list[tuple[Incident, Status]]] = defaultdict(list)
    for incident, status in known:
        by_job[incident.job.uid].append((incident, status))
    window_s = now_s - since_s
    ages = created_s or {}
    jobs = [
        _job(found, max(since_s, ages[uid]) if uid in ages else None, now_s)
        for uid, found in by_job.items()
    ]
    return IncidentStats(
        window_s=window_s,
        incidents=len(known),
        interruptions=len(broken),
        restarts=sum(len(status.restarts) for _, status in known),
        lost=_lost(status for _, status in known),
        jobs=tuple(sorted(jobs, key=lambda job: (-job.lost.total_s, job.namespace, job.name))),
        nodes=_groups(broken, _node, window_s),
        causes=_groups(broken, _cause, window_s),
    )


def _interrupts(status: Status) -> bool:
    """True for a fault of the job or of what it runs on; a restart that a person asked for is none."""
    if status.cause is Cause.REQUESTED or status.verdict is None:
        return False
    if status.restarts:
        return True
    went_by = status.phase is Phase.OBSERVED and status.at(Phase.DECIDED) is None
    return status.verdict.is_fault and not (went_by and status.closed_s is not None)


def _lost(statuses: Iterable[Status]) -> LostTime:
    found = [status.lost for status in statuses if status.lost is not None]
    return LostTime(**{field.name: _sum(found, field.name) for field in fields(LostTime)})


def _sum(found: Sequence[Lost], name: str) -> float:
    return sum(max(getattr(lost, name) or 0.0, 0.0) for lost in found)


def _job(found: Sequence[tuple[Incident, Status]], begun_s: float | None, now_s: float) -> JobStats:
    incident, lost = found[0][0], _lost(status for _, status in found)
    age_s = now_s - begun_s if begun_s is not None else 0.0
    # only a restart costs steps
    works = [status.work for _, status in found if status.work is not None and status.restarts]
    work_lost_s = sum(work.lost_s or 0.0 for work in works)
    all_lost_s = lost.total_s + work_lost_s
    return JobStats(
        namespace=incident.namespace,
        kind=incident.job.kind,
        name=incident.job.name,
        incidents=len(found),
        restarts=sum(len(status.restarts) for _, status in found),
        lost=lost,
        ettr=max(0.0, 1.0 - lost.total_s / age_s) if age_s > 0 else None,
        lost_steps=sum(work.lost_steps or 0 for work in works),
        work_lost_s=work_lost_s,
        goodput=max(0.0, 1.0 - all_lost_s / age_s) if works and age_s > 0 else None,
    )


def _node(status: Status) -> str:
    return (status.culprit.node if status.culprit is not None else None) or UNNAMED


def _cause(status: Status) -> str:
    return status.cause.value if status.cause is not None else UNNAMED


def _groups(
    broken: Sequence[tuple[Incident, Status]], name_of: Callable[[Status], str], window_s: float
) -> tuple[GroupStats, ...]:
    by_name: defaultdict[str, list[Status]] = defaultdict(list)
    for _, status in broken:
        by_name[name_of(status)].append(status)
    groups = [
        GroupStats(
            name=name,
            interruptions=len(statuses),
            mtbi_s=window_s / len(statuses),
            mttr_s=_mean([took for status in statuses if (took := _took_s(status)) is not None]),
            lost_s=_lost(statuses).total_s,
        )
        for name, statuses in by_name.items()
    ]
    return tuple(sorted(groups, key=lambda group: (-group.interruptions, group.name)))


def _took_s(status: Status) -> float | None:
    recovered_s = status.at(Phase.RECOVERED)
    if recovered_s is None or status.since_s is None:
        return None
    return max(0.0, recovered_s - status.since_s)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
