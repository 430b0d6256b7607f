"""`kubectl kcover nodes` and `kubectl kcover inspect NODE`: health of nodes, as reported, or inspected now."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import click

from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.dra import rule_of
from kcover_ebpf.api.node_health import HEALTHS, ReceivedHealth, health_of
from kcover_ebpf.api.pods import pod_of
from kcover_ebpf.cli.kubectl_common import (
    age,
    agent_namespace_option,
    common,
    object_name,
    show,
    show_table,
    write_event,
)
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import CannotObserve, Forbidden, NotFound, ObjectError, UsageError
from kcover_ebpf.facts.health import Result
from kcover_ebpf.kube import dra
from kcover_ebpf.kube.client import ApiClient
from kcover_ebpf.output.formatting import printable

_COLUMNS = ("NODE", "HEALTH", "SINCE", "GPUS", "CLEAN", "CORDONED BY", "REASON")
_INSPECTED = (0, 1, 3)
"""Exit codes of an inspection that was carried out."""


@dataclass(frozen=True, slots=True)
class _Row:
    """One row of the node table; the fields are the keys of `-o json`."""

    node: str
    health: str
    """Result of the last inspection; "unknown" if none is reported."""
    since: str | None
    reason: str
    kept_out_by: str
    """Who cordoned the node: "kcover", "operator", or empty; "kcover" if both did."""
    kept_out_since: str | None
    kept_out_count: int
    """Number of cordons by kcover within the last month."""
    mtbf_s: float | None
    """Mean seconds between these cordons; null if there are fewer than two."""
    clean_rounds: int
    gpus: str | None
    inspected: str | None
    others: tuple[str, ...]
    """Faults of the node that other programs report."""
    cordoned_by_operator: bool
    """True if cordoned by a person or another program; kcover never undoes that."""


@click.command()
@common
def nodes(client: ApiClient, namespace: str, as_json: bool) -> int:  # noqa: ARG001
    """List nodes: health, reason, who cordoned them, consecutive clean inspections."""
    items = client.list("/api/v1/nodes").get("items") or []
    try:
        found = client.list(HEALTHS).get("items") or []
    except NotFound:
        raise CannotObserve("this cluster has no node health; is kcover-ebpf installed?") from None
    healths = {item["metadata"]["name"]: item for item in found}
    devices, now_s = _on_devices(client), time.time()
    rows = [_row(item, healths, devices, now_s) for item in items]
    if as_json:
        print(json.dumps({"items": [asdict(row) for row in rows]}, indent=2))
        return 0
    show_table([_COLUMNS, *map(_cells, rows)])
    if any(row.health == Result.WARN.value for row in rows):
        print("warn: examine the node when there is time; it is not cordoned for this")
    return 0


def _on_devices(client: ApiClient) -> dict[str, tuple[str, ...]]:
    """Node -> taints of others on single devices; prints a line if they may not be read."""
    from kcover_ebpf.recovery.nodes.others import tainted

    try:
        devices = dra.devices(client)
        rules = dra.taint_rules(client)[1] if devices else []
    except Forbidden as error:
        click.echo(f"taints on single devices are unknown: {printable(str(error))}", err=True)
        return {}
    return tainted(devices, map(rule_of, rules))


def _row(
    raw: Mapping[str, Any],
    healths: Mapping[str, Mapping[str, Any]],
    devices: Mapping[str, tuple[str, ...]],
    now_s: float,
) -> _Row:
    from kcover_ebpf.recovery.nodes.node_health import mtbf_s, offences
    from kcover_ebpf.recovery.nodes.node_plan import CORDONED, view_of

    conditions = (raw.get("status") or {}).get("conditions") or ()
    node = view_of({**raw, "conditions": conditions})
    note = node.annotations.get(CORDONED, "")
    # one that was written by hand need not begin with a time
    since, _, reason = note.partition(" ") if node.since_s is not None else ("", "", note)
    received, wrong = _seen(healths.get(node.name))
    is_known = received is not None and not received.is_stale(now_s)
    if received is not None and not is_known:
        wrong = f"last inspected {age(rfc3339.to_text(received.written_s))} ago"
    health = received.health if received is not None and is_known else None
    by = "kcover" if node.ours else "operator" if node.cordoned else ""
    others = (*node.others, *devices.get(node.name, ()))
    return _Row(
        node=node.name,
        health=health.result.value if health else "unknown",
        since=rfc3339.to_text(health.since_s) if health else None,
        reason="; ".join(filter(None, (reason or (health and health.reason) or wrong, *others))),
        kept_out_by=by,
        kept_out_since=since or None,
        kept_out_count=offences(node.annotations, now_s),
        mtbf_s=mtbf_s(node.annotations, now_s),
        clean_rounds=health.clean_rounds if health else 0,
        gpus=health.gpus if health else None,
        inspected=rfc3339.to_text(received.written_s) if received is not None else None,
        others=others,
        cordoned_by_operator=node.cordoned_by_others,
    )


def _seen(raw: Mapping[str, Any] | None) -> tuple[ReceivedHealth | None, str]:
    """The health of a node, and the reason if there is none; one of them is empty."""
    if raw is None:
        return None, "not inspected"
    try:
        return health_of(raw), ""
    except ObjectError as error:
        return None, str(error)


def _cells(row: _Row) -> tuple[str, ...]:
    by = row.kept_out_by
    if row.kept_out_since:
        by += f" {age(row.kept_out_since)}"
    if row.kept_out_count > 1:
        every = "" if row.mtbf_s is None else f", every {row.mtbf_s / 86400:.1f} d"
        by += f" ({row.kept_out_count}x{every})"
    if row.cordoned_by_operator and row.kept_out_by == "kcover":
        by += ", operator"
    since = age(row.since) if row.since else ""
    return (row.node, row.health, since, row.gpus or "", str(row.clean_rounds), by, row.reason)


@click.command()
@click.argument("node", callback=object_name)
@click.option("--checks", metavar="A,B", help="Run only these checks; default: all light ones.")
@agent_namespace_option
@common
def inspect(
    *,
    client: ApiClient,
    namespace: str,  # noqa: ARG001 - a node has none
    as_json: bool,
    node: str,
    checks: str | None,
    agent_namespace: str | None,
) -> int:
    """Have the agent on a node inspect it now; exit codes are those of `kcover-ebpf inspect`."""
    from kcover_ebpf.kube.exec import Exec
    from kcover_ebpf.trace.gang.agent_pods import AGENT_CONTAINER, agent_on
    from kcover_ebpf.tunables.trace import BEAT_S

    command = ["kcover-ebpf", "inspect", "-o", "json" if as_json else "text"]
    command += ["--checks", checks] if checks else []
    place, agent = agent_on(client, node, agent_namespace)
    try:
        with Exec(client, place, agent, AGENT_CONTAINER, command) as running:
            for line in running.lines(BEAT_S):
                show(line)
            code, said = running.exit_code, running.said or running.refusal
    except Forbidden as error:
        raise CannotObserve(f"{error}; ask for the Role ...-trace of the chart") from error
    if code is None:
        raise CannotObserve(f"the connection to the agent on {node} was cut; try again")
    if code not in _INSPECTED:
        said = said.removeprefix("kcover-ebpf: ") or f"exit code {code}"
        raise CannotObserve(f"agent {place}/{agent} on {node}: {said}")
    return code


@click.command("bad-node")
@click.argument("node", callback=object_name)
@click.option(
    "--why",
    required=True,
    metavar="TEXT",
    help="What is wrong with the node; the operator reads it.",
)
@common
def bad_node(*, client: ApiClient, namespace: str, as_json: bool, node: str, why: str) -> int:
    """Report a bad node that one of your pods runs on; the operator sees it in the node's Events.

    Kcover takes no action. You need permission to list pods and to create Events in the namespace.
    """
    from kcover_ebpf.recovery.nodes.node_plan import BAD_NODE

    query = {"fieldSelector": f"spec.nodeName={node}"}
    listed = client.list(f"/api/v1/namespaces/{namespace}/pods", query).get("items") or ()
    pods = []
    for raw in listed:
        with suppress(ObjectError):
            pods.append(pod_of(raw))
    if not pods:
        raise UsageError(
            f"no pod of namespace {namespace} is on node {node}, so it cannot be reported from there"
        )
    pod = max(pods, key=lambda found: (found.created_s or 0.0, found.name))
    write_event(client, pod, {BAD_NODE: node}, "KcoverBadNodeReported", why)
    if as_json:
        print(json.dumps({"node": node, "namespace": namespace, "pod": pod.name, "why": why}))
    else:
        show(f"reported; to see it: kubectl describe node {node}")
    return 0
