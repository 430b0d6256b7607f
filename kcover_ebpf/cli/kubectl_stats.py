"""`kubectl kcover stats`: the cost of incidents, by job, node and cause."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict

import click

from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.incident import Incident
from kcover_ebpf.api.node_health import HEALTHS
from kcover_ebpf.cli.kubectl_common import all_namespaces_option, common, show, show_table
from kcover_ebpf.cli.kubectl_incidents import JobFacts, incidents_since
from kcover_ebpf.cli.options import duration_option
from kcover_ebpf.errors import Forbidden, NotFound, ObjectError
from kcover_ebpf.kube.client import ApiClient
from kcover_ebpf.output.formatting import span
from kcover_ebpf.recovery.incident_stats import (
    GroupStats,
    IncidentStats,
    JobStats,
    LostCost,
    LostTime,
    NamespaceStats,
    stats_of,
)

_JOB_COLUMNS = (
    *("JOB", "KIND", "INCIDENTS", "RESTARTS", "LOST", "GPU HOURS", "COST", "ETTR"),
    *("STEPS LOST", "GOODPUT"),
)
_NAMESPACE_COLUMNS = ("NAMESPACE", "JOBS", "INCIDENTS", "LOST", "GPU HOURS", "COST", "ETTR")
_LOST = {"decide_s": "until decided"}
"""Words for lost time that differ from the field's name: without a decision, "decision" lasts until the end."""
_GROUP_COLUMNS = ("INTERRUPTIONS", "MTBI", "MTTR", "LOST")


@click.command()
@all_namespaces_option
@duration_option("--since", "7d", "How far back.")
@common
def stats(
    *, client: ApiClient, namespace: str, as_json: bool, all_namespaces: bool, since: float
) -> int:
    """Show what incidents cost: time lost by phase, effective training time, mean times by node and cause.

    It reaches back as far as incidents are kept: a month, and 60 of each job.
    """
    now_s = time.time()
    incidents = incidents_since(client, None if all_namespaces else namespace, now_s - since)
    created_s = JobFacts(client, incidents).created_s
    found = stats_of(incidents, _observed_s(client, incidents, now_s - since), now_s, created_s)
    if as_json:
        print(json.dumps(asdict(found), indent=2))
        return 0
    _show(found)
    return 0


def _observed_s(client: ApiClient, incidents: Sequence[Incident], since_s: float) -> float:
    """Since when this cluster is known to be observed (unix seconds), but not before `since_s`."""
    try:
        healths = client.list(HEALTHS).get("items") or []
    except (Forbidden, NotFound):
        return since_s
    seen_s = [incident.created_s for incident in incidents]
    for raw in healths:
        with contextlib.suppress(ObjectError, ValueError):
            seen_s.append(rfc3339.from_text(str(raw["metadata"].get("creationTimestamp"))))
    return max(since_s, min(seen_s, default=since_s))


def _show(stats: IncidentStats) -> None:
    show(
        f"{stats.incidents} incidents in {span(stats.window_s)}: {stats.interruptions} interruptions, "
        f"{stats.restarts} restarts, {span(stats.lost.total_s)} lost"
    )
    if not stats.incidents:
        return
    show(f"  lost: {_parts(stats.lost)}")
    if stats.cost.gpu_hours:
        price = _price(stats.cost)
        show(f"  GPUs: {stats.cost.gpu_hours:.1f} hours{f', {price}' if price else ''}")
    if len(stats.namespaces) > 1:
        print()
        show_table([_NAMESPACE_COLUMNS, *map(_namespace_cells, stats.namespaces)])
    print()
    show_table([_JOB_COLUMNS, *map(_job_cells, stats.jobs)])
    for title, groups in (("NODE", stats.nodes), ("CAUSE", stats.causes)):
        if groups:
            print()
            show_table([(title, *_GROUP_COLUMNS), *map(_group_cells, groups)])


def _parts(lost: LostTime) -> str:
    return ", ".join(
        f"{_LOST.get(name) or name.removesuffix('_s').replace('_', ' ')} {span(value)}"
        for name, value in asdict(lost).items()
    )


def _price(cost: LostCost) -> str:
    return " + ".join(f"{price:.2f} {currency}" for currency, price in cost.prices)


def _ratio(ettr: float | None) -> str:
    return f"{ettr:.2%}" if ettr is not None else "not known"


def _namespace_cells(namespace: NamespaceStats) -> tuple[str, ...]:
    return (
        namespace.name,
        str(namespace.jobs),
        str(namespace.incidents),
        span(namespace.lost.total_s),
        f"{namespace.cost.gpu_hours:.1f}",
        _price(namespace.cost),
        _ratio(namespace.ettr),
    )


def _job_cells(job: JobStats) -> tuple[str, ...]:
    return (
        f"{job.namespace}/{job.name}",
        job.kind,
        str(job.incidents),
        str(job.restarts),
        span(job.lost.total_s),
        f"{job.cost.gpu_hours:.1f}",
        _price(job.cost),
        _ratio(job.ettr),
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
