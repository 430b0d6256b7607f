"""`kubectl kcover drill JOB`: injects a fault into a job of the user's cluster, and rates the reaction."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import asdict, field

import click

from kcover_ebpf.api.codec import decode
from kcover_ebpf.api.drill import CONSENT, FAULTS_HELP, DrillFault, DrillOver, Injected, consents
from kcover_ebpf.api.incident import Incident
from kcover_ebpf.api.pods import Pod
from kcover_ebpf.cli.kubectl_common import agent_namespace_option, common, object_name, show
from kcover_ebpf.cli.kubectl_restart import JobPods, incidents_of, job_of
from kcover_ebpf.cli.options import duration_option
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import ApiError, CannotObserve, Forbidden, UsageError
from kcover_ebpf.kube.client import ApiClient
from kcover_ebpf.recovery.drill_score import Scorecard, score
from kcover_ebpf.tunables.cli import DRILL_RECOVERS_S, FOLLOW_S, INJECTED_S


@dataclass
class _Running:
    """The running fault, read by a thread from the output of its node."""

    injected: Injected | None = None
    over: DrillOver | None = None
    error: str = ""
    begun_event: threading.Event = field(default_factory=threading.Event)
    ended_event: threading.Event = field(default_factory=threading.Event)


@click.command()
@click.argument("job")
@click.option(
    "--fault",
    required=True,
    type=click.Choice([fault.value for fault in DrillFault]),
    help=FAULTS_HELP,
)
@click.option("--pod", callback=object_name, help="The pod to break; default: the last by name.")
@duration_option("--for", "60s", "Duration of the fault; at most 10m.")
@agent_namespace_option
@common
def drill(  # noqa: PLR0913 - one for each option
    *,
    client: ApiClient,
    namespace: str,
    as_json: bool,
    job: str,
    fault: str,
    pod: str | None,
    agent_namespace: str | None,
    **more: float,
) -> int:
    """Break a rank of a job on purpose, and print a scorecard: time to the verdict, its correctness, time to recovery.

    Only pods with the label kcover.io/drill=true are affected. The agent on the node injects the fault and undoes
    it. The exit code is 0 if the right pod was named and the job was restarted (or is not armed), else 1.
    """
    found = job_of(client, namespace, job)
    chosen = _chosen(found, pod)
    before = incidents_of(client, namespace, found.gang)
    if any(one.status is not None and one.status.phase.is_acting for one in before.values()):
        raise UsageError(
            f"job {found.gang.name} is being restarted; start the drill once it trains"
        )
    running = _Running()
    command = ["kcover-ebpf", "drill", chosen.name, "--namespace", namespace, "--with-asker"]
    command += ["--fault", fault, "--for", f"{more['for']:.0f}s"]
    place = _agent(client, chosen.node, agent_namespace)
    asked = threading.Thread(
        target=_run, args=(client, place, command, running), name="drill", daemon=True
    )
    asked.start()
    if not running.begun_event.wait(INJECTED_S) or running.injected is None:
        raise CannotObserve(f"the fault was not injected: {running.error or 'no answer'}")
    if not as_json:
        rank = f"rank {running.injected.rank}, " if running.injected.rank is not None else ""
        show(f"{fault}: {rank}pod {chosen.name} on {chosen.node}, pid {running.injected.pid}")
    incident = _followed(client, namespace, found, before, running)
    scorecard = score(running.injected, chosen, incident, running.over)
    print(json.dumps(asdict(scorecard), indent=2)) if as_json else _show(scorecard)
    return 0 if scorecard.passed else 1


def _chosen(job: JobPods, name: str | None) -> Pod:
    live = [pod for pod in job.pods if pod.phase == "Running" and pod.deleted_s is None]
    named = [pod for pod in live if name in (None, pod.name)]
    if not named:
        raise UsageError(f"no pod {name or 'of the job'} runs; there are {_names(live)}")
    chosen = max(named, key=lambda pod: pod.name)
    if not consents(chosen.labels):
        raise UsageError(
            f"pod {chosen.name} does not consent to drills; put the label {CONSENT}=true into the "
            "pod template of a job that may be broken"
        )
    return chosen


def _names(pods: list[Pod]) -> str:
    return ", ".join(sorted(pod.name for pod in pods)[:8]) or "none"


def _agent(client: ApiClient, node: str, namespace: str | None) -> tuple[str, str]:
    from kcover_ebpf.trace.gang.agent_pods import agent_on

    return agent_on(client, node, namespace)


def _run(client: ApiClient, place: tuple[str, str], command: list[str], running: _Running) -> None:
    from kcover_ebpf.kube.exec import Exec
    from kcover_ebpf.trace.gang.agent_pods import AGENT_CONTAINER
    from kcover_ebpf.tunables.trace import BEAT_S

    try:
        with Exec(client, *place, AGENT_CONTAINER, command) as asked:
            for line in asked.lines(BEAT_S):
                if running.injected is None:
                    running.injected = decode(Injected, json.loads(line))
                    running.begun_event.set()
                else:
                    running.over = decode(DrillOver, json.loads(line))
            running.error = asked.said or asked.refusal
    except Forbidden as error:
        running.error = f"{error}; ask for the Role ...-trace of the chart"
    except (ApiError, ValueError) as error:
        running.error = str(error)
    finally:
        running.begun_event.set()
        running.ended_event.set()


def _followed(
    client: ApiClient,
    namespace: str,
    job: JobPods,
    before: dict[str, Incident],
    running: _Running,
) -> Incident | None:
    """The incident of the fault once both are over; after a time limit, its state at that time."""
    found_incident: Incident | None = None
    deadline_s = None
    while deadline_s is None or time.monotonic() < deadline_s:
        for name, incident in incidents_of(client, namespace, job.gang).items():
            known = before.get(name)
            if incident.status is not None and (known is None or known.status != incident.status):
                found_incident = incident
        is_over = (
            found_incident is not None
            and found_incident.status is not None
            and found_incident.status.phase.is_over
        )
        if running.ended_event.is_set():
            if is_over:
                return found_incident
            if deadline_s is None:
                deadline_s = time.monotonic() + DRILL_RECOVERS_S
        time.sleep(FOLLOW_S)
    return found_incident


def _show(scorecard: Scorecard) -> None:
    def after(value: float | None) -> str:
        return f"{value:.1f} s" if value is not None else "-"

    named = {True: "right", False: "WRONG", None: "no culprit named"}[scorecard.right]
    what = (
        f"{scorecard.verdict} {scorecard.cause}" if scorecard.verdict is not None else "no incident"
    )
    class_ = f", {scorecard.failure}" if scorecard.failure not in (None, "unknown") else ""
    show(f"  named after          {after(scorecard.named_after_s):>8}   {named}: {what}{class_}")
    show(f"  shut down after      {after(scorecard.stopped_after_s):>8}")
    show(f"  running again after  {after(scorecard.running_after_s):>8}")
    show(f"  training again after {after(scorecard.training_after_s):>8}")
    show(f"  the injected fault   {scorecard.fault_end or 'not known'}")
    show(f"  {scorecard.incident or 'no incident'}  {scorecard.outcome}")
