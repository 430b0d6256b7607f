"""`kubectl kcover restart JOB`: requests a restart, which passes the controller's guards."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import click

from kcover_ebpf.api.fault_report import API_VERSION
from kcover_ebpf.api.incident import Incident, Moment, Phase, incident_of
from kcover_ebpf.api.job_kinds import ARMING_LABEL, POD_UID, Gang, gang_of, is_armed
from kcover_ebpf.api.pods import Pod, pod_of
from kcover_ebpf.cli.kubectl_common import common, show, write_event
from kcover_ebpf.cli.options import duration_option
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import CannotObserve, Forbidden, ObjectError, UsageError
from kcover_ebpf.kube.client import ApiClient
from kcover_ebpf.tunables.cli import FOLLOW_S, TAKEN_UP_S

_ENDED = (Phase.RECOVERED, Phase.OBSERVED, Phase.REFUSED, Phase.FAILED)


@dataclass(frozen=True, slots=True)
class JobPods:
    """A gang with its pods."""

    gang: Gang
    pods: tuple[Pod, ...]


@click.command()
@click.argument("job")
@click.option("--in-place", is_flag=True, help="Restart in place only: no pod is replaced.")
@click.option("--wait", is_flag=True, help="Show the phases until the restart is over.")
@duration_option("--timeout", "15m", "Longest wait, with --wait.")
@common
def restart(  # noqa: PLR0913 - one for each option
    *,
    client: ApiClient,
    namespace: str,
    as_json: bool,
    job: str,
    in_place: bool,
    wait: bool,
    timeout: float,
) -> int:
    """Restart a job as a whole, as after a fault: by its policy, within its budget.

    JOB is a name, or KIND/NAME. The job must carry the label that arms it. If a restart is already in progress, no
    second one is requested. With --wait, the exit code is 0 once its ranks make progress, and 1 if it was not
    restarted.
    """
    found = job_of(client, namespace, job)
    before = incidents_of(client, namespace, found.gang)
    acting_incident = next((one for one in before.values() if _is_acting(one)), None)
    if acting_incident is None:
        _refuse_unarmed(client, namespace, found)
        _ask(client, found, in_place)
    said = f"{found.gang.kind} {namespace}/{found.gang.name}: "
    if not as_json:
        show(said + ("is being restarted already" if acting_incident else "restart requested"))
    incident, raw = _taken_up(client, namespace, found.gang, before, acting_incident)
    if wait:
        incident, raw = _followed(client, incident, time.monotonic() + timeout, as_json)
    if as_json:
        print(json.dumps(raw, indent=2))
    elif not wait:
        show(f"incident {incident.name}; kubectl kcover explain {incident.name} -n {namespace}")
    recovered = incident.status is not None and incident.status.phase is Phase.RECOVERED
    return 0 if recovered or not wait else 1


def job_of(client: ApiClient, namespace: str, job: str) -> JobPods:
    """The pods of a job by its NAME or KIND/NAME; raises `UsageError` if they are not exactly one job."""
    kind, _, name = job.rpartition("/")
    gangs: dict[Gang, list[Pod]] = {}
    for raw in client.list(f"/api/v1/namespaces/{namespace}/pods").get("items") or ():
        try:
            pod = pod_of(raw)
        except ObjectError:
            continue  # such a pod is not watched either
        gangs.setdefault(gang_of(pod), []).append(pod)
    named = {
        gang: pods
        for gang, pods in gangs.items()
        if gang.name == name and (not kind or (gang.kind or "").lower() == kind.lower())
    }
    if not named:
        names = sorted({gang.name for gang in gangs if POD_UID not in gang.id.labels})
        known = f"; there are {', '.join(names[:8])}" if names else ""
        raise UsageError(f"no pods of a job {job} in namespace {namespace}{known}")
    if len(named) > 1:
        kinds = ", ".join(sorted(f"{gang.kind}/{gang.name}" for gang in named))
        raise UsageError(f"several jobs are called {name}: name one of {kinds}")
    ((gang, pods),) = named.items()
    if POD_UID in gang.id.labels:
        raise UsageError(f"{name} is a bare pod: it has no controller that would recreate it")
    return JobPods(gang, tuple(pods))


def _refuse_unarmed(client: ApiClient, namespace: str, job: JobPods) -> None:
    """Raise `UsageError` for a job without the label; if an owner may not be read, the controller decides."""
    from kcover_ebpf.controller.owners import Owners
    from kcover_ebpf.recovery.restart.context import GangPod

    if sum(is_armed(pod.labels) for pod in job.pods) * 2 > len(job.pods):
        return
    try:
        found = Owners(client).of_pods(namespace, [GangPod(pod) for pod in job.pods])
    except Forbidden:
        return
    if found is not None and not found.top.armed:
        kind, name = found.top.ref.kind.lower(), found.top.ref.name
        raise UsageError(
            f"{kind} {name} is not armed, so it is not restarted; allow it with: "
            f"kubectl label {kind} {name} -n {namespace} {ARMING_LABEL}=true"
        )


def _ask(client: ApiClient, job: JobPods, in_place: bool) -> None:
    """Write the Event that requests a restart from the controller."""
    from kcover_ebpf.controller.event_recorder import NEED_RECOVERY
    from kcover_ebpf.recovery.restart.demand import ANNOTATION, ANY

    pod = min(job.pods, key=lambda other_pod: (other_pod.ended, other_pod.name))
    method = "InPlace" if in_place else ANY
    message = f"kubectl kcover restart {job.gang.name}{' --in-place' if in_place else ''}"
    annotations = {NEED_RECOVERY: "true", ANNOTATION: method}
    write_event(client, pod, annotations, "KcoverRestartRequested", message)


def incidents_of(client: ApiClient, namespace: str, gang: Gang) -> dict[str, Incident]:
    """Name -> incident of the gang; incidents written by another version are left out."""
    found = {}
    for raw in client.list(_path(namespace)).get("items") or ():
        try:
            incident = incident_of(raw)
        except ObjectError:
            continue
        if incident.gang == gang.id:
            found[incident.name] = incident
    return found


def _taken_up(
    client: ApiClient,
    namespace: str,
    gang: Gang,
    before: Mapping[str, Incident],
    acting_incident: Incident | None,
) -> tuple[Incident, dict[str, Any]]:
    """The incident in which the request is carried out or refused."""
    until_s = time.monotonic() + TAKEN_UP_S
    while acting_incident is None and time.monotonic() < until_s:
        time.sleep(FOLLOW_S)
        for name, incident in incidents_of(client, namespace, gang).items():
            known = before.get(name)
            if incident.status is not None and (known is None or known.status != incident.status):
                acting_incident = incident
    if acting_incident is None:
        raise CannotObserve(
            f"no controller took up the request within {TAKEN_UP_S:.0f} s; is kcover-ebpf installed, "
            f"and does its controller watch namespace {namespace}?"
        )
    raw = client.get(f"{_path(namespace)}/{acting_incident.name}")
    return incident_of(raw), raw


def _followed(
    client: ApiClient, incident: Incident, until_s: float, quiet: bool
) -> tuple[Incident, dict[str, Any]]:
    """The incident once it is over; prints each line of its timeline as it appears."""
    path, start_s = f"{_path(incident.namespace)}/{incident.name}", None
    shown: set[Moment] = set()
    while True:
        raw = client.get(path)
        incident = incident_of(raw)
        status = incident.status
        for moment in status.timeline if status is not None else ():
            start_s = moment.time_s if start_s is None else start_s
            # several lines may have the same time
            if moment not in shown and not quiet:
                show(f"{moment.time_s - start_s:+8.1f} s  {moment.phase:13} {moment.text or ''}")
            shown.add(moment)
        if status is not None and status.phase in _ENDED:
            return incident, raw
        if time.monotonic() >= until_s:
            phase = status.phase.value if status is not None else "not decided yet"
            raise CannotObserve(
                f"incident {incident.name} is not over, it is {phase}; to see more: "
                f"kubectl kcover explain {incident.name} -n {incident.namespace}"
            )
        time.sleep(FOLLOW_S)


def _is_acting(incident: Incident) -> bool:
    return incident.status is not None and incident.status.phase.is_acting


def _path(namespace: str) -> str:
    return f"/apis/{API_VERSION}/namespaces/{namespace}/incidents"
