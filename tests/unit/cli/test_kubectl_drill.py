"""`kubectl kcover drill`: whom it asks and refuses, and the scorecard; for the agent see tests/kernel/test_drill.py."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest

from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.incident import Incident, JobRef, Phase, Status, object_of, status_of
from kcover_ebpf.cli import kubectl, kubectl_drill
from kcover_ebpf.kube import exec as kube_exec
from kcover_ebpf.model.verdict import Cause, Culprit, Verdict, VerdictKind
from tests.unit.support.fake_api_server import Answer, Request, serving
from tests.unit.support.fake_exec import agent_pod
from tests.unit.support.kubeconfigs import kubeconfig

LABEL = "batch.kubernetes.io/job-name"
INCIDENTS = "/apis/kcover.io/v1alpha1/namespaces/default/incidents"
HIT_S = 1_700_000_000.0


@dataclass
class FakeDrill:
    """A Job of two pods, and the agent that breaks one: the incident is there once it did."""

    labels: dict[str, str] = field(default_factory=lambda: {"kcover.io/drill": "true"})
    culprit: str = "llm-1"
    out: list[str] = field(default_factory=list)
    commands: list[list[str]] = field(default_factory=list)
    said: str = ""
    refusal: str = ""
    is_hit: threading.Event = field(default_factory=threading.Event)

    def answer(self, request: Request) -> Answer:
        match request.path:
            case "/api/v1/namespaces/default/pods":
                return Answer(body={"items": [self.pod("llm-0"), self.pod("llm-1")]})
            case "/api/v1/pods":
                return Answer(body={"items": [agent_pod("agent-1")]})
            case path if path == INCIDENTS:
                return Answer(body={"items": [self.incident()] if self.is_hit.is_set() else []})
        return Answer(404, {"message": f"no {request.path}"})

    def pod(self, name: str) -> dict[str, Any]:
        metadata = {
            "name": name,
            "namespace": "default",
            "uid": name,
            "labels": {LABEL: "llm", **self.labels},
        }
        return {"metadata": metadata, "spec": {"nodeName": "node1"}, "status": {"phase": "Running"}}

    def incident(self) -> dict[str, Any]:
        culprit = Culprit(rank=1, pod=self.culprit, node="node1")
        status = Status(
            Phase.OPEN, verdict=Verdict(kind=VerdictKind.HUNG, cause=Cause.STOPPED, culprit=culprit)
        )
        for phase, after_s in (
            (Phase.OPEN, 2.5),
            (Phase.SHUTTING_DOWN, 3.0),
            (Phase.RECOVERED, 9.0),
        ):
            status = status.enter(phase, HIT_S + after_s, "x")
        made = Incident("default", "llm-x", JobRef("Job", "llm", "ju"), {LABEL: "llm"})
        raw = object_of(made) | {"status": status_of(status)}
        raw["metadata"]["creationTimestamp"] = rfc3339.to_text(HIT_S)
        return raw

    # ---- what exec is

    def __call__(
        self, client: object, namespace: str, pod: str, container: str, command: Any
    ) -> Self:
        self.commands.append([namespace, pod, container, *command])
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def lines(self, beat_s: float) -> Iterator[str]:
        for line in self.out:
            yield line
            self.is_hit.set()
            time.sleep(0.05)


def lines(end: str = "gone") -> list[str]:
    return [
        json.dumps({"fault": "stop", "pid": 77, "timeS": HIT_S, "rank": 1}),
        json.dumps({"end": end, "timeS": HIT_S + 5.0}),
    ]


@dataclass
class Plugin:
    cluster: FakeDrill
    config: str
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        asked = ["drill", "llm", "--fault", "stop", *arguments, "--kubeconfig", self.config]
        return kubectl.main(asked), *self.capsys.readouterr()


@pytest.fixture
def plugin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Plugin]:
    cluster = FakeDrill(out=lines())
    monkeypatch.setattr(kubectl_drill, "FOLLOW_S", 0.01)
    monkeypatch.setattr(kubectl_drill, "DRILL_RECOVERS_S", 0.5)
    monkeypatch.setattr(kube_exec, "Exec", cluster)
    with serving(cluster.answer) as server:
        yield Plugin(cluster, kubeconfig(tmp_path, server.url), capsys)


def test_kubectl_drill__the_agent_of_the_node_is_asked_and_the_card_says_what_came_of_it(
    plugin: Plugin,
) -> None:
    code, out, _ = plugin("--for", "30s")
    assert code == 0
    (command,) = plugin.cluster.commands
    assert command[1:7] == ["agent-1", "agent", "kcover-ebpf", "drill", "llm-1", "--namespace"]
    assert command[-4:] == ["--fault", "stop", "--for", "30s"]
    assert out.splitlines()[0] == "stop: rank 1, pod llm-1 on node1, pid 77"
    assert "named after             2.5 s   right: HUNG stopped" in out
    assert "training again after    9.0 s" in out
    assert "the injected fault   gone" in out


def test_kubectl_drill__a_wrong_name_fails_the_drill(plugin: Plugin) -> None:
    plugin.cluster.culprit = "llm-0"
    code, out, _ = plugin("-o", "json")
    assert code == 1
    assert json.loads(out)["right"] is False


def test_kubectl_drill__a_fault_that_no_incident_speaks_of_fails_it(plugin: Plugin) -> None:
    plugin.cluster.out = lines("resumed")
    plugin.cluster.is_hit.set = lambda: None  # type: ignore[method-assign]
    code, out, _ = plugin()
    assert code == 1
    assert "no incident" in out
    assert "the injected fault   resumed" in out


def test_kubectl_drill__a_pod_that_does_not_consent_is_not_touched(plugin: Plugin) -> None:
    plugin.cluster.labels = {}
    code, out, err = plugin()
    assert (code, out) == (2, "")
    assert "kcover.io/drill=true" in err
    assert not plugin.cluster.commands


def test_kubectl_drill__what_the_agent_refuses_is_said(plugin: Plugin) -> None:
    plugin.cluster.out, plugin.cluster.said = [], "kcover-ebpf: another drill is in progress"
    code, _, err = plugin()
    assert code == 3
    assert "the fault was not injected: kcover-ebpf: another drill is in progress" in err
