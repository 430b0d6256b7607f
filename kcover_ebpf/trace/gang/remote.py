"""`kcover-ebpf trace POD`: the agent on the pod's node reads its threads, and the result is shown here.

The verdict is that of the job's Incident or of the agents' reports, if there is one: the agents have watched the
job, on all of its nodes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from kcover_ebpf.api.job_kinds import gang_of
from kcover_ebpf.api.pods import ContainerKind, Pod, pod_of
from kcover_ebpf.errors import (
    ApiError,
    CannotObserve,
    Forbidden,
    NotFound,
    UsageError,
)
from kcover_ebpf.gang.gang_input import GangVerdict
from kcover_ebpf.kube.client import ApiClient, connect, namespace_of
from kcover_ebpf.kube.exec import Exec
from kcover_ebpf.output import formatting
from kcover_ebpf.trace import records
from kcover_ebpf.trace.gang import watched
from kcover_ebpf.trace.gang.agent_pods import AGENT_CONTAINER, agent_on, readable
from kcover_ebpf.trace.gang.nodes_at_once import TracedNode, traced_together
from kcover_ebpf.trace.options import TraceOptions
from kcover_ebpf.trace.records import UNKNOWN_CODE, exit_code_of
from kcover_ebpf.tunables.trace import BEAT_S

_LIVE_ONLY_ONE = "--live follows one node; name one pod"
_NOT_FOUND_CODES = (126, 127)


def lines(options: TraceOptions) -> Iterator[str]:
    """The records of the run; raises `UsageError` and `CannotObserve` with advice."""
    session = connect(options.kubeconfig, options.context)
    if options.namespace is None:
        options = replace(options, namespace=namespace_of(options.kubeconfig, options.context))
    try:
        pods = _pods_of_job(session, options) if options.job else [_pod(session, options)]
        places = [_place(session, node, group, options) for node, group in _by_node(pods)]
        agents = places[0].agent_namespace
        known_gang_verdict = (
            None if options.live else watched.verdict_of(session, pods[0], time.time(), agents)
        )
    except Forbidden as error:
        raise CannotObserve(
            f"not allowed: {error}; ask for the Role ...-trace of the chart"
        ) from error
    except ApiError as error:
        raise CannotObserve(f"cannot ask the API server: {error}") from error
    if len(places) == 1:
        yield from _with(
            known_gang_verdict,
            _trace(session, places[0], options, brief=known_gang_verdict is not None),
        )
        return
    if options.live:
        raise UsageError(_LIVE_ONLY_ONE)
    brief = known_gang_verdict is not None
    yield from traced_together(
        places, lambda place: _trace(session, place, options, brief=brief), known_gang_verdict
    )


def _with(known_gang_verdict: GangVerdict | None, traced: Iterator[str]) -> Iterator[str]:
    """The records with the known verdict, if there is one."""
    for text in traced:
        line = records.parse(text)
        if line.event == "verdict" and known_gang_verdict is None:
            yield _without_report(text)
        elif known_gang_verdict is None or line.event not in ("verdict", "end"):
            yield text
        elif line.event == "verdict":
            fields = watched.conclusion(known_gang_verdict, line.fields)
            yield formatting.event_line("verdict", line.time_s, fields)
        else:
            code = exit_code_of(known_gang_verdict.verdict.kind.value)
            yield formatting.event_line("end", line.time_s, {"exit_code": code})


def _without_report(text: str) -> str:
    # what a node sends to be judged with those of other nodes
    fields = json.loads(text)
    return text if fields.pop("report", None) is None else json.dumps(fields, separators=(",", ":"))


def _pod(client: ApiClient, options: TraceOptions) -> Pod:
    try:
        found = client.get(f"/api/v1/namespaces/{options.namespace}/pods/{options.pod}")
    except NotFound as error:
        raise UsageError(
            f"no pod {options.pod} in namespace {options.namespace}; `kubectl get pods -A` lists them"
        ) from error
    return _running(pod_of(found))


def _running(pod: Pod) -> Pod:
    if pod.phase != "Running" or not pod.node:
        where = f"is {pod.phase or 'not known'}"
        raise UsageError(f"pod {pod.name} {where}, not Running: there is no process to trace")
    return pod


def _pods_of_job(client: ApiClient, options: TraceOptions) -> list[Pod]:
    found = client.list(f"/api/v1/namespaces/{options.namespace}/pods")
    pods = readable(found.get("items", []))
    gangs = [(pod, gang_of(pod)) for pod in pods]
    mine = [pod for pod, gang in gangs if gang.name == options.job]
    if not mine:
        names = sorted({gang.name for _, gang in gangs})
        known = f"; there are {', '.join(names[:8])}" if names else ""
        raise UsageError(f"no pods of a job {options.job} in namespace {options.namespace}{known}")
    alive = [pod for pod in mine if pod.phase == "Running" and pod.node]
    if not alive:
        raise UsageError(f"no pod of job {options.job} is Running: there is no process to trace")
    return alive


def _by_node(pods: Sequence[Pod]) -> list[tuple[str, list[Pod]]]:
    nodes: dict[str, list[Pod]] = {}
    for pod in sorted(pods, key=lambda other_pod: (other_pod.node, other_pod.name)):
        nodes.setdefault(pod.node, []).append(pod)
    return list(nodes.items())


def _place(client: ApiClient, node: str, pods: Sequence[Pod], options: TraceOptions) -> TracedNode:
    namespace, agent = agent_on(client, node, options.agent_namespace)
    ids = [container for pod in pods for container in _containers(pod, options.container)]
    name = options.job or pods[0].name
    return TracedNode(node, namespace, agent, tuple(pods), tuple(ids), name)


def _containers(pod: Pod, name: str | None) -> list[str]:
    kinds = (ContainerKind.MAIN, ContainerKind.SIDECAR)
    running = [
        container for container in pod.containers if container.id and container.kind in kinds
    ]
    if name is None:
        return [container.id for container in running]
    chosen = [
        container.id for container in pod.containers if container.name == name and container.id
    ]
    if not chosen:
        names = ", ".join(container.name for container in pod.containers)
        raise UsageError(f"pod {pod.name} runs no container {name}; it has {names}")
    return chosen


def _command(node: TracedNode, *, live: bool, brief: bool) -> list[str]:
    command = ["kcover-ebpf", "trace", "-o", "jsonl", "--with-asker", "--name", node.name]
    command += ["--live"] if live else []
    command += ["--brief"] if brief else []
    for pod in node.pods:
        command += ["--pod-uid", f"{pod.uid}={pod.name}"]
    for container in node.containers:
        command += ["--container-id", container]
    return command


def _trace(
    client: ApiClient, node: TracedNode, options: TraceOptions, *, brief: bool
) -> Iterator[str]:
    try:
        with Exec(
            client,
            node.agent_namespace,
            node.agent,
            AGENT_CONTAINER,
            _command(node, live=options.live, brief=brief),
        ) as running:
            concluded = False
            for text in running.lines(BEAT_S):
                concluded |= records.parse(text).event == "end"
                yield text
            _explain(node, running, concluded=concluded)
    except Forbidden as error:
        raise CannotObserve(
            f"not allowed to exec into the agents of namespace {node.agent_namespace}: {error}; "
            "ask for the Role ...-trace of the chart"
        ) from error
    except ApiError as error:
        raise CannotObserve(f"the agent on {node.node} cannot be reached: {error}") from error


def _explain(node: TracedNode, running_exec: Exec, *, concluded: bool) -> None:
    where = f"agent {node.agent_namespace}/{node.agent} on {node.node}"
    if running_exec.refusal or running_exec.exit_code in _NOT_FOUND_CODES:
        raise CannotObserve(
            f"{where} has no kcover-ebpf: {running_exec.refusal or running_exec.said}"
        )
    if running_exec.exit_code is None:
        raise CannotObserve(f"the connection to {where} was cut; try again")
    # the verdict UNKNOWN ends with the same code as a run that was not possible
    if running_exec.exit_code not in (0, 1) and not (
        concluded and running_exec.exit_code == UNKNOWN_CODE
    ):
        said = (
            running_exec.said.removeprefix("kcover-ebpf: ") or f"exit code {running_exec.exit_code}"
        )
        raise CannotObserve(f"{where}: {said}")
