"""`kubectl kcover`: incidents for users. A second name of the same program, which kubectl finds on PATH."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import click
from click.shell_completion import ShellComplete

from kcover_ebpf import __version__
from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.fault_report import API_VERSION, written_s
from kcover_ebpf.api.incident import Incident, Status, incident_of
from kcover_ebpf.cli.entry import call
from kcover_ebpf.cli.kubectl_archive import bundle, report
from kcover_ebpf.cli.kubectl_common import (
    age,
    all_namespaces_option,
    common,
    object_name,
    show,
    show_table,
)
from kcover_ebpf.cli.kubectl_drill import drill
from kcover_ebpf.cli.kubectl_nodes import bad_node, inspect, nodes
from kcover_ebpf.cli.kubectl_restart import restart
from kcover_ebpf.cli.kubectl_simulate import simulate
from kcover_ebpf.cli.kubectl_stats import stats
from kcover_ebpf.cli.kubectl_top import top
from kcover_ebpf.errors import (
    CannotObserve,
    Forbidden,
    KcoverError,
    NotFound,
    ObjectError,
    Unreachable,
    UsageError,
)
from kcover_ebpf.kube.client import ApiClient

_EXAMPLES = """
\b
Examples:
  kubectl kcover list -A                              incidents of all namespaces
  kubectl kcover explain llm-1f2e3d4c -n ml           who waits for whom, and what was done
  kubectl kcover report llm-1f2e3d4c -n ml --to incident.html
  kubectl kcover nodes                                health of nodes, and who cordoned them
  kubectl kcover drill train -n ml --fault stop       break a rank of a job that consents

\b
Exit codes:
  0 done; 2 wrong usage; 3 the cluster did not answer, or does not allow it.
  drill: 1 the wrong pod was named, or the job was not restarted.
  restart --wait: 1 the job was not restarted; 3 it is not over within --timeout.
  inspect: those of kcover-ebpf inspect
"""
_GROUP = f"/apis/{API_VERSION}"
_LONGEST = 200
"""Characters of a description in the list of commands."""
_COLUMNS = ("JOB", "KIND", "VERDICT", "CULPRIT", "NODE", "CAUSE", "PHASE", "AGE", "INCIDENT")


class _Group(click.Group):
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # click cuts a description where the line ends
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, found.get_short_help_str(_LONGEST)) for name, found in commands if found]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.group(cls=_Group, epilog=_EXAMPLES)
@click.version_option(__version__, prog_name="kubectl kcover")
def kubectl() -> None:
    """Incidents of training jobs: list, explain, report, approve; restarts on demand; and the health of nodes."""


kubectl.add_command(nodes)
kubectl.add_command(inspect)
kubectl.add_command(bad_node)
kubectl.add_command(drill)
kubectl.add_command(restart)
kubectl.add_command(top)
kubectl.add_command(stats)
kubectl.add_command(simulate)
kubectl.add_command(bundle)
kubectl.add_command(report)


@kubectl.command("list")
@all_namespaces_option
@common
def list_incidents(client: ApiClient, namespace: str, as_json: bool, all_namespaces: bool) -> int:
    """List incidents, newest last."""
    where = "" if all_namespaces else f"/namespaces/{namespace}"
    try:
        items = client.list(f"{_GROUP}{where}/incidents").get("items") or []
    except NotFound:
        raise CannotObserve("this cluster has no incidents; is kcover-ebpf installed?") from None
    items.sort(key=lambda item: str(item["metadata"].get("creationTimestamp")))
    if as_json:
        print(json.dumps({"items": items}, indent=2))
        return 0
    if not items:
        print(f"no incidents{'' if all_namespaces else f' in namespace {namespace}'}")
        return 0
    head = (("NAMESPACE",) if all_namespaces else ()) + _COLUMNS
    rows = [_row(item, all_namespaces) for item in items]
    show_table([head, *rows])
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
        age(raw["metadata"].get("creationTimestamp")),
        raw["metadata"]["name"],
    )
    return ((raw["metadata"]["namespace"],) if with_namespace else ()) + cells


@kubectl.command()
@click.argument("incident", callback=object_name)
@common
def explain(client: ApiClient, namespace: str, as_json: bool, incident: str) -> int:
    """Explain an incident: culprit, cause, who waits for whom, when the job is ended, actions taken, and time lost."""
    raw = _get(client, namespace, incident)
    if as_json:
        print(json.dumps(raw, indent=2))
        return 0
    found_incident = incident_of(raw)
    show(f"{found_incident.job.kind} {found_incident.namespace}/{found_incident.job.name}")
    if found_incident.status is None:
        print("no decision yet")
        return 0
    _explain(found_incident, found_incident.status)
    return 0


def _explain(incident: Incident, status: Status) -> None:
    from kcover_ebpf.controller.owners import OWNER
    from kcover_ebpf.notify.message import message_of
    from kcover_ebpf.output.formatting import reasons
    from kcover_ebpf.recovery.closing import recorded_verdict, still_so
    from kcover_ebpf.trace.advice import next_step

    show(f"  {status.phase.value}: {status.message}")
    show(f"  still so: {still_so(status)}")
    verdict = recorded_verdict(status, incident.job.name, incident.name)
    show(f"  next: {next_step(verdict, was_restarted=bool(status.restarts))}")
    culprit = verdict.culprit
    if culprit is not None:
        known = {key: getattr(culprit, key) for key in ("rank", "pod", "node", "pid", "device")}
        said = ", ".join(f"{key} {value}" for key, value in known.items() if value is not None)
        show(f"  culprit: {said or 'no culprit identified'}")
    show(f"  owner: {status.owner or f'not known; the label {OWNER} of the job names one'}")
    show(f"  cause: {message_of(incident, status).blame}")
    for title, lines in (
        ("why, as it was found", reasons(verdict, rfc3339.in_seconds)),
        ("what happened, counted from when the fault began", _timeline(status)),
        ("pods stuck in deletion", _stuck(status)),
        ("evidence on nodes", list(status.bundles)),
    ):
        if lines:
            show(f"  {title}:")
            for line in lines:
                show(f"    {line}")
    if status.lost is not None:
        show(f"  time lost: {status.lost.total_s:.1f} s")


def _stuck(status: Status) -> list[str]:
    lines = []
    for pod in status.stuck:
        lines.append(f"{pod.pod} on {pod.node}: {pod.state.value}")
        lines += [f"  known: {text}" for text in pod.known]
        lines.append(f"  next: {pod.next}")
    return lines


def _timeline(status: Status) -> list[str]:
    return [
        f"{moment.time_s - status.began_s:+8.1f} s  {moment.phase:13} {moment.text or ''}"
        for moment in status.timeline
    ]


@kubectl.command()
@click.argument("incident", callback=object_name)
@common
def approve(client: ApiClient, namespace: str, as_json: bool, incident: str) -> int:
    """Approve action on an incident: if its policy requires approval, or once after its budget is used up."""
    _get(client, namespace, incident)
    path = f"{_GROUP}/namespaces/{namespace}/incidents/{incident}"
    raw = client.merge_patch(path, {"spec": {"approved": True}})
    print(json.dumps(raw, indent=2) if as_json else f"incident {incident} approved")
    return 0


@kubectl.command("dry-run")
@click.argument("policy", callback=object_name)
@click.argument("switch", type=click.Choice(["on", "off"]))
@common
def dry_run(client: ApiClient, namespace: str, as_json: bool, policy: str, switch: str) -> int:
    """Switch the dry run of a FaultPolicy on or off; if it does not exist, `on` creates one for all pods."""
    wanted = switch == "on"
    collection = f"{_GROUP}/namespaces/{namespace}/faultpolicies"
    try:
        raw = client.merge_patch(f"{collection}/{policy}", {"spec": {"dryRun": wanted}})
    except NotFound:
        if not wanted:
            raise UsageError(f"no FaultPolicy {policy} in namespace {namespace}") from None
        made = {
            "apiVersion": API_VERSION,
            "kind": "FaultPolicy",
            "metadata": {"name": policy, "namespace": namespace},
            "spec": {"dryRun": True},
        }
        raw = client.create(collection, made)
    print(json.dumps(raw, indent=2) if as_json else f"FaultPolicy {policy}: dry run {switch}")
    return 0


@kubectl.command()
@click.argument("node", callback=object_name)
@common
def uncordon(client: ApiClient, namespace: str, as_json: bool, node: str) -> int:  # noqa: ARG001
    """Mark a node healthy: ignore faults reported before now, and undo our cordon and taints, not those of others."""
    from kcover_ebpf.recovery.nodes.node_plan import CLEARED, view_of

    def clear(text: str, query: dict[str, str] | None = None) -> dict[str, Any]:
        annotations = {"metadata": {"annotations": {CLEARED: text}}}
        return client.merge_patch(f"/api/v1/nodes/{node}", annotations, query)

    try:
        # the clock of this machine may be wrong, and reports are dated by that of the API server
        tried = clear("now", {"dryRun": "All"})
        now_s = written_s(tried.get("metadata") or {})
        if now_s is None:
            by_hand = f"kubectl annotate --overwrite node {node} {CLEARED}=2026-01-02T03:04:05Z"
            text = "the API server does not say what time it is; nothing was changed"
            raise CannotObserve(f"{text}; write the time yourself, such as {by_hand}")
        # the server's time lacks a fraction, and the controller has its own clock: what it cordoned is over as well
        raw = clear(rfc3339.to_text(max(now_s, view_of(tried).since_s or now_s)))
    except NotFound:
        raise UsageError(f"no node {node}; see kubectl get nodes") from None
    next_ = "the controller will uncordon it"
    if view_of(raw).cordoned_by_others:
        next_ = f"it stays cordoned, because others cordoned it: kubectl uncordon {node}"
    done = f"node {node} marked healthy; {next_}"
    print(json.dumps(raw, indent=2) if as_json else done)
    return 0


def _get(client: ApiClient, namespace: str, name: str) -> dict[str, Any]:
    try:
        return client.get(f"{_GROUP}/namespaces/{namespace}/incidents/{name}")
    except NotFound:
        hint = "see kubectl kcover list -A"
        raise UsageError(f"no incident {name} in namespace {namespace}; {hint}") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the plugin; returns its exit code, with one line on stderr for every error."""
    return call(kubectl, "kubectl kcover", arguments, _message)


def complete() -> int:
    """Print the completions of a `kubectl kcover ...` line: kubectl runs this as `kubectl_complete-kcover`.

    One candidate per line, its description after a tab; last a colon and Cobra's directive, here "no file names".
    Source: kubernetes, kubectl/pkg/cmd/plugin/plugin_completion.go.
    """
    *words, unfinished = sys.argv[1:] or [""]
    for completion in ShellComplete(kubectl, {}, "", "").get_completions(words, unfinished):
        print(completion.value, *filter(None, [completion.help]), sep="\t")
    print(":4")
    return 0


def _message(error: KcoverError) -> str:
    match error:
        case Forbidden():
            return f"not allowed: {error}"
        case Unreachable():
            return f"the API server does not answer: {error}"
        case ObjectError():
            return f"{error}; was it written by a newer version?"
    return str(error)
