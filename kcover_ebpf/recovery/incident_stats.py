"""Cost of incidents: time lost by phase, effective training time, time between interruptions, time to recovery. Pure.

Everything is computed from existing incidents. So it survives restarts of the controller and of Prometheus, and covers
the time for which incidents are kept (docs/cluster.md).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, fields, replace

from kcover_ebpf.api.incident import Incident, Lost, Phase, Status
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.model.verdict import Cause

UNNAMED = "(not known)"


@dataclass(frozen=True, slots=True)
class LostTime:
    """Seconds lost in all incidents together; a value missing in an incident counts as 0."""

    detect_s: float = 0.0
    decide_s: float = 0.0
    shut_down_s: float = 0.0
    reschedule_s: float = 0.0
    first_progress_s: float = 0.0

    @property
    def total_s(self) -> float:
        """Sum of the phases, in seconds."""
        stopped_s = self.shut_down_s + self.reschedule_s
        return self.detect_s + self.decide_s + stopped_s + self.first_progress_s


@dataclass(frozen=True, slots=True)
class LostCost:
    """Cost of the GPUs of the jobs during lost time."""

    gpu_hours: float = 0.0
    prices: tuple[tuple[str, float], ...] = ()
    """By currency; only for GPUs whose price is on the operator's list."""


@dataclass(frozen=True, slots=True)
class JobStats:
    """Incidents of one job within the window, and what they cost."""

    namespace: str
    kind: str
    name: str
    incidents: int
    restarts: int
    lost: LostTime
    ettr: float | None
    """Effective training time ratio: 1 - time lost / its age within the window; None if its age is unknown."""
    lost_steps: int = 0
    """Steps repeated after restarts, or lost since the last checkpoint, as far as its logs show."""
    work_lost_s: float = 0.0
    """Seconds of training that these steps had taken."""
    goodput: float | None = None
    """As `ettr`, minus `work_lost_s`; None if its logs show no step."""
    age_s: float | None = None
    """Seconds within the window; for a deleted job until its last incident was over."""
    cost: LostCost = field(default_factory=LostCost)


@dataclass(frozen=True, slots=True)
class NamespaceStats:
    """All jobs of one namespace that had an incident."""

    name: str
    jobs: int
    incidents: int
    lost: LostTime
    ettr: float | None
    """1 - time lost / age of the jobs, all together; None if no age is known."""
    cost: LostCost


@dataclass(frozen=True, slots=True)
class GroupStats:
    """Interruptions of one node, or by one cause."""

    name: str
    interruptions: int
    mtbi_s: float
    """Mean seconds between interruptions: the observed part of the window, divided by their number."""
    mttr_s: float | None
    """Mean seconds from the first sign until all ranks made progress again; None if no job recovered."""
    lost_s: float


@dataclass(frozen=True, slots=True)
class IncidentStats:
    """Statistics of all incidents within a window; times in seconds."""

    window_s: float
    incidents: int
    interruptions: int
    """Incidents in which a job had to be restarted, or would have had to be: those that passed are left out."""
    restarts: int
    lost: LostTime
    cost: LostCost
    namespaces: tuple[NamespaceStats, ...]
    jobs: tuple[JobStats, ...]
    """The job that lost most time first."""
    nodes: tuple[GroupStats, ...]
    causes: tuple[GroupStats, ...]


def stats_of(
    incidents: Iterable[Incident],
    since_s: float,
    now_s: float,
    created_s: Mapping[str, float] | None = None,
) -> IncidentStats:
    """The statistics of all incidents created within the window. `created_s`: job uid -> unix seconds.

    A fault without an action costs the time until it was over, or until now.
    """
    known = [
        (incident, _with_wait(incident.status, now_s))
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
        _job(found, _span(found, ages.get(uid), since_s, now_s)) for uid, found in by_job.items()
    ]
    return IncidentStats(
        window_s=window_s,
        incidents=len(known),
        interruptions=len(broken),
        restarts=sum(len(status.restarts) for _, status in known),
        lost=_lost(status for _, status in known),
        cost=_cost(status for _, status in known),
        namespaces=_namespaces(jobs),
        jobs=tuple(sorted(jobs, key=lambda job: (-job.lost.total_s, job.namespace, job.name))),
        nodes=_groups(broken, _node, window_s),
        causes=_groups(broken, _cause, window_s),
    )


def _interrupts(status: Status) -> bool:
    """True for a fault of the job or of what it runs on; a restart that a person requested is none."""
    if status.cause is Cause.REQUESTED or status.kind is None:
        return False
    if status.restarts:
        return True
    went_by = status.phase is Phase.OBSERVED and status.at(Phase.DECIDED) is None
    return status.kind.is_fault and not (went_by and status.closed_s is not None)


def _with_wait(status: Status, now_s: float) -> Status:
    """The status of a fault without an action, with the time lost in waiting for one."""
    is_fault = status.kind is not None and status.kind.is_fault
    if status.lost is not None or not is_fault or status.since_s is None or not status.timeline:
        return status
    opened_s = status.timeline[0].time_s
    over_s = now_s if status.closed_s is None else status.closed_s
    waited = Lost(max(opened_s - status.since_s, 0.0), max(over_s - opened_s, 0.0))
    return replace(status, lost=waited)


def _lost(statuses: Iterable[Status]) -> LostTime:
    found = [status.lost for status in statuses if status.lost is not None]
    return LostTime(**{part.name: _sum(found, part.name) for part in fields(LostTime)})


def _sum(found: Sequence[Lost], name: str) -> float:
    return sum(max(getattr(lost, name) or 0.0, 0.0) for lost in found)


def _cost(statuses: Iterable[Status]) -> LostCost:
    gpu_hours, prices = 0.0, defaultdict[str, float](float)
    for status in statuses:
        if status.lost is None or status.size is None:
            continue
        lost_s = _lost([status]).total_s
        gpu_hours += status.size.gpu_hours(lost_s)
        price = status.size.price_of(lost_s)
        if price is not None:
            prices[status.size.currency or ""] += price
    return LostCost(gpu_hours, tuple(sorted(prices.items())))


def _added(costs: Iterable[LostCost]) -> LostCost:
    gpu_hours, prices = 0.0, defaultdict[str, float](float)
    for cost in costs:
        gpu_hours += cost.gpu_hours
        for currency, price in cost.prices:
            prices[currency] += price
    return LostCost(gpu_hours, tuple(sorted(prices.items())))


def _namespaces(jobs: Sequence[JobStats]) -> tuple[NamespaceStats, ...]:
    by_name: defaultdict[str, list[JobStats]] = defaultdict(list)
    for job in jobs:
        by_name[job.namespace].append(job)
    return tuple(
        NamespaceStats(
            name=name,
            jobs=len(ours),
            incidents=sum(job.incidents for job in ours),
            lost=LostTime(
                **{
                    part.name: sum(getattr(job.lost, part.name) for job in ours)
                    for part in fields(LostTime)
                }
            ),
            ettr=_ratio([job for job in ours if job.age_s]),
            cost=_added(job.cost for job in ours),
        )
        for name, ours in sorted(by_name.items())
    )


def _ratio(jobs: Sequence[JobStats]) -> float | None:
    age_s = sum(job.age_s or 0.0 for job in jobs)
    if age_s <= 0:
        return None
    return max(0.0, 1.0 - sum(job.lost.total_s for job in jobs) / age_s)


def _span(
    found: Sequence[tuple[Incident, Status]], created_s: float | None, since_s: float, now_s: float
) -> float | None:
    """Seconds for which the job is known to have existed within the window. `created_s`: None for a deleted one."""
    if created_s is not None:
        return now_s - max(since_s, created_s)
    begun_s = [
        status.size.created_s
        for _, status in found
        if status.size is not None and status.size.created_s
    ]
    if not begun_s:
        return None
    return max(status.last_s for _, status in found) - max(since_s, min(begun_s))


def _job(found: Sequence[tuple[Incident, Status]], age_s: float | None) -> JobStats:
    incident, lost = found[0][0], _lost(status for _, status in found)
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
        ettr=max(0.0, 1.0 - lost.total_s / age_s) if age_s is not None and age_s > 0 else None,
        lost_steps=sum(work.lost_steps or 0 for work in works),
        work_lost_s=work_lost_s,
        goodput=max(0.0, 1.0 - all_lost_s / age_s) if works and age_s else None,
        age_s=age_s,
        cost=_cost(status for _, status in found),
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
