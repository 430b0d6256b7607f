"""What the agents know of a job that they watch: they saw it train, on all of its nodes.

Their reports are judged by the controller's own judge, so that a trace and the Incident of a job say the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from kcover_ebpf.api import agent_lease, fault_policy, fault_report
from kcover_ebpf.api.agent_lease import AgentLease
from kcover_ebpf.api.fault_policy import FaultPolicy
from kcover_ebpf.api.fault_report import API_VERSION
from kcover_ebpf.api.gang_id import GangId
from kcover_ebpf.api.job_kinds import Gang, gang_of
from kcover_ebpf.api.pods import Pod, pod_of
from kcover_ebpf.cluster.gang_input import GangInput, GangVerdict
from kcover_ebpf.cluster.gang_judge import merge
from kcover_ebpf.cluster.gang_snapshot import ReceivedReport, confirmed
from kcover_ebpf.diagnosis.verdict import VerdictKind
from kcover_ebpf.errors import ApiError, ObjectError
from kcover_ebpf.kube.client import ApiClient
from kcover_ebpf.kube.paths import segment
from kcover_ebpf.output import formatting
from kcover_ebpf.trace import advice

_BASE = f"/apis/{API_VERSION}/namespaces"
_NOTHING_WRONG = (VerdictKind.WORKING, VerdictKind.UNKNOWN)
_DEPENDS = "it may change with what a node that has not reported would say"


def verdict_of(
    session: ApiClient, pod: Pod, now_s: float, agent_namespace: str
) -> GangVerdict | None:
    """What is wrong with the job of this pod; None where the agents report no fault of it.

    `agent_namespace`: where their Leases are, by which they confirm what they have reported. Also None where the
    reports may not be read, or are older by this machine's clock (`now_s`, unix seconds) than the controller would
    believe: then the threads of the job have to answer alone.
    """
    gang = gang_of(pod)
    try:
        pods = session.list(f"/api/v1/namespaces/{segment(gang.namespace)}/pods")
        reports = session.list(f"{_BASE}/{segment(gang.namespace)}/faultreports")
        policies = session.list(f"{_BASE}/{segment(gang.namespace)}/faultpolicies")
    except ApiError:
        return None
    members = [each for each in map(pod_of, _items(pods)) if gang_of(each) == gang]
    leases = _leases(session, agent_namespace, now_s)
    seen = [report for each in _items(reports) if (report := _report(each, gang, now_s))]
    seen = [
        confirmed(each, *lease) if (lease := leases.get(each.report.node)) else each
        for each in seen
    ]
    policy = _policy(_items(policies), gang.namespace, pod.labels).settings()
    verdict = merge(GangInput(f"{gang.namespace}/{gang.name}", seen, members, {}, policy, now_s))
    return None if verdict.verdict.kind in _NOTHING_WRONG else verdict


def _leases(
    session: ApiClient, namespace: str, now_s: float
) -> dict[str, tuple[AgentLease, float]]:
    """By node what its agent said last in its Lease, and when; empty where they may not be read."""
    found = {}
    try:
        items = _items(session.list(agent_lease.collection(segment(namespace))))
    except ApiError:
        return {}
    for raw in items:
        written_s = fault_report.written_s(raw.get("metadata") or {})
        with contextlib.suppress(ObjectError):
            lease = agent_lease.lease_of(raw)
            if lease is not None and written_s is not None:
                found[lease.node] = lease, min(written_s, now_s)
    return found


def _items(listed: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return listed.get("items") or []


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
    found: GangVerdict, inspected: Mapping[str, Any], *, watched: bool = True
) -> dict[str, Any]:
    """The fields of the record `verdict`; `inspected`: those of the inspection of the threads, without a verdict.

    `watched`: it comes from agents that saw the job while it was healthy.
    """
    verdict = found.verdict
    unobserved = [*verdict.unobserved, *inspected.get("unobserved", [])]
    doubts = advice.doubt(verdict, watched=watched)
    return {
        **formatting.verdict_object(verdict),
        **({"source": "agents"} if watched else {}),
        "unobserved": list(dict.fromkeys(unobserved)),
        "edges": inspected.get("edges", []),
        "headline": formatting.headline(verdict),
        "reasons": formatting.reasons(verdict),
        "doubt": [*doubts, _DEPENDS] if found.depends else doubts,
        "next_step": advice.next_step(verdict),
    }
