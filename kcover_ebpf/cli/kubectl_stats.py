"""`kubectl kcover stats`: what incidents cost, by job, node and cause."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable
from dataclasses import asdict

import click

from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.fault_report import API_VERSION
from kcover_ebpf.api.incident import Incident, incident_of
from kcover_ebpf.cli.kubectl_common import common, show, show_table
from kcover_ebpf.cli.options import duration_option
from kcover_ebpf.errors import ApiError, CannotObserve, NotFound, ObjectError
from kcover_ebpf.kube.client import ApiClient
from kcover_ebpf.output.formatting import span
from kcover_ebpf.recovery.incident_stats import (
    GroupStats,
    IncidentStats,
    JobStats,
    LostTime,
    stats_of,
)

_MOST_JOBS = 200
"""Jobs of which the age is asked for: one request each."""
_JOB_COLUMNS = ("JOB", "KIND", "INCIDENTS", "RESTARTS", "LOST", "ETTR", "STEPS LOST", "GOODPUT")
_GROUP_COLUMNS = ("INTERRUPTIONS", "MTBI", "MTTR", "LOST")


@click.command()
@click.option("-A", "--all-namespaces", is_flag=True, help="In all namespaces.")
@duration_option("--since", "168h", "How far back.")
@common
def stats(
    *, client: ApiClient, namespace: str, as_json: bool, all_namespaces: bool, since: float
) -> int:
    """Show what incidents cost: time lost by phase, effective training time, mean times by node and cause.

    It reaches back as far as incidents are kept: a week, and 20 of each job.
    """
    where = "" if all_namespaces else f"/namespaces/{namespace}"
    try:
        items = client.list(f"/apis/{API_VERSION}{where}/incidents").get("items") or []
    except NotFound:
        raise CannotObserve("this cluster has no incidents; is kcover-ebpf installed?") from None
    incidents = []
    for raw in items:
        with contextlib.suppress(ObjectError, ValueError):
            created = rfc3339.from_text(str(raw["metadata"].get("creationTimestamp")))
            incidents.append(incident_of(raw, created))
    now_s = time.time()
    found = stats_of(incidents, now_s - since, now_s, _created(client, incidents))
    if as_json:
        print(json.dumps(asdict(found), indent=2))
        return 0
    _show(found)
    return 0


def _created(client: ApiClient, incidents: Iterable[Incident]) -> dict[str, float]:
    """When each job was created, by its uid; without those that are gone or may not be read."""
    from kcover_ebpf.controller.owners import Owners

    owners, found = Owners(client), {}
    jobs = {incident.job.uid: incident for incident in incidents}
    for uid, incident in list(jobs.items())[:_MOST_JOBS]:
        with contextlib.suppress(ApiError):
            owner = owners.of_ref(incident.namespace, incident.job)
            if owner is not None and owner.created_s is not None:
                found[uid] = owner.created_s
    return found


def _show(stats: IncidentStats) -> None:
    show(
        f"{stats.incidents} incidents in {span(stats.window_s)}: {stats.interruptions} interruptions, "
        f"{stats.restarts} restarts, {span(stats.lost.total_s)} lost"
    )
    if not stats.incidents:
        return
    show(f"  lost: {_parts(stats.lost)}")
    print()
    show_table([_JOB_COLUMNS, *map(_job_cells, stats.jobs)])
    for title, groups in (("NODE", stats.nodes), ("CAUSE", stats.causes)):
        if groups:
            print()
            show_table([(title, *_GROUP_COLUMNS), *map(_group_cells, groups)])


def _parts(lost: LostTime) -> str:
    parts = asdict(lost)
    return ", ".join(
        f"{name.removesuffix('_s').replace('_', ' ')} {span(value)}"
        for name, value in parts.items()
    )


def _job_cells(job: JobStats) -> tuple[str, ...]:
    return (
        f"{job.namespace}/{job.name}",
        job.kind,
        str(job.incidents),
        str(job.restarts),
        span(job.lost.total_s),
        f"{job.ettr:.2%}" if job.ettr is not None else "not known",
        f"{job.lost_steps} ({span(job.work_lost_s)})" if job.goodput is not None else "",
        f"{job.goodput:.2%}" if job.goodput is not None else "",
    )


def _group_cells(group: GroupStats) -> tuple[str, ...]:
    return (
        group.name,
        str(group.interruptions),
        span(group.mtbi_s),
        span(group.mttr_s) if group.mttr_s is not None else "never recovered",
        span(group.lost_s),
    )
