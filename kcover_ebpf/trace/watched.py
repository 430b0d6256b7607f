"""What is known of a job that the agents watch: they saw it train, on all of its nodes.

The verdict is that of the job's open Incident. Without one the agents' reports are judged by the controller's own
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
from kcover_ebpf.api.gang_id import GangId
from kcover_ebpf.api.job_kinds import Gang, gang_of
from kcover_ebpf.api.nodes import is_ready
from kcover_ebpf.api.pods import Pod, pod_of
from kcover_ebpf.cluster import missing
from kcover_ebpf.cluster.gang_input import GangInput, GangVerdict, NodeState
from kcover_ebpf.cluster.gang_judge import merge
from kcover_ebpf.cluster.gang_snapshot import ReceivedReport, confirmed
from kcover_ebpf.diagnosis.verdict import VerdictKind
from kcover_ebpf.errors import ApiError, NotFound, ObjectError
from kcover_ebpf.kube.client import ApiClient
from kcover_ebpf.kube.paths import segment
from kcover_ebpf.output import formatting
from kcover_ebpf.trace import advice, open_incident
from kcover_ebpf.tunables.recovery import REPORTS_APART_S, REPORTS_VAGUE_S

_BASE = f"/apis/{API_VERSION}/namespaces"
_NOTHING_WRONG = (VerdictKind.WORKING, VerdictKind.UNKNOWN)
_DEPENDS = "it may change with what a node that has not reported would say"
_INCIDENTS = "the Incident of the job: `incidents` may not be read"
_NODES = "whether nodes that do not report are ready: `nodes` may not be read"


def verdict_of(
    session: ApiClient, pod: Pod, now_s: float, agent_namespace: str
) -> GangVerdict | None:
    """What is wrong with the job of this pod; None where its Incident and the agents report no fault of it.

    `agent_namespace`: where their Leases are, by which they confirm what they have reported. Also None where the
    reports may not be read, or are older by this machine's clock (`now_s`, unix seconds) than the controller would
    believe: then the threads of the job have to answer alone. So they have for a pod that only has the job's labels.
    """
    gang = gang_of(pod)
    space = segment(gang.namespace)
    pods = _listed(session, f"/api/v1/namespaces/{space}/pods")
    members, strays = _members(pods or (), gang)
    if pods is None or pod.uid in strays:
        return None
    reports = _listed(session, f"{_BASE}/{space}/faultreports")
    seen = [report for each in reports or () if (report := _report(each, gang, now_s))]
    leases = _leases(session, agent_namespace, now_s) if seen else {}
    seen = [
        confirmed(each, *lease) if (lease := leases.get(each.report.node)) else each
        for each in seen
    ]
    incidents = _listed(session, f"{_BASE}/{space}/incidents")
    known = open_incident.verdict_in(incidents or (), gang, seen, now_s)
    policies = None if known else _listed(session, f"{_BASE}/{space}/faultpolicies")
    if known is not None or not seen or policies is None:
        return known
    policy = _policy(policies, gang.namespace, pod.labels).settings()
    name = f"{gang.namespace}/{gang.name}"
    case = GangInput(name, seen, members, {}, policy, now_s, frozenset(strays))
    return _judged(session, case, [_INCIDENTS] if incidents is None else [])


def _judged(session: ApiClient, case: GangInput, unread: list[str]) -> GangVerdict | None:
    """What the controller would say of the case, with what it knows besides and is not known here."""
    nodes = _nodes(session, case)
    found = merge(replace(case, nodes=nodes or {}))
    verdict = found.verdict
    if verdict.kind in _NOTHING_WRONG:
        return None
    unknown = [*verdict.unobserved, *unread, *_unknown(case), *([_NODES] if nodes is None else [])]
    return replace(found, verdict=replace(verdict, unobserved=tuple(unknown)))


def _unknown(case: GangInput) -> Iterator[str]:
    if len({each.report.node for each in case.fresh}) > 1:
        apart_s = REPORTS_APART_S + REPORTS_VAGUE_S
        yield f"which of two events on different nodes came first, if less than {apart_s} s apart"
    owners = len({each.controller for each in case.pods})
    if owners > 1:
        yield f"whether the pods of all {owners} controllers with its labels belong to the job"


def _members(raw: Sequence[Mapping[str, Any]], gang: Gang) -> tuple[list[Pod], set[str]]:
    """The pods of the gang, and the uids of those that only have its labels, such as a debug copy of a pod."""
    pods = [each for each in map(pod_of, raw) if gang_of(each) == gang]
    ours = [each for each in pods if each.controller is not None] or pods
    return ours, {each.uid for each in pods} - {each.uid for each in ours}


def _nodes(session: ApiClient, case: GangInput) -> dict[str, NodeState] | None:
    """Those that may be lost: of which no agent reports while others have stalled; None where they may not be read."""
    found = {}
    stalled = any(each.report.suspicious for each in case.fresh)
    for name in missing.unheard(case) if stalled else ():
        try:
            raw = session.get(f"/api/v1/nodes/{segment(name)}")
        except NotFound:
            continue
        except ApiError:
            return None
        found[name] = NodeState(name, is_ready(raw))
    return found


def _listed(session: ApiClient, path: str) -> Sequence[Mapping[str, Any]] | None:
    """None where it may not be read, or there is no such resource."""
    try:
        return session.list(path).get("items") or []
    except ApiError:
        return None


def _leases(
    session: ApiClient, namespace: str, now_s: float
) -> dict[str, tuple[AgentLease, float]]:
    """By node what its agent said last in its Lease, and when; empty where they may not be read."""
    found = {}
    for raw in _listed(session, agent_lease.collection(segment(namespace))) or ():
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
    # the clock of an operator's machine and that of the API server may differ: what is not dated is not believed
    return None if written_s is None else ReceivedReport(report, min(written_s, now_s), None)


def _policy(
    raw: Sequence[Mapping[str, Any]], namespace: str, labels: Mapping[str, str]
) -> FaultPolicy:
    named = []
    for each in raw:
        try:
            named.append(fault_policy.policy_of(each))
        except ObjectError:
            named.append(fault_policy.refused(each))
    chosen = fault_policy.holding(named, namespace, labels)
    return FaultPolicy() if chosen is None else chosen.policy


def conclusion(
    found: GangVerdict, traced: Mapping[str, Any], *, watched: bool = True
) -> dict[str, Any]:
    """The fields of the record `verdict`; `traced`: what was read of the threads, without a verdict.

    `watched`: it comes from agents that saw the job while it was healthy, or from its Incident.
    """
    verdict = found.verdict
    unobserved = [*verdict.unobserved, *traced.get("unobserved", [])]
    doubts = advice.doubt(verdict, watched=watched)
    return {
        **formatting.verdict_object(verdict),
        **({"source": "agents"} if watched else {}),
        "unobserved": list(dict.fromkeys(unobserved)),
        "edges": traced.get("edges", []),
        "headline": formatting.headline(verdict),
        "reasons": formatting.reasons(verdict),
        "doubt": [*doubts, _DEPENDS] if found.depends else doubts,
        "next_step": advice.next_step(verdict),
    }
