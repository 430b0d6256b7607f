"""`kubectl kcover top` against a server that keeps a report, an incident and a Lease."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import pytest

from kcover_ebpf.api import agent_lease, fault_report, rfc3339
from kcover_ebpf.api.agent_lease import AgentLease
from kcover_ebpf.api.fault_report import PodRef
from kcover_ebpf.cli import kubectl
from tests.unit.support.fake_api_server import Answer, Request, serving
from tests.unit.support.fake_exec import agent_pod, pod
from tests.unit.support.kubeconfigs import kubeconfig
from tests.unit.support.report_builders import rank, report

OLD = "2026-01-01T00:00:00Z"


def objects(renewed: str | None) -> dict[str, list[dict[str, Any]]]:
    made = report("a", rank(0), ranks=(), suspicious=False).report
    raw = fault_report.object_of(made, "ml", "j-1.a", (PodRef("j-0", "u"),))
    raw["metadata"]["managedFields"] = [{"time": OLD}]
    lease = agent_lease.object_of(AgentLease("a", 1.0, 60, frozenset({1})))
    lease["metadata"]["managedFields"] = [{"time": renewed}]
    return {
        "/apis/kcover.io/v1alpha1/namespaces/ml/faultreports": [raw],
        "/apis/kcover.io/v1alpha1/namespaces/ml/incidents": [],
        "/apis/coordination.k8s.io/v1/namespaces/kcover/leases": [lease] if renewed else [],
    }


@pytest.mark.parametrize(
    ("renewed", "state"), [("now", "training"), (OLD, "unknown"), (None, "unknown")]
)
def test_kubectl_top__a_report_counts_as_long_as_its_agent_confirms_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], renewed: str | None, state: str
) -> None:
    kept = objects(rfc3339.to_text(time.time()) if renewed == "now" else renewed)

    def answer(request: Request) -> Answer:
        return Answer(body={"items": kept.get(request.path, [])})

    with serving(answer) as server:
        config = kubeconfig(tmp_path, server.url)
        asked = ["top", "-n", "ml", "--kubeconfig", config]
        assert kubectl.main(asked) == 0
        shown = capsys.readouterr()
        assert ("name its namespace with --agent-namespace" in shown.err) == (renewed is None)
        assert f"ml/j Job  1 ranks on 1 nodes  {state}" in shown.out
        assert kubectl.main([*asked, "-o", "json"]) == 0
        (job,) = json.loads(capsys.readouterr().out)["items"]
    assert (job["name"], job["state"]) == ("j", state)


@pytest.mark.parametrize(
    ("places", "known"), [(("away",), True), (("away", "kcover-2"), False), ((), False)]
)
def test_kubectl_top__the_namespace_of_the_agents_is_found_where_only_one_has_any(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], places: tuple[str, ...], known: bool
) -> None:
    kept = objects(rfc3339.to_text(time.time()))
    kept["/apis/coordination.k8s.io/v1/namespaces/away/leases"] = kept.pop(
        "/apis/coordination.k8s.io/v1/namespaces/kcover/leases"
    )
    kept["/apis/coordination.k8s.io/v1/namespaces/kcover/leases"] = []
    agents = [agent_pod("agent-1") for _ in places]
    for agent, place in zip(agents, places, strict=True):
        agent["metadata"]["namespace"] = place
    # what a tenant gave the labels of an agent is none
    kept["/api/v1/pods"] = [*agents, pod("agent-2")]

    with serving(lambda request: Answer(body={"items": kept[request.path]})) as server:
        asked = ["top", "-n", "ml", "--kubeconfig", kubeconfig(tmp_path, server.url)]
        assert kubectl.main(asked) == 0
    shown = capsys.readouterr()
    assert ("name its namespace with --agent-namespace" in shown.err) is not known
    assert ("training" in shown.out) is known


def test_kubectl_top__where_no_job_is_the_namespace_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(lambda _: Answer(body={"items": []})) as server:
        assert (
            kubectl.main(["top", "-n", "ml", "--kubeconfig", kubeconfig(tmp_path, server.url)]) == 0
        )
    assert "no job is watched in namespace ml; -A" in capsys.readouterr().out


def test_kubectl_top__without_its_resources_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(lambda _: Answer(404, {"message": "no"})) as server:
        assert kubectl.main(["top", "--kubeconfig", kubeconfig(tmp_path, server.url)]) == 3
    assert "is kcover-ebpf installed?" in capsys.readouterr().err


@pytest.mark.parametrize("output", ["text", "json"])
def test_kubectl_top__an_api_server_that_is_restarted_does_not_end_the_watch(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    output: str,
) -> None:
    kept = objects(rfc3339.to_text(time.time()))
    states = ["up", "down", "down", "up"]

    def sleep(_: float) -> None:
        states.pop(0)
        if not states:
            raise KeyboardInterrupt

    def answer(request: Request) -> Answer:
        is_up = states[0] == "up"
        return Answer(body={"items": kept.get(request.path, [])}) if is_up else Answer(503)

    monkeypatch.setattr("kcover_ebpf.cli.kubectl_top.time.sleep", sleep)
    with serving(answer) as server:
        config = kubeconfig(tmp_path, server.url)
        asked = ["top", "-n", "ml", "--watch", "-o", output, "--kubeconfig", config]
        with contextlib.suppress(KeyboardInterrupt):
            kubectl.main(asked)
    shown = capsys.readouterr()
    assert states == []
    assert shown.err.count("503") == 2
    assert shown.out.count("\n") == (2 if output == "json" else 1), "each reading, or each change"


def test_kubectl_top__one_reading_that_fails_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(lambda _: Answer(503)) as server:
        config = kubeconfig(tmp_path, server.url)
        assert kubectl.main(["top", "-n", "ml", "--kubeconfig", config]) == 3
    assert capsys.readouterr().out == ""
