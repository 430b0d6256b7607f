"""The verdict on a job that the agents watch: they saw it train, on all of its nodes.

The verdict is that of the job's open Incident. Without one, the agents' reports are judged by the controller's own
judge; what the controller knows and cannot be read here is listed in `unobserved`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kcover_ebpf.api import agent_lease, fault_policy, fault_report
from kcover_ebpf.api.agent_lease import AgentLease
from kcover_ebpf.api.fault_policy import FaultPolicy
from kcover_ebpf.api.fault_report import API_VERSION
from kcover_ebpf.api.job_kinds import Gang, GangId, gang_of
from kcover_ebpf.api.nodes import is_ready
from kcover_ebpf.api.pods import Pod, pod_of
from kcover_ebpf.errors import ApiError, NotFound, ObjectError
from kcover_ebpf.gang import missing
from kcover_ebpf.gang.gang_input import GangInput, GangVerdict, NodeState
from kcover_ebpf.gang.gang_judge import merge
from kcover_ebpf.gang.gang_snapshot import ReceivedReport, confirmed
from kcover_ebpf.kube.client import ApiClient, segment
from kcover_ebpf.model.verdict import VerdictKind
from kcover_ebpf.output import formatting
from kcover_ebpf.trace import advice
from kcover_ebpf.trace.gang import open_incident
from kcover_ebpf.tunables.recovery import REPORTS_APART_S, REPORTS_VAGUE_S

_BASE = f"/apis/{API_VERSION}/namespaces"
_NOTHING_WRONG = (VerdictKind.WORKING, VerdictKind.UNKNOWN)
_DEPENDS = "the report of a node that has not reported yet may change the verdict"
_INCIDENTS = "the Incident of the job: `incidents` may not be read"
_NODES = "whether nodes that do not report are ready: `nodes` may not be read"


def verdict_of(
    client: ApiClient, pod: Pod, now_s: float, agent_namespace: str
) -> GangVerdict | None:
    """The verdict on the job of this pod; None if its Incident and the agents report no fault.

    `agent_namespace`: namespace of their Leases, by which they confirm their reports. Also None if the reports may
    not be read, or are older by this machine's clock (`now_s`, unix seconds) than the controller would accept: then
    the threads of the job have to be read. The same holds for a pod that only has the job's labels.
    """
    gang = gang_of(pod)
    space = segment(gang.namespace)
    pods = _listed(client, f"/api/v1/namespaces/{space}/pods")
    members, strays = _members(pods or (), gang)
    if pods is None or pod.uid in strays:
        return None
    reports = _listed(client, f"{_BASE}/{space}/faultreports")
    seen = [report for entry in reports or () if (report := _report(entry, gang, now_s))]
    leases = _leases(client, agent_namespace, now_s) if seen else {}
    seen = [
        confirmed(received, *lease) if (lease := leases.get(received.report.node)) else received
        for received in seen
    ]
    incidents = _listed(client, f"{_BASE}/{space}/incidents")
    known_gang_verdict = open_incident.verdict_in(incidents or (), gang, seen, now_s)
    policies = None if known_gang_verdict else _listed(client, f"{_BASE}/{space}/faultpolicies")
    if known_gang_verdict is not None or not seen or policies is None:
        return known_gang_verdict
    policy = _policy(policies, gang.namespace, pod.labels).settings()
    name = f"{gang.namespace}/{gang.name}"
    gang_input = GangInput(name, seen, members, {}, policy, now_s, frozenset(strays))
    return _judged(client, gang_input, [_INCIDENTS] if incidents is None else [])


def _judged(client: ApiClient, gang_input: GangInput, unread: list[str]) -> GangVerdict | None:
    """The controller's verdict on the case, without what only the controller knows."""
    nodes = _nodes(client, gang_input)
    gang_verdict = merge(replace(gang_input, nodes=nodes or {}))
    verdict = gang_verdict.verdict
    if verdict.kind in _NOTHING_WRONG:
        return None
    unknown = [
        *verdict.unobserved,
        *unread,
        *_unknown(gang_input),
        *([_NODES] if nodes is None else []),
    ]
    return replace(gang_verdict, verdict=replace(verdict, unobserved=tuple(unknown)))


def _unknown(gang_input: GangInput) -> Iterator[str]:
    if len({received.report.node for received in gang_input.fresh}) > 1:
        apart_s = REPORTS_APART_S + REPORTS_VAGUE_S
        yield f"which of two events on different nodes came first, if less than {apart_s} s apart"
    owners = len({pod.controller for pod in gang_input.pods})
    if owners > 1:
        yield f"whether the pods of all {owners} controllers with its labels belong to the job"


def _members(raw: Sequence[Mapping[str, Any]], gang: Gang) -> tuple[list[Pod], set[str]]:
    """The pods of the gang, and the uids of those that only have its labels, such as a debug copy of a pod."""
    pods = [pod for pod in map(pod_of, raw) if gang_of(pod) == gang]
    ours = [pod for pod in pods if pod.controller is not None] or pods
    return ours, {pod.uid for pod in pods} - {pod.uid for pod in ours}


def _nodes(client: ApiClient, gang_input: GangInput) -> dict[str, NodeState] | None:
    """Nodes that may be lost: no agent reports about them while others have stalled; None if they may not be read."""
    found = {}
    stalled = any(received.report.suspicious for received in gang_input.fresh)
    for name in missing.unheard(gang_input) if stalled else ():
        try:
            raw = client.get(f"/api/v1/nodes/{segment(name)}")
        except NotFound:
            continue
        except ApiError:
            return None
        found[name] = NodeState(name, is_ready(raw))
    return found


def _listed(client: ApiClient, path: str) -> Sequence[Mapping[str, Any]] | None:
    """The objects of a collection; None if it may not be read, or does not exist."""
    try:
        return client.list(path).get("items") or []
    except ApiError:
        return None


def _leases(client: ApiClient, namespace: str, now_s: float) -> dict[str, tuple[AgentLease, float]]:
    """Node -> last Lease of its agent and its time; empty if they may not be read."""
    found = {}
    for raw in _listed(client, agent_lease.collection(segment(namespace))) or ():
        written_s = fault_report.written_s(raw.get("metadata") or {})
        with contextlib.suppress(ObjectError):
            lease = agent_lease.lease_of(raw)
            if lease is not None and written_s is not None:
                found[lease.node] = lease, min(written_s, now_s)
    return found


def _report(raw: Mapping[str, Any], gang: Gang, now_s: float) -> ReceivedReport | None:
    try:
        report = fault_report.report_of(raw)
    except ObjectError:
        return None
    written_s = fault_report.written_s(raw.get("metadata") or {})
    if report.job is None or GangId.of(gang.namespace, report.job.selector) != gang.id:
        return None
    # clocks of the operator's machine and the API server may differ: undated reports are not believed
    return None if written_s is None else ReceivedReport(report, min(written_s, now_s), None)


def _policy(
    raw: Sequence[Mapping[str, Any]], namespace: str, labels: Mapping[str, str]
) -> FaultPolicy:
    named = []
    for entry in raw:
        try:
            named.append(fault_policy.policy_of(entry))
        except ObjectError:
            named.append(fault_policy.refused(entry))
    policy = fault_policy.holding(named, namespace, labels)
    return FaultPolicy() if policy is None else policy.policy


def conclusion(
    gang_verdict: GangVerdict, traced: Mapping[str, Any], *, watched: bool = True
) -> dict[str, Any]:
    """The fields of the record `verdict`; `traced`: what was read of the threads, without a verdict.

    `watched`: it comes from agents that saw the job while it was healthy, or from its Incident.
    """
    verdict = gang_verdict.verdict
    unobserved = [*verdict.unobserved, *traced.get("unobserved", [])]
    doubts = advice.doubt(verdict, watched=watched)
    return {
        **formatting.verdict_object(verdict),
        **({"source": "agents"} if watched else {}),
        "unobserved": list(dict.fromkeys(unobserved)),
        "edges": traced.get("edges", []),
        "headline": formatting.headline(verdict),
        "reasons": formatting.reasons(verdict),
        "doubt": [*doubts, _DEPENDS] if gang_verdict.depends else doubts,
        "next_step": advice.next_step(verdict),
    }
