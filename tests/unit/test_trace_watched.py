"""`trace POD` of a job that the agents watch: their verdict, over all nodes, is the trace's."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import pytest

from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.fault_report import FaultReport, object_of
from kcover_ebpf.cluster.gang_judge import merge
from kcover_ebpf.diagnosis.process_state import State
from kcover_ebpf.errors import ApiError, Forbidden, NotFound
from kcover_ebpf.trace import remote
from kcover_ebpf.trace.options import TraceOptions
from kcover_ebpf.trace.records import parse
from tests.unit import report_builders as build
from tests.unit.fake_exec import FakeExec, FakeExecServer, traced_lines

STOPPED = (
    build.report("a", build.rank(0), build.rank(2)),
    build.report("b", build.rank(1, State.STOPPED), build.rank(3)),
)
CALM = tuple(
    build.report(node, *ranks, suspicious=False)
    for node, ranks in (
        ("a", (build.rank(0), build.rank(2))),
        ("b", (build.rank(1), build.rank(3))),
    )
)


def pod(number: int) -> dict[str, Any]:
    return {
        "metadata": {
            "name": f"j-{number}",
            "namespace": "ns",
            "uid": f"uid-{number}",
            "labels": build.SELECTOR,
        },
        "spec": {"nodeName": "ab"[number % 2], "containers": [{"name": "main"}]},
        "status": {
            "phase": "Running",
            "containerStatuses": [
                {"name": "main", "containerID": f"containerd://{number}", "state": {"running": {}}}
            ],
        },
    }


def written(report: FaultReport, age_s: float) -> dict[str, Any]:
    """The object as the API server returns it."""
    made = dict(object_of(report, "ns", f"j.{report.node}"))
    when = rfc3339.to_text(time.time() - age_s)
    made["metadata"] = {**made["metadata"], "managedFields": [{"time": when}]}
    return made


class FakeReportsServer(FakeExecServer):
    """An API server with the agents' reports."""

    def __init__(self, reports: list[dict[str, Any]]) -> None:
        super().__init__()
        self.pods = [pod(number) for number in range(4)]
        self.agents = {"a": self.agents["node1"], "b": self.agents["node2"]}
        self.reports: list[dict[str, Any]] | ApiError = reports

    def list(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        if path.endswith("/faultreports"):
            if isinstance(self.reports, ApiError):
                raise self.reports
            return {"items": self.reports}
        if path.endswith("/faultpolicies"):
            return {"items": []}
        return super().list(path, query)


def traced(
    monkeypatch: pytest.MonkeyPatch, server: FakeReportsServer, **wanted: Any
) -> tuple[dict[str, Any], int | None]:
    """The fields of the verdict, and the exit code."""
    monkeypatch.setattr(remote, "connect", lambda *_: server)
    monkeypatch.setattr(remote, "Exec", FakeExec)
    lines = list(remote.lines(TraceOptions(namespace="ns", **wanted)))
    verdict = next(json.loads(text) for text in lines if parse(text).event == "verdict")
    return verdict, parse(lines[-1]).exit_code


@pytest.mark.parametrize("wanted", [{"pod": "j-0"}, {"job": "j"}], ids=["a pod", "the job"])
def test_lines__the_verdict_is_that_of_the_incident(
    monkeypatch: pytest.MonkeyPatch, wanted: dict[str, Any]
) -> None:
    server = FakeReportsServer([written(each.report, 0.5) for each in STOPPED])
    verdict, code = traced(monkeypatch, server, **wanted)
    expected = merge(build.case(*STOPPED)).verdict
    assert expected.culprit is not None
    assert (verdict["verdict"], verdict["cause"]) == (expected.kind.value, expected.cause.value)
    assert verdict["culprit"]["pod"] == expected.culprit.pod == "j-1"
    assert verdict["culprit"]["node"] == "b"
    assert verdict["source"] == "agents"
    assert code == 1
    assert server.commands
    assert all("--brief" in command for _, command in server.commands)


def silent(error: ApiError) -> FakeReportsServer:
    server = FakeReportsServer([])
    server.reports = error
    return server


ALONE = {
    "calm": lambda: FakeReportsServer([written(each.report, 0.5) for each in CALM]),
    "reports of an hour ago": lambda: FakeReportsServer(
        [written(each.report, 3600) for each in STOPPED]
    ),
    "reports without a date": lambda: FakeReportsServer(
        [dict(object_of(each.report, "ns", "x")) for each in STOPPED]
    ),
    "no report": lambda: FakeReportsServer([]),
    "not a report": lambda: FakeReportsServer([{"spec": 3}]),
    "may not be read": lambda: silent(Forbidden("403")),
    "no such resource": lambda: silent(NotFound("404")),
}


@pytest.mark.parametrize("made", ALONE.values(), ids=ALONE)
def test_lines__without_a_fault_in_fresh_reports_the_threads_answer_alone(
    monkeypatch: pytest.MonkeyPatch, made: Any
) -> None:
    server = made()
    verdict, code = traced(monkeypatch, server, pod="j-0")
    assert verdict == json.loads(traced_lines("node1")[3])
    assert code == 0
    assert "--brief" not in server.commands[0][1]


def test_lines__a_live_trace_follows_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeReportsServer([written(each.report, 0.5) for each in STOPPED])
    verdict, _ = traced(monkeypatch, server, pod="j-0", live=True)
    assert "source" not in verdict
