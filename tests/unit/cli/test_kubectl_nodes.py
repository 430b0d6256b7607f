"""`kubectl kcover nodes` and `inspect`: what cordons a node and why, and what an agent answers."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kcover_ebpf.agent.node_health.health_memory import Round, after_round
from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.node_health import HEALTHS, object_of
from kcover_ebpf.cli import kubectl
from kcover_ebpf.facts.health import Result
from kcover_ebpf.inspection.result import PartResult
from kcover_ebpf.kube import exec as kube_exec
from kcover_ebpf.recovery.nodes.node_health import OFFENCES
from kcover_ebpf.recovery.nodes.node_plan import BAD_NODE, CORDONED, CORDONED_BY
from tests.unit.support.fake_api_server import Answer, Request, serving
from tests.unit.support.fake_exec import FakeExec, agent_pod
from tests.unit.support.kubeconfigs import kubeconfig

NOW = rfc3339.to_text(time.time())


def node(
    name: str, cordoned: bool = False, annotations: dict[str, str] | None = None
) -> dict[str, Any]:
    condition = {"type": "KernelDeadlock", "status": "True" if name == "odd" else "False"}
    return {
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": {"unschedulable": cordoned},
        "status": {
            "conditions": [condition],
            "capacity": {"nvidia.com/gpu": "8"},
            "allocatable": {"nvidia.com/gpu": "7" if name == "odd" else "8"},
        },
    }


def health(name: str, result: Result, written: str = NOW) -> dict[str, Any]:
    checks = [PartResult("plugin/p", result, ("\x1b[2Jit is broken",))]
    devices = [PartResult("0000:5d:00.0", Result.PASS, kind="gpu")]
    done = Round(rfc3339.from_text(NOW), "a", checks, devices)
    raw = object_of(after_round(name, None, done, 1950))
    raw["metadata"]["managedFields"] = [{"time": written}]
    return raw


class FakeNodeObjects:
    def __init__(self) -> None:
        kept = {CORDONED: f"{NOW} plugin/p inspection", OFFENCES: f"2 {NOW}"}
        self.nodes = [
            node("bad", cordoned=True, annotations=kept),
            node("both", cordoned=True, annotations=kept | {CORDONED_BY: "others"}),
            node("mine", cordoned=True),
            node("odd"),
            node("silent"),
            node("well"),
        ]
        self.healths: list[dict[str, Any]] | None = [
            health("bad", Result.FAIL),
            health("mine", Result.PASS),
            health("silent", Result.PASS, "2026-01-01T00:00:00Z"),
            health("well", Result.PASS),
        ]
        self.agents = [agent_pod("agent-1")]
        taint = {"key": "gpu.nvidia.com/xid", "effect": "NoSchedule"}
        devices = [{"name": "gpu-0", "taints": [taint]}]
        spec = {"driver": "d", "nodeName": "well", "pool": {"name": "p"}, "devices": devices}
        self.slices: Answer = Answer(404, {"message": "not found"})
        self.tainted = Answer(body={"items": [{"spec": spec}]})

    def answer(self, request: Request) -> Answer:
        if request.path == "/api/v1/nodes":
            return Answer(body={"items": self.nodes})
        if request.path == "/api/v1/pods":
            return Answer(body={"items": self.agents})
        if request.path == HEALTHS and self.healths is not None:
            return Answer(body={"items": self.healths})
        if request.path == "/apis/resource.k8s.io":
            return Answer(body={"preferredVersion": {"groupVersion": "resource.k8s.io/v1"}})
        if request.path == "/apis/resource.k8s.io/v1/resourceslices":
            return self.slices
        return Answer(404, {"message": "not found"})


@pytest.fixture
def cluster() -> FakeNodeObjects:
    return FakeNodeObjects()


@pytest.fixture
def config(cluster: FakeNodeObjects, tmp_path: Path) -> Iterator[str]:
    with serving(cluster.answer) as server:
        yield kubeconfig(tmp_path, server.url)


def run(config: str, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = kubectl.main([*arguments, "--kubeconfig", config])
    out, err = capsys.readouterr()
    return code, out, err


def test_main__a_line_for_each_node(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(config, capsys, "nodes")
    assert code == 0
    head, *lines = out.splitlines()
    assert head.split() == [
        "NODE",
        "HEALTH",
        "SINCE",
        "GPUS",
        "CLEAN",
        "CORDONED",
        "BY",
        "REASON",
    ]
    cells = {line.split()[0]: " ".join(line.split()[1:]) for line in lines}
    assert cells["bad"].startswith("fail ")
    assert "1/1 0 kcover" in cells["bad"]
    assert "(2x) plugin/p inspection" in cells["bad"]
    assert "kcover, operator" not in cells["bad"]
    assert re.search(r"0 kcover \d+[smh] \(2x\), operator plugin/p inspection", cells["both"])
    assert cells["mine"].endswith("1/1 1 operator")
    assert cells["odd"] == (
        "unknown 0 not inspected; condition KernelDeadlock is True; "
        "only 7 of 8 nvidia.com/gpu are allocatable"
    )
    assert cells["silent"].startswith("unknown 0 last inspected ")
    assert cells["well"].endswith("1/1 1")
    assert "\x1b" not in out


def test_main__notes_that_make_no_sense_cost_no_other_line(
    cluster: FakeNodeObjects, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = {CORDONED: "broken fan", OFFENCES: f"{'9' * 5000} {NOW}"}
    cluster.nodes.append(node("hand", cordoned=True, annotations=kept))
    code, out, err = run(config, capsys, "nodes")
    assert (code, err) == (0, "")
    cells = {line.split()[0]: " ".join(line.split()[1:]) for line in out.splitlines()}
    assert cells["hand"] == "unknown 0 kcover broken fan"
    assert "well" in cells


def test_main__what_a_warning_means_is_said_where_there_is_one(
    cluster: FakeNodeObjects, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "it is not cordoned for this" not in run(config, capsys, "nodes")[1]
    assert cluster.healths is not None
    cluster.healths.append(health("odd", Result.WARN))
    assert run(config, capsys, "nodes")[1].splitlines()[-1].startswith("warn: ")


def test_main__the_same_as_json(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(config, capsys, "nodes", "-o", "json")
    assert code == 0
    found = {item["node"]: item for item in json.loads(out)["items"]}
    bad = found["bad"]
    assert (bad["health"], bad["kept_out_by"], bad["kept_out_count"]) == ("fail", "kcover", 2)
    assert bad["kept_out_since"] == NOW
    assert found["both"]["kept_out_by"] == "kcover"
    by_operator = {name for name, item in found.items() if item["cordoned_by_operator"]}
    assert by_operator == {"both", "mine"}
    assert found["odd"]["others"] == [
        "condition KernelDeadlock is True",
        "only 7 of 8 nvidia.com/gpu are allocatable",
    ]
    assert (found["silent"]["health"], found["silent"]["clean_rounds"]) == ("unknown", 0)


def test_main__taints_of_drivers_on_single_devices_are_listed(
    cluster: FakeNodeObjects, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.slices = cluster.tainted
    code, out, err = run(config, capsys, "nodes")
    assert (code, err) == (0, "")
    (line,) = (line for line in out.splitlines() if line.startswith("well"))
    assert line.endswith("   device gpu-0 of d: taint gpu.nvidia.com/xid:NoSchedule")


def test_main__who_may_not_read_them_learns_that(
    cluster: FakeNodeObjects, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.slices = Answer(403, {"message": "you may not list \x1b[2Jresourceslices"})
    code, out, err = run(config, capsys, "nodes")
    assert code == 0
    assert "condition KernelDeadlock is True" in out
    assert err.startswith("taints on single devices are unknown: ")
    assert "\x1b" not in err


def test_main__a_cluster_without_kcover(
    cluster: FakeNodeObjects, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.healths = None
    code, out, err = run(config, capsys, "nodes")
    assert (code, out) == (3, "")
    assert "is kcover-ebpf installed?" in err


class FakeNodeAgent:
    """What the program in the agent's pod answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.commands: list[tuple[str, list[str]]] = []
        self.refuse: dict[str, Exception] = {}
        self.out = {"agent-1": ["memory   pass \x1b[2J", "n1: pass"]}
        self.codes: dict[str, int | None] = {"agent-1": 0}
        self.said = ""
        monkeypatch.setattr(kube_exec, "Exec", lambda _, *rest: FakeExec(self, *rest))  # type: ignore[arg-type]


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> FakeNodeAgent:
    return FakeNodeAgent(monkeypatch)


def test_main__a_node_is_inspected_by_its_agent(
    config: str, capsys: pytest.CaptureFixture[str], agent: FakeNodeAgent
) -> None:
    code, out, _ = run(config, capsys, "inspect", "node1", "--checks", "memory")
    assert (code, out) == (0, "memory   pass \\x1b[2J\nn1: pass\n")
    wanted = ["kcover-ebpf", "inspect", "-o", "text", "--checks", "memory"]
    assert agent.commands == [("agent-1", wanted)]
    agent.codes["agent-1"] = 1
    assert run(config, capsys, "inspect", "node1", "-o", "json")[0] == 1
    assert agent.commands[-1][1] == ["kcover-ebpf", "inspect", "-o", "json"]


@pytest.mark.parametrize(
    ("code", "said", "words"),
    [
        (2, "kcover-ebpf: no check is named 'x'", "no check is named 'x'"),
        (None, "", "the connection to the agent on node1 was cut"),
        (127, "not found", "not found"),
    ],
)
def test_main__an_inspection_that_cannot_be_made(
    config: str,
    capsys: pytest.CaptureFixture[str],
    agent: FakeNodeAgent,
    code: int | None,
    said: str,
    words: str,
) -> None:
    agent.codes["agent-1"], agent.said = code, said
    found, _, err = run(config, capsys, "inspect", "node1")
    assert found == 3
    assert words in err
    assert err.count("\n") == 1


def test_main__a_node_without_an_agent(
    cluster: FakeNodeObjects, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.agents = []
    code, _, err = run(config, capsys, "inspect", "node1")
    assert code == 3
    assert "no agent of kcover-ebpf runs on node node1" in err


def pod_on(node: str, name: str, created: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "ml", "uid": f"u-{name}", "creationTimestamp": created}
    return {"metadata": metadata, "spec": {"nodeName": node}, "status": {"phase": "Running"}}


def test_bad_node__is_an_event_about_the_newest_pod_there_that_the_controller_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pods = [pod_on("n", "old", "2026-01-01T00:00:00Z"), pod_on("n", "new", NOW)]

    def answer(request: Request) -> Answer:
        return Answer(201, request.body) if request.body else Answer(body={"items": pods})

    with serving(answer) as server:
        config = kubeconfig(tmp_path, server.url)
        code, out, _ = run(config, capsys, "bad-node", "n", "-n", "ml", "--why", "slow")
    assert (code, out) == (0, "reported; to see it: kubectl describe node n\n")
    listed, written = server.requests
    assert listed.path == "/api/v1/namespaces/ml/pods"
    assert listed.query["fieldSelector"] == "spec.nodeName=n"
    assert written.path == "/api/v1/namespaces/ml/events"
    assert written.body["metadata"]["annotations"] == {BAD_NODE: "n"}
    assert written.body["involvedObject"]["name"] == "new"
    assert (written.body["type"], written.body["message"]) == ("Warning", "slow")


def test_bad_node__of_a_node_without_a_pod_of_the_namespace_is_refused(
    config: str, capsys: pytest.CaptureFixture[str], cluster: FakeNodeObjects
) -> None:
    with serving(lambda _: Answer(body={"items": []})) as server:
        config = kubeconfig(Path(config).parent, server.url)
        code, _, err = run(config, capsys, "bad-node", "n", "-n", "ml", "--why", "slow")
    assert code == 2
    assert "no pod of namespace ml is on node n" in err
    assert len(server.requests) == 1
