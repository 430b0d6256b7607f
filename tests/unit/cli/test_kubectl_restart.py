"""`kubectl kcover restart`: what it asks for, whom it refuses, and what it shows until the restart is over."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.incident import Incident, JobRef, Phase, Status, object_of, status_of
from kcover_ebpf.cli import kubectl, kubectl_restart
from kcover_ebpf.controller.kcover_events import FIELDS
from tests.unit.support.fake_api_server import Answer, Request, serving
from tests.unit.support.kubeconfigs import kubeconfig

LABEL = "batch.kubernetes.io/job-name"
ARMED = {"kcover.io/cascading-recovery": "true"}
CORE = "/api/v1/namespaces/default"
INCIDENTS = "/apis/kcover.io/v1alpha1/namespaces/default/incidents"
JOB = {
    "metadata": {
        "name": "llm",
        "uid": "ju",
        "resourceVersion": "1",
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
}
ENDS = {
    Phase.RECOVERED: [Phase.OPEN, Phase.DECIDED, Phase.SHUTTING_DOWN, Phase.RECOVERING],
    Phase.REFUSED: [Phase.OPEN],
}


def pod(name: str, labels: dict[str, str], *, bare: bool = False) -> dict[str, Any]:
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": "llm",
        "uid": "ju",
        "controller": True,
    }
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"u-{name}",
            "labels": labels,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "ownerReferences": [] if bare else [owner],
        },
        "spec": {"nodeName": "n"},
        "status": {"phase": "Running"},
    }


@dataclass
class FakeJobCluster:
    """A Job of two pods; each request for an incident finds it one phase further."""

    labels: dict[str, str] = field(default_factory=lambda: {LABEL: "llm", **ARMED})
    end: Phase = Phase.RECOVERED
    is_watched: bool = True
    is_acting: bool = False
    events: list[dict[str, Any]] = field(default_factory=list)
    steps: int = 0

    def answer(self, request: Request) -> Answer:
        match request.method, request.path:
            case "GET", path if path == f"{CORE}/pods":
                pods = [
                    pod("llm-0", self.labels),
                    pod("llm-1", self.labels),
                    pod("web", {}, bare=True),
                ]
                return Answer(body={"items": pods})
            case "GET", "/apis/batch/v1/namespaces/default/jobs/llm":
                return Answer(body=JOB)
            case "POST", path if path == f"{CORE}/events":
                self.events.append(request.body)
                return Answer(201, request.body)
            case "GET", path if path == INCIDENTS:
                return Answer(body={"items": [self.incident()] if self.is_there else []})
            case "GET", path if path == f"{INCIDENTS}/llm-1":
                return Answer(body=self.incident())
        return Answer(404, {"message": f"no {request.path}"})

    @property
    def is_there(self) -> bool:
        return self.is_acting or bool(self.events and self.is_watched)

    def incident(self) -> dict[str, Any]:
        phases = [*ENDS[self.end], self.end]
        self.steps = min(self.steps + 1, len(phases))
        status = Status(Phase.OPEN)
        for number, phase in enumerate(
            phases[: 3 if self.is_acting and self.steps < 3 else self.steps]
        ):
            # what is decided is begun in the same moment
            status = status.enter(phase, 1_700_000_000.0 + number // 2, f"text {number}")
        made = Incident("default", "llm-1", JobRef("Job", "llm", "ju"), {LABEL: "llm"})
        raw = object_of(made) | {"status": status_of(status)}
        raw["metadata"]["creationTimestamp"] = rfc3339.to_text(1_700_000_000.0)
        return raw


@dataclass
class Plugin:
    cluster: FakeJobCluster
    config: str
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        code = kubectl.main(["restart", *arguments, "--kubeconfig", self.config])
        return code, *self.capsys.readouterr()


@pytest.fixture
def plugin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Plugin]:
    monkeypatch.setattr(kubectl_restart, "FOLLOW_S", 0.01)
    monkeypatch.setattr(kubectl_restart, "TAKEN_UP_S", 1.0)
    cluster = FakeJobCluster()
    with serving(cluster.answer) as server:
        yield Plugin(cluster, kubeconfig(tmp_path, server.url), capsys)


def test_kubectl_restart__an_event_asks_the_controller(plugin: Plugin) -> None:
    code, out, _ = plugin("llm", "--in-place")
    assert code == 0
    assert "Job default/llm: restart requested" in out
    assert "incident llm-1" in out
    (event,) = plugin.cluster.events
    notes = event["metadata"]["annotations"]
    assert notes == {"kcover.io/need-recovery": "true", "kcover.io/restart": "InPlace"}
    assert event["involvedObject"]["name"] == "llm-0"
    assert f"involvedObject.kind={event['involvedObject']['kind']},type={event['type']}" == FIELDS


@pytest.mark.parametrize(("end", "code"), [(Phase.RECOVERED, 0), (Phase.REFUSED, 1)])
def test_kubectl_restart__the_phases_are_shown_until_it_is_over(
    plugin: Plugin, end: Phase, code: int
) -> None:
    plugin.cluster.end = end
    found, out, _ = plugin("Job/llm", "--wait")
    assert found == code
    shown = [line.split()[2] for line in out.splitlines()[1:]]
    assert shown == [phase.value for phase in [*ENDS[end], end]]


def test_kubectl_restart__a_job_that_is_being_restarted_is_followed_and_not_asked_for_again(
    plugin: Plugin,
) -> None:
    plugin.cluster.is_acting = True
    code, out, _ = plugin("llm", "--wait", "-o", "json")
    assert code == 0
    assert json.loads(out)["status"]["phase"] == "Recovered"
    assert not plugin.cluster.events


def test_kubectl_restart__a_job_without_the_label_is_refused_with_what_allows_it(
    plugin: Plugin,
) -> None:
    plugin.cluster.labels = {LABEL: "llm"}
    code, out, err = plugin("llm")
    assert (code, out) == (2, "")
    assert "kubectl label job llm -n default kcover.io/cascading-recovery=true" in err
    assert not plugin.cluster.events


@pytest.mark.parametrize(
    ("job", "text"),
    [
        ("nope", "no pods of a job nope in namespace default; there are llm"),
        ("PyTorchJob/llm", "no pods of a job PyTorchJob/llm"),
        ("web", "web is a bare pod"),
    ],
)
def test_kubectl_restart__what_is_no_job_is_refused(plugin: Plugin, job: str, text: str) -> None:
    code, out, err = plugin(job)
    assert (code, out) == (2, "")
    assert text in err


def test_kubectl_restart__without_a_controller_it_says_so(plugin: Plugin) -> None:
    plugin.cluster.is_watched = False
    code, _, err = plugin("llm")
    assert code == 3
    assert "no controller took up the request within 1 s" in err
