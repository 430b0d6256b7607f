"""`trace POD` of a job that the agents watch: their verdict, over all nodes, is the trace's."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from kcover_ebpf.api import incident, rfc3339
from kcover_ebpf.api.fault_report import FaultReport, object_of
from kcover_ebpf.api.incident import Incident, JobRef, Phase, Status
from kcover_ebpf.errors import ApiError, Forbidden, NotFound
from kcover_ebpf.gang.gang_judge import merge
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.verdict import Cause, Culprit, Evidence, EvidenceKind, Verdict, VerdictKind
from kcover_ebpf.trace.gang import remote
from kcover_ebpf.trace.options import TraceOptions
from kcover_ebpf.trace.records import parse
from tests.unit.support import report_builders as build
from tests.unit.support.fake_exec import FakeExec, FakeExecServer, traced_lines
from tests.unit.support.judged import judged

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
        self.incidents: list[dict[str, Any]] | ApiError = []
        self.nodes: dict[str, dict[str, Any]] | ApiError = {}

    def get(self, path: str) -> dict[str, Any]:
        if not path.startswith("/api/v1/nodes/"):
            return super().get(path)
        if isinstance(self.nodes, ApiError):
            raise self.nodes
        return self.nodes[path.rpartition("/")[2]]

    def list(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        for name, known in (("faultreports", self.reports), ("incidents", self.incidents)):
            if path.endswith(f"/{name}"):
                if isinstance(known, ApiError):
                    raise known
                return {"items": known}
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
def test_lines__without_an_incident_reports_are_judged_as_the_controller_judges_them(
    monkeypatch: pytest.MonkeyPatch, wanted: dict[str, Any]
) -> None:
    server = FakeReportsServer([written(received.report, 0.5) for received in STOPPED])
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
    "calm": lambda: FakeReportsServer([written(received.report, 0.5) for received in CALM]),
    "reports of an hour ago": lambda: FakeReportsServer(
        [written(received.report, 3600) for received in STOPPED]
    ),
    "reports without a date": lambda: FakeReportsServer(
        [dict(object_of(received.report, "ns", "x")) for received in STOPPED]
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
    server = FakeReportsServer([written(received.report, 0.5) for received in STOPPED])
    verdict, _ = traced(monkeypatch, server, pod="j-0", live=True)
    assert "source" not in verdict


LOST = Status(
    Phase.OPEN,
    verdict=Verdict(
        kind=VerdictKind.HUNG,
        cause=Cause.PEER_GONE,
        since_s=1_000.0,
        culprit=Culprit(pod="j-0", node="a"),
        evidence=(Evidence(EvidenceKind.EVENT, "node a is not ready", "a"),),
        victims=(1, 3),
    ),
)


def opened(name: str, status: Status = LOST, **selector: str) -> dict[str, Any]:
    """An Incident of the job, or of that with these labels, as the API server returns it."""
    made = Incident("ns", name, JobRef("Job", "j", "u", "batch/v1"), selector or build.SELECTOR)
    return incident.object_of(made) | {"status": incident.status_of(status)}


def stopped(*incidents: dict[str, Any]) -> FakeReportsServer:
    """A server whose reports show that rank 1 is stopped."""
    server = FakeReportsServer([written(received.report, 0.5) for received in STOPPED])
    server.incidents = list(incidents)
    return server


OVER = {
    "recovered": replace(LOST, phase=Phase.RECOVERED),
    "closed": replace(LOST, phase=Phase.OBSERVED, closed_s=5.0),
    "another attempt runs": replace(LOST, phase=Phase.RECOVERING),
}


@pytest.mark.parametrize(
    "phase", [phase for phase in Phase if phase not in (Phase.RECOVERED, Phase.RECOVERING)]
)
@pytest.mark.parametrize("wanted", [{"pod": "j-0"}, {"job": "j"}], ids=["a pod", "the job"])
def test_lines__the_verdict_is_that_of_the_open_incident(
    monkeypatch: pytest.MonkeyPatch, wanted: dict[str, Any], phase: Phase
) -> None:
    server = stopped(
        *(opened(name, status) for name, status in OVER.items()),
        opened("other", judged(LOST, cause=Cause.STORAGE), app="other"),
        {"metadata": {"name": "unreadable"}},
        opened("i", replace(LOST, phase=phase)),
    )
    verdict, code = traced(monkeypatch, server, **wanted)
    assert (verdict["verdict"], verdict["cause"]) == ("HUNG", "peer_gone")
    assert (verdict["culprit"]["pod"], verdict["culprit"]["node"]) == ("j-0", "a")
    assert [item["text"] for item in verdict["evidence"]] == ["node a is not ready"]
    assert (verdict["since"], verdict["victims"], verdict["incident"]) == (1_000.0, [1, 3], "i")
    assert (verdict["source"], code) == ("agents", 1)


def test_lines__an_incident_counts_though_reports_are_old(monkeypatch: pytest.MonkeyPatch) -> None:
    server = silent(Forbidden("403"))
    server.incidents = [opened("i")]
    verdict, code = traced(monkeypatch, server, pod="j-0")
    assert (verdict["cause"], code) == ("peer_gone", 1)


@pytest.mark.parametrize("status", OVER.values(), ids=OVER)
def test_lines__an_incident_that_is_over_does_not_count(
    monkeypatch: pytest.MonkeyPatch, status: Status
) -> None:
    verdict, _ = traced(monkeypatch, stopped(opened("i", status)), pod="j-0")
    assert (verdict["cause"], verdict["incident"]) == ("stopped", "")


def test_lines__an_incident_whose_job_trains_again_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = FakeReportsServer([written(received.report, 0.5) for received in CALM])
    begun_s = time.time() - 60.0
    server.incidents = [opened("i", LOST.enter(Phase.OBSERVED, begun_s, "no action"))]
    verdict, code = traced(monkeypatch, server, pod="j-0")
    assert (verdict, code) == (json.loads(traced_lines("node1")[3]), 0)


def test_lines__what_the_controller_knows_besides_is_unobserved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = stopped()
    server.incidents = Forbidden("403")
    verdict, code = traced(monkeypatch, server, pod="j-0")
    assert (verdict["cause"], code) == ("stopped", 1)
    assert {
        "the Incident of the job: `incidents` may not be read",
        "which of two events on different nodes came first, if less than 2.5 s apart",
    } <= set(verdict["unobserved"])


def only_a_reports() -> FakeReportsServer:
    """A server whose node b is not heard of, while the ranks on node a wait."""
    waiting = build.report("a", build.rank(0, age_s=60.0), build.rank(2, age_s=60.0))
    return FakeReportsServer([written(waiting.report, 0.5)])


def test_lines__a_lost_node_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    server = only_a_reports()
    server.nodes = {"b": {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}}
    verdict, code = traced(monkeypatch, server, pod="j-0")
    assert (verdict["cause"], verdict["culprit"]["node"], code) == ("peer_gone", "b", 1)


@pytest.mark.parametrize("readable", [True, False])
def test_lines__nodes_that_may_not_be_read_are_unobserved(
    monkeypatch: pytest.MonkeyPatch, *, readable: bool
) -> None:
    server = only_a_reports()
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    server.nodes = {"b": ready} if readable else Forbidden("403")
    verdict, _ = traced(monkeypatch, server, pod="j-0")
    text = "whether nodes that do not report are ready: `nodes` may not be read"
    assert verdict["cause"] != "peer_gone"
    assert (text in verdict["unobserved"]) is not readable


def owned(raw: dict[str, Any], name: str = "j") -> dict[str, Any]:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": name, "controller": True}
    return {**raw, "metadata": {**raw["metadata"], "ownerReferences": [owner]}}


@pytest.mark.parametrize("name", ["j-0", "j-1"], ids=["a pod of the job", "the copy"])
def test_lines__a_debug_copy_of_a_pod_is_not_blamed(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    server = stopped()
    server.pods = [entry if index == 1 else owned(entry) for index, entry in enumerate(server.pods)]
    verdict, _ = traced(monkeypatch, server, pod=name)
    culprit = verdict["culprit"] or {}
    assert culprit.get("pod") != "j-1"
    assert "source" not in verdict or name == "j-0"


def test_lines__pods_of_several_controllers_may_be_of_several_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = stopped()
    server.pods = [owned(entry, f"j-{index % 2}") for index, entry in enumerate(server.pods)]
    verdict, _ = traced(monkeypatch, server, pod="j-0")
    assert (
        "whether the pods of all 2 controllers with its labels belong to the job"
        in verdict["unobserved"]
    )
