"""Parsers of what the API server sends: our resources, pods, answers; and of what an agent left on its disk."""

from __future__ import annotations

import contextlib
import json
from typing import Any
from unittest.mock import Mock

from kcover_ebpf.agent import preflight
from kcover_ebpf.agent.orders.order_journal import OrderJournal
from kcover_ebpf.agent.reports.report_cache import ReportCache
from kcover_ebpf.api import (
    agent_lease,
    codec,
    custom_kind,
    fault_report,
    incident,
    node_health,
    order,
    rfc3339,
)
from kcover_ebpf.api.fault_policy import Bounds, holding, policy_of, refused
from kcover_ebpf.api.job_kinds import gang_of, is_job_pod, must_train, with_ranks
from kcover_ebpf.api.pods import pod_of
from kcover_ebpf.errors import ApiError, ObjectError
from kcover_ebpf.gang.gang_input import GangInput, NodeState
from kcover_ebpf.gang.gang_judge import merge
from kcover_ebpf.gang.gang_snapshot import ReceivedReport, confirmed
from kcover_ebpf.kube import api_errors, client
from kcover_ebpf.kube.exec import Exec
from kcover_ebpf.recovery.restart import job_object
from kcover_ebpf.recovery.restart.methods import restarts
from kcover_ebpf.settings import Policy
from tests.fuzz.target import Target, consumed, folder, of_json, text
from tests.unit.support.report_builders import NOW_S, case, pod, rank, report

_OBJECT = 64 * 1024
"""The API server keeps up to 1.5 MB, but what is longer repeats what is shorter."""


def _report(api: Any) -> None:
    """Read, written and read again, and judged with what other nodes say."""
    found = fault_report.report_of(api)
    written = json.dumps(fault_report.object_of(found, "ns", "x"), allow_nan=False)
    assert fault_report.report_of(json.loads(written)) == found
    received = ReceivedReport(found, NOW_S - 0.5)
    pods = tuple(pod(number) for number in range(4))
    nodes = {name: NodeState(name) for name in "ab"}
    merge(GangInput("ns/j", (received,), pods, nodes, Policy(), NOW_S))


def _incident(api: Any) -> None:
    found = incident.incident_of(api)
    json.dumps(incident.object_of(found), allow_nan=False)
    if found.status is not None:
        json.dumps(incident.status_of(found.status), allow_nan=False)


def _order(api: Any) -> None:
    found = order.incident_of(api)
    if found.order is not None:
        json.dumps(codec.encode(found.order), allow_nan=False)


def _lease(api: Any) -> None:
    """Read, written and read again, and taken for what the agent of a node says of its report."""
    found = agent_lease.lease_of(api)
    if found is None:
        return
    written = json.dumps(agent_lease.object_of(found), allow_nan=False)
    assert agent_lease.lease_of(json.loads(written)) is not None
    seen = confirmed(report("a", rank(0)), found, NOW_S)
    merge(case(seen))


def _health(api: Any) -> None:
    """Read, written and read again, as a controller and the preflight of a job have it."""
    found = node_health.health_of(api)
    found.is_stale(NOW_S), found.at(found.health.time_s)
    written = json.dumps(node_health.object_of(found.health), allow_nan=False)
    assert node_health.health_of(json.loads(written)).health == found.health


def _policy(api: Any) -> None:
    """Whatever is refused has a replacement that does nothing."""
    try:
        named = policy_of(api)
    except ObjectError:
        named = refused(api)
        assert named.policy.action.value == "Observe"
    Bounds().of(named.policy).restarts.pause_s(3)
    holding([named], named.namespace, {"a": "b"})


def _pod(api: Any) -> None:
    found = pod_of(api)
    assert gang_of(found).id.selector
    is_job_pod(found), must_train(found), with_ranks(found)
    preflight.is_slow(found), preflight.is_kept_waiting(found, NOW_S)
    fault_report.written_s(api["metadata"])


def _owner(api: Any) -> None:
    row = restarts().kinds[0]
    job_object.ended_of(row, api), job_object.pod_count_of(row, api)
    job_object.reacts_to_deletions(api), job_object.version_of(api)
    job_object.ignores_disruptions(api), job_object.waits_for_ends(api)
    with contextlib.suppress(ObjectError):
        custom_kind.kind_of(api)


def _time(data: bytes) -> None:
    try:
        seconds = rfc3339.from_text(text(data))
    except ValueError:
        return
    assert abs(rfc3339.from_text(rfc3339.to_text(seconds)) - seconds) < 1e-3


def _watch(data: bytes) -> None:
    """In two chunks, as a connection may cut it."""
    response = Mock()
    half = len(data) // 2
    response.stream.return_value = [data[:half], data[half:]]
    consumed(client._lines(response))


def _refusal(data: bytes) -> None:
    response = Mock(status=400 + len(data) % 200, headers={"Retry-After": text(data[:8])})
    response.read.return_value = data
    assert len(str(api_errors.refusal("GET", "/x", response))) < 400


def _exec(data: bytes) -> None:
    session = Exec.__new__(Exec)
    session._status = data
    code = session.exit_code
    assert code is None or isinstance(code, int)
    assert isinstance(session.refusal, str)


def _journal(data: bytes) -> None:
    path = folder() / "orders.json"
    path.write_bytes(data)
    journal = OrderJournal(path)
    journal.stops, journal.unfinished, journal.acks("ns/j")


def _cached(data: bytes) -> None:
    (folder() / "reports").mkdir(exist_ok=True)
    (folder() / "reports/x.json").write_bytes(data)
    ReportCache(folder() / "reports").load()


TARGETS = (
    Target("fault_report", of_json(_report), _OBJECT, (ObjectError,), is_json=True),
    Target("incident", of_json(_incident), _OBJECT, (ObjectError,), is_json=True),
    Target("agent_lease", of_json(_lease), _OBJECT, (ObjectError,), is_json=True),
    Target("node_health", of_json(_health), _OBJECT, (ObjectError,), is_json=True),
    Target("order", of_json(_order), _OBJECT, (ObjectError,), is_json=True),
    Target("fault_policy", of_json(_policy), 16384, is_json=True),
    Target("pod", of_json(_pod), _OBJECT, (ObjectError,), is_json=True),
    Target("job", of_json(_owner), _OBJECT, is_json=True),
    Target("time", _time, 64),
    Target("watch", _watch, _OBJECT, (ApiError,)),
    Target("refusal", _refusal, 65536),
    Target("exec_status", _exec, 65536, is_json=True),
    Target("order_journal", _journal, 65536, is_json=True),
    Target("report_cache", _cached, 65536, is_json=True),
)
