"""What an agent writes where the cluster has the definitions of an older version: helm never changes them.

The API server is a real one. It refuses a server-side apply as a whole where one field is not declared (500); of
another write it drops that field alone.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from kcover_ebpf.api import fault_report, node_health
from kcover_ebpf.api.fault_report import FaultReport, ReportedJob
from kcover_ebpf.api.node_health import NodeHealth, PartHealth
from kcover_ebpf.errors import ApiError
from kcover_ebpf.facts.health import Result
from kcover_ebpf.kube.client import ApiClient, connect
from kcover_ebpf.model.verdict import Cause, Certainty, Verdict, VerdictKind
from testbed.driver.control_plane import ControlPlane
from tests.chart.played_cluster import DEFINITIONS
from tests.chart.release import CHART

pytestmark = pytest.mark.timeout(300, func_only=True)
NOW_S = 1.8e9
REPORT = "/apis/kcover.io/v1alpha1/namespaces/default/faultreports/llm-0a1b2c.n1"
HEALTH = "/apis/kcover.io/v1alpha1/nodehealths/n1"
LATER = {"certainty", "graph", "silences", "devices", "logs"}
"""Fields that later versions added, or might have."""


def older(schema: Any) -> Any:
    """A schema without what came later."""
    if isinstance(schema, list):
        return [older(value) for value in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: {name: older(value) for name, value in part.items() if name not in LATER}
        if key == "properties"
        else older(part)
        for key, part in schema.items()
    }


def served(client: ApiClient, path: str) -> None:
    """Wait until objects of a definition can be read."""
    deadline = time.monotonic() + 60
    while True:
        try:
            client.list(path.rpartition("/")[0])
            return
        except ApiError:
            assert time.monotonic() < deadline, f"{path} is not served"
            time.sleep(0.2)


@pytest.fixture
def client(fresh_plane: ControlPlane) -> ApiClient:
    """Of an API server with older definitions."""
    found = connect(str(fresh_plane.kubeconfig))
    for name in ("faultreports", "nodehealths"):
        (body,) = yaml.safe_load_all((CHART / f"crds/{name}.yaml").read_text())
        found.create(DEFINITIONS, older(body))
    for path in (REPORT, HEALTH):
        served(found, path)
    return found


def report(sequence: int, verdict: Verdict | None) -> dict[str, Any]:
    job = ReportedJob("llm", {"job-name": "llm"}, "Job")
    said = FaultReport("n1", NOW_S, sequence, job=job, verdict=verdict)
    return fault_report.object_of(said, "default", "llm-0a1b2c.n1")


HUNG = Verdict(
    VerdictKind.HUNG, Cause.STOPPED, since_s=NOW_S,
    certainty=Certainty.PROVEN, graph=("rank 0 waits for rank 1",),
)  # fmt: skip


def test_a_report_loses_what_an_older_definition_lacks(client: ApiClient) -> None:
    for sequence in (1, 2):
        began_s = time.time()
        client.apply(REPORT, report(sequence, HUNG), "kcover-agent")
        found = client.get(REPORT)
        assert found["spec"]["sequence"] == sequence
        verdict = found["spec"]["verdict"]
        assert (verdict["cause"], LATER & verdict.keys()) == ("stopped", set())
        assert (fault_report.written_s(found["metadata"]) or 0) > began_s - 1.5
        time.sleep(1.0)  # times of writes are whole seconds
    # a later one says nothing of what the one before said
    client.apply(REPORT, report(3, None), "kcover-agent")
    assert "verdict" not in client.get(REPORT)["spec"]


def test_a_report_that_an_older_agent_wrote_is_replaced(
    client: ApiClient, fresh_plane: ControlPlane
) -> None:
    """And the other way round, where the newer agent is taken back: an older one writes by server-side apply."""
    admin = fresh_plane.admin()

    def by_an_older_agent(sequence: int, verdict: Verdict | None) -> int:
        query, kind = "?fieldManager=kcover-agent&force=true", "application/apply-patch+yaml"
        return admin.ask("PATCH", REPORT + query, report(sequence, verdict), kind).code

    plain = Verdict(VerdictKind.HUNG, Cause.STOPPED, since_s=NOW_S)
    assert by_an_older_agent(1, HUNG) == 500
    assert by_an_older_agent(1, plain) == 201
    client.apply(REPORT, report(2, None), "kcover-agent")
    assert "verdict" not in client.get(REPORT)["spec"]
    client.apply(REPORT, report(3, HUNG), "kcover-agent")
    assert by_an_older_agent(4, None) == 200
    assert "verdict" not in client.get(REPORT)["spec"]


def test_the_health_of_a_node_loses_what_an_older_definition_lacks(client: ApiClient) -> None:
    failed = PartHealth("pcie", Result.FAIL, 1.8e9, devices=("0000:17:00.0",))
    health = NodeHealth("n1", 1.8e9, 1950, "boot", Result.FAIL, 1.8e9, 0, checks=(failed,))
    for _ in range(2):
        client.apply(HEALTH, node_health.object_of(health), "kcover-agent")
        (check,) = client.get(HEALTH)["status"]["checks"]
        assert (check["name"], "devices" in check) == ("pcie", False)
