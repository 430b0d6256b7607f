"""`kubectl kcover`: incidents for people. A second name of the same program, found by kubectl on PATH."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import click

from kcover_ebpf import __version__
from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.fault_report import API_VERSION
from kcover_ebpf.api.incident import Status, incident_of
from kcover_ebpf.cli.entry import call
from kcover_ebpf.errors import (
    CannotObserve,
    Forbidden,
    KcoverError,
    NotFound,
    ObjectError,
    Unreachable,
    UsageError,
)
from kcover_ebpf.kube.client import ApiClient, connect, namespace_of
from kcover_ebpf.output.formatting import printable

_GROUP = f"/apis/{API_VERSION}"
_COLUMNS = ("JOB", "KIND", "VERDICT", "CULPRIT", "NODE", "CAUSE", "PHASE", "AGE", "INCIDENT")
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_Command = Callable[..., int]


def _name(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """A name that an object may have; anything else would make another path of it."""
    if value is not None and not _NAME.fullmatch(value):
        raise click.BadParameter(f"{value!r} is not a valid object name", context, parameter)
    return value


def _common(command: _Command) -> _Command:
    """The options that every verb has, as one session, namespace and format."""

    @click.option(
        "-n",
        "--namespace",
        metavar="NAME",
        callback=_name,
        help="Default: the namespace of the context.",
    )
    @click.option("--kubeconfig", metavar="FILE", help="Instead of KUBECONFIG or ~/.kube/config.")
    @click.option("--context", metavar="NAME", help="Context of the kubeconfig.")
    @click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text")
    @wraps(command)
    def run(
        namespace: str | None, kubeconfig: str | None, context: str | None, output: str, **more: Any
    ) -> int:
        session = connect(kubeconfig, context)
        chosen = namespace or namespace_of(kubeconfig, context)
        return command(session=session, namespace=chosen, as_json=output == "json", **more)

    return run


@click.group()
@click.version_option(__version__, prog_name="kubectl kcover")
def kubectl() -> None:
    """Incidents of training jobs: list, explain, approve; and uncordon nodes."""


@kubectl.command("list")
@click.option("-A", "--all-namespaces", is_flag=True, help="In all namespaces.")
@_common
def list_incidents(session: ApiClient, namespace: str, as_json: bool, all_namespaces: bool) -> int:
    """List incidents, newest last."""
    where = "" if all_namespaces else f"/namespaces/{namespace}"
    try:
        items = session.list(f"{_GROUP}{where}/incidents").get("items") or []
    except NotFound:
        raise CannotObserve("this cluster has no incidents; is kcover-ebpf installed?") from None
    items.sort(key=lambda each: str(each["metadata"].get("creationTimestamp")))
    if as_json:
        print(json.dumps({"items": items}, indent=2))
        return 0
    if not items:
        print(f"no incidents{'' if all_namespaces else f' in namespace {namespace}'}")
        return 0
    head = (("NAMESPACE",) if all_namespaces else ()) + _COLUMNS
    rows = [_row(each, all_namespaces) for each in items]
    _table([head, *rows])
    return 0


def _row(raw: dict[str, Any], with_namespace: bool) -> tuple[str, ...]:
    status = raw.get("status") or {}
    job, culprit = raw["spec"]["job"], status.get("culprit") or {}
    cells = (
        job["name"],
        job["kind"],
        status.get("verdict", ""),
        culprit.get("pod", ""),
        culprit.get("node", ""),
        status.get("cause", ""),
        status.get("phase", ""),
        _age(raw["metadata"].get("creationTimestamp")),
        raw["metadata"]["name"],
    )
    return ((raw["metadata"]["namespace"],) if with_namespace else ()) + cells


def _print(line: str) -> None:
    # names of threads, files and pods come from the job, and could command a terminal
    print(printable(line))


def _table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        _print(
            "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )


def _age(text: object) -> str:
    seconds = time.time() - rfc3339.from_text(str(text)) if text else 0.0
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{max(seconds, 0):.0f}s"


@kubectl.command()
@click.argument("incident", callback=_name)
@_common
def explain(session: ApiClient, namespace: str, as_json: bool, incident: str) -> int:
    """Explain an incident: culprit, cause, actions taken, and time lost."""
    raw = _get(session, namespace, incident)
    if as_json:
        print(json.dumps(raw, indent=2))
        return 0
    found = incident_of(raw)
    _print(f"{found.job.kind} {found.namespace}/{found.job.name}")
    if found.status is None:
        print("no decision yet")
        return 0
    _explain(found.status)
    return 0


def _explain(status: Status) -> None:
    _print(f"  {status.phase.value}: {status.message}")
    culprit = status.culprit
    if culprit is not None:
        known = {key: getattr(culprit, key) for key in ("rank", "pod", "node", "pid", "device")}
        said = ", ".join(f"{key} {value}" for key, value in known.items() if value is not None)
        _print(f"  culprit: {said or 'no culprit identified'}")
    if status.deadline_s is not None:
        _print(f"  the framework would have given up at {rfc3339.to_text(status.deadline_s)[:19]}Z")
    for title, lines in (
        ("why", [f"[{each.kind.value}] {each.text}" for each in status.evidence]),
        ("not observed", list(status.unobserved)),
        ("what happened", _timeline(status)),
        ("evidence on nodes", list(status.bundles)),
    ):
        if lines:
            _print(f"  {title}:")
            for line in lines:
                _print(f"    {line}")
    if status.lost is not None:
        _print(f"  time lost: {status.lost.total_s:.1f} s")


def _timeline(status: Status) -> list[str]:
    start_s = status.timeline[0].time_s if status.timeline else 0.0
    return [
        f"{each.time_s - start_s:+8.1f} s  {each.phase:13} {each.text or ''}"
        for each in status.timeline
    ]


@kubectl.command()
@click.argument("incident", callback=_name)
@_common
def approve(session: ApiClient, namespace: str, as_json: bool, incident: str) -> int:
    """Approve action on an incident: where its policy requires approval, or once beyond a used-up budget."""
    _get(session, namespace, incident)
    path = f"{_GROUP}/namespaces/{namespace}/incidents/{incident}"
    raw = session.merge_patch(path, {"spec": {"approved": True}})
    print(json.dumps(raw, indent=2) if as_json else f"incident {incident} approved")
    return 0


@kubectl.command("dry-run")
@click.argument("policy", callback=_name)
@click.argument("switch", type=click.Choice(["on", "off"]))
@_common
def dry_run(session: ApiClient, namespace: str, as_json: bool, policy: str, switch: str) -> int:
    """Switch the dry run of a FaultPolicy on or off; without one, it is created for all pods."""
    wanted = switch == "on"
    collection = f"{_GROUP}/namespaces/{namespace}/faultpolicies"
    try:
        raw = session.merge_patch(f"{collection}/{policy}", {"spec": {"dryRun": wanted}})
    except NotFound:
        if not wanted:
            raise UsageError(f"no FaultPolicy {policy} in namespace {namespace}") from None
        made = {
            "apiVersion": API_VERSION,
            "kind": "FaultPolicy",
            "metadata": {"name": policy, "namespace": namespace},
            "spec": {"dryRun": True},
        }
        raw = session.create(collection, made)
    print(json.dumps(raw, indent=2) if as_json else f"FaultPolicy {policy}: dry run {switch}")
    return 0


@kubectl.command()
@click.argument("node", callback=_name)
@_common
def uncordon(session: ApiClient, namespace: str, as_json: bool, node: str) -> int:  # noqa: ARG001
    """Mark a node healthy: ignore faults reported before now, and undo our cordon and taints."""
    from kcover_ebpf.recovery.node_plan import CLEARED

    now = rfc3339.to_text(time.time())
    try:
        raw = session.merge_patch(
            f"/api/v1/nodes/{node}", {"metadata": {"annotations": {CLEARED: now}}}
        )
    except NotFound:
        raise UsageError(f"no node {node}; see kubectl get nodes") from None
    done = f"node {node} marked healthy; the controller will uncordon it"
    print(json.dumps(raw, indent=2) if as_json else done)
    return 0


def _get(session: ApiClient, namespace: str, name: str) -> dict[str, Any]:
    try:
        return session.get(f"{_GROUP}/namespaces/{namespace}/incidents/{name}")
    except NotFound:
        hint = "see kubectl kcover list -A"
        raise UsageError(f"no incident {name} in namespace {namespace}; {hint}") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the plugin; returns its exit code, with one line on stderr for every error."""
    return call(kubectl, "kubectl kcover", arguments, _message)


def _message(error: KcoverError) -> str:
    match error:
        case Forbidden():
            return f"not allowed: {error}"
        case Unreachable():
            return f"the API server does not answer: {error}"
        case ObjectError():
            return f"{error}; was it written by a newer version?"
    return str(error)
