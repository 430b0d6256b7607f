"""What the admission policies of the chart refuse, accept and change, at a real API server."""

from typing import Any

import pytest
import yaml

from kcover_ebpf.api import agent_lease
from kcover_ebpf.api.agent_lease import AgentLease
from kcover_ebpf.api.fault_report import PodRef
from testbed.driver.control_plane import User
from tests.chart.release import CHART, FULLNAME, RELEASE, Helm, Installed

REPORTS = "/apis/kcover.io/v1alpha1/namespaces/ml/faultreports"
HEALTHS = "/apis/kcover.io/v1alpha1/nodehealths"
INCIDENTS = "/apis/kcover.io/v1alpha1/namespaces/ml/incidents"
ACK = {"spec": {"sequence": 2, "acks": [{"order": "1", "verb": "Stop", "result": "Done"}]}}
"""As agent/reports/report_sender.py sends it."""


def report(name: str, node: str, sequence: int = 1) -> dict[str, Any]:
    spec = {"node": node, "time": "2026-11-21T12:00:00Z", "sequence": sequence}
    return {
        "apiVersion": "kcover.io/v1alpha1",
        "kind": "FaultReport",
        "metadata": {"name": name},
        "spec": spec,
    }


def incident(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "kcover.io/v1alpha1",
        "kind": "Incident",
        "metadata": {"name": name},
        "spec": {"job": {"kind": "Job", "name": "llm", "uid": "u"}},
    }


@pytest.fixture(scope="module")
def of_n1(installed: Installed, root: User) -> str:
    """The path of a report that the agent of n1 wrote."""
    written = installed.agent("n1").apply(f"{REPORTS}/llm-0a1b2c.n1", report("llm-0a1b2c.n1", "n1"))
    assert written.code == 201, written.message
    return f"{REPORTS}/llm-0a1b2c.n1"


def test_an_agent_writes_about_its_own_node(installed: Installed, of_n1: str) -> None:
    again = installed.agent("n1").apply(of_n1, report("llm-0a1b2c.n1", "n1", 2))
    assert (again.code, again.body["spec"]["sequence"]) == (200, 2)


def test_the_report_of_a_node_about_itself_has_its_name(installed: Installed) -> None:
    written = installed.agent("n1").apply(f"{REPORTS}/n1", report("n1", "n1"))
    assert written.code == 201, written.message


@pytest.mark.parametrize("name", ["llm-0a1b2c.n2", "n2", "llm"])
def test_an_agent_cannot_write_about_another_node(installed: Installed, name: str) -> None:
    refused = installed.agent("n1").apply(f"{REPORTS}/{name}", report(name, "n2"))
    assert refused.code == 403
    assert "the agent of node n1 reports about itself only" in refused.message


def test_an_agent_cannot_take_the_name_of_another_nodes_report(installed: Installed) -> None:
    refused = installed.agent("n1").apply(f"{REPORTS}/llm-0a1b2c.n2", report("llm-0a1b2c.n2", "n1"))
    assert refused.code == 403
    assert "the name of a FaultReport ends in the name of its node" in refused.message


@pytest.mark.parametrize("name", ["llm-0a1b2c.a.n1", "llm.n1", "llm-0a1b2c.x-0a1b2c.n1"])
def test_an_agent_cannot_take_the_name_of_a_report_of_a_node_whose_name_ends_in_its_own(
    installed: Installed, name: str
) -> None:
    refused = installed.agent("n1").apply(f"{REPORTS}/{name}", report(name, "n1"))
    assert refused.code == 403
    assert "the name of a FaultReport ends in the name of its node" in refused.message


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_an_agent_cannot_change_another_nodes_report(
    installed: Installed, of_n1: str, node: str
) -> None:
    refused = installed.agent("n2").apply(of_n1, report("llm-0a1b2c.n1", node))
    assert refused.code == 403
    assert "the agent of node n2 reports about itself only" in refused.message


def test_a_report_is_all_that_its_agent_says(installed: Installed) -> None:
    agent, path = installed.agent("n1"), f"{REPORTS}/acked-0a1b2c.n1"
    said = report("acked-0a1b2c.n1", "n1")
    said["spec"]["verdict"] = {"verdict": "HUNG", "cause": "stopped"}
    assert agent.apply(path, said).code == 201
    assert installed.agent("n2").merge(path, ACK).code == 403
    answered = agent.merge(path, ACK)
    assert (answered.code, answered.body["spec"]["verdict"]["cause"]) == (200, "stopped")
    again = agent.apply(path, report("acked-0a1b2c.n1", "n1", 3))
    # the acks were another manager's to the API server, for they came in a patch
    assert (again.code, again.body["spec"].keys() & {"verdict", "acks"}) == (200, set())


def test_an_agent_cannot_delete_another_nodes_report(installed: Installed, of_n1: str) -> None:
    assert installed.agent("n2").ask("DELETE", of_n1).code == 403
    assert installed.agent("n1").ask("DELETE", of_n1 + "?dryRun=All").code == 200


def test_a_token_without_a_node_writes_nothing(installed: Installed) -> None:
    refused = installed.unbound_agent().apply(
        f"{REPORTS}/llm-0a1b2c.n1", report("llm-0a1b2c.n1", "n1")
    )
    assert refused.code == 403
    assert "(its token names none)" in refused.message


def health(node: str, about: str = "", clean_rounds: int = 1) -> dict[str, Any]:
    """A NodeHealth named `node`."""
    now = "2026-11-21T12:00:00Z"
    check = {"name": "memory", "result": "pass", "since": now, "rounds": 1, "evidence": ["x"]}
    status = {"node": about or node, "time": now, "expiresAfterS": 1950, "bootID": "b"}
    status |= {"result": "pass", "since": now, "cleanRounds": clean_rounds, "checks": [check]}
    return {
        "apiVersion": "kcover.io/v1alpha1",
        "kind": "NodeHealth",
        "metadata": {"name": node},
        "status": status,
    }


def test_an_agent_writes_the_health_of_its_node_alone(installed: Installed) -> None:
    agent = installed.agent("n1")
    written = agent.apply(f"{HEALTHS}/n1", health("n1"))
    assert written.code == 201, written.message
    again = agent.apply(f"{HEALTHS}/n1", health("n1", clean_rounds=2))
    assert (again.code, again.body["status"]["cleanRounds"]) == (200, 2)
    for name, about in (("n2", "n2"), ("n2", "n1"), ("n1", "n2")):
        refused = agent.apply(f"{HEALTHS}/{name}", health(name, about))
        assert (refused.code, "reports its own health only" in refused.message) == (403, True)
    refused = installed.agent("n2").merge(f"{HEALTHS}/n1", {"status": {"cleanRounds": 99}})
    assert refused.code == 403
    refused = installed.unbound_agent().apply(f"{HEALTHS}/n1", health("n1"))
    assert (refused.code, "(its token names none)" in refused.message) == (403, True)


def test_no_other_user_writes_the_health_of_a_node(installed: Installed, root: User) -> None:
    assert installed.agent("n2").apply(f"{HEALTHS}/n2", health("n2")).code == 201
    for user in (root, installed.controller()):
        refused = user.merge(f"{HEALTHS}/n2", {"status": {"cleanRounds": 99}})
        assert refused.code == 403, refused.message
    assert "by the agent of its node alone" in root.ask("POST", HEALTHS, health("n3")).message
    assert installed.controller().ask("DELETE", f"{HEALTHS}/n2?dryRun=All").code == 200
    assert installed.agent("n2").ask("DELETE", f"{HEALTHS}/n2?dryRun=All").code == 403


def lease(node: str, pod_uid: str = "3f1c") -> dict[str, Any]:
    pod = PodRef(f"kcover-{node}", pod_uid)
    return agent_lease.object_of(AgentLease(node, 1000.0, 45, frozenset({7})), pod)


def test_an_agent_writes_its_own_lease_alone(installed: Installed, root: User) -> None:
    leases = agent_lease.collection(installed.namespace)
    agent = installed.agent("n1")
    made = agent.ask("POST", leases, lease("n1"))
    assert made.code == 201, made.message
    assert agent.merge(f"{leases}/agent.n1", lease("n1")).code == 200
    assert agent.merge(f"{leases}/agent.n1", lease("n1", "8e2a")).code == 200, "of its next pod"
    assert agent.ask("GET", f"{leases}?limit=1").body["metadata"].keys() >= {"resourceVersion"}
    leads = {"kind": "Lease", "apiVersion": agent_lease.API_VERSION, "spec": {}}
    leads["metadata"] = {"name": f"{FULLNAME}-controller"}
    assert root.ask("POST", leases, leads).code in (201, 409), "other programs may lead by one"
    mine = {"spec": {"holderIdentity": "me"}}
    for refused in (
        agent.ask("POST", leases, lease("n2")),
        agent.merge(f"{leases}/{FULLNAME}-controller", mine),
        installed.agent("n2").merge(f"{leases}/agent.n1", mine),
    ):
        assert (refused.code, "writes its own Lease only" in refused.message) == (403, True)
    refused = installed.unbound_agent().merge(f"{leases}/agent.n1", mine)
    assert (refused.code, "(its token names none)" in refused.message) == (403, True)
    for user in (root, installed.controller()):
        assert user.merge(f"{leases}/agent.n1", mine).code == 403
    for user in (installed.agent("n2"), installed.controller()):
        assert user.ask("DELETE", f"{leases}/agent.n1?dryRun=All").code == 403
    assert agent.ask("DELETE", f"{leases}/{FULLNAME}-controller?dryRun=All").code == 403
    for user in (agent, root):
        assert user.ask("DELETE", f"{leases}/agent.n1?dryRun=All").code == 200


def test_without_the_policy_agents_have_no_lease(helm: Helm) -> None:
    """They could take the one by which the controller leads."""
    unsafe = ("--kube-version=1.36.0", "--set=admission.validating=false")
    text = helm("template", RELEASE, str(CHART), *unsafe)
    owned = [item for item in yaml.safe_load_all(text) if item and item["kind"] == "Role"]
    assert {item["metadata"]["name"].rpartition("-")[2] for item in owned} == {
        "controller",
        "trace",
    }


def test_no_other_user_writes_a_report(root: User, of_n1: str) -> None:
    made = root.ask("POST", REPORTS, report("forged.n1", "n1"))
    assert (made.code, "by the agent of its node alone" in made.message) == (403, True)
    changed = root.merge(of_n1, {"spec": {"suspicious": True}})
    assert (changed.code, "by the agent of its node alone" in changed.message) == (403, True)


def test_the_garbage_collector_can_drop_owners_and_an_administrator_can_delete(
    root: User, of_n1: str
) -> None:
    assert root.merge(of_n1, {"metadata": {"ownerReferences": []}}).code == 200
    assert root.ask("DELETE", of_n1 + "?dryRun=All").code == 200


def test_incidents_are_the_controllers(installed: Installed, root: User) -> None:
    controller = installed.controller()
    assert root.ask("POST", INCIDENTS, incident("forged")).code == 403
    assert installed.agent("n1").ask("POST", INCIDENTS, incident("forged")).code == 403
    made = controller.ask("POST", INCIDENTS, incident("llm-1"))
    assert made.code == 201, made.message
    status = {"status": {"phase": "Open", "verdict": "HUNG"}}
    for user in (root, installed.agent("n1")):
        assert user.merge(f"{INCIDENTS}/llm-1/status", status).code == 403
    written = controller.ask("PUT", f"{INCIDENTS}/llm-1/status", {**made.body, **status})
    assert (written.code, written.body["status"]) == (200, status["status"])


def test_a_person_approves_and_changes_nothing_else(installed: Installed, root: User) -> None:
    assert installed.controller().ask("POST", INCIDENTS, incident("llm-2")).code == 201
    path = f"{INCIDENTS}/llm-2"
    assert root.merge(path, {"spec": {"approved": True}}).code == 200
    for change in ({"selector": {"app": "other"}}, {"policy": "mine"}, {"job": {"name": "other"}}):
        refused = root.merge(path, {"spec": change})
        assert refused.code in (403, 422), refused.message
    assert root.merge(path, {"status": {"phase": "Decided"}}).body.get("status", {}) == {}


def test_the_fixture_is_the_release(installed: Installed, root: User) -> None:
    path = f"/api/v1/namespaces/{installed.namespace}/serviceaccounts/{FULLNAME}-agent"
    assert root.ask("GET", path).code == 200
