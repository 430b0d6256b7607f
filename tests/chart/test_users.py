"""What a person may do by the chart's roles, and what the API server makes of what they and the controller write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kcover_ebpf.api.incident import NOTIFIED
from testbed.driver.control_plane import User
from tests.chart.release import Installed

EVENTS = "/api/v1/namespaces/ml/events"
GROUP = "/apis/kcover.io/v1alpha1/namespaces/ml"
ROLES = "/apis/rbac.authorization.k8s.io/v1"


@pytest.fixture
def person(installed: Installed, root: User) -> Iterator[User]:
    """An account with what the chart adds to the role `edit`; aggregated roles are made by a controller."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "ada"}}
    root.ask("POST", "/api/v1/namespaces/ml/serviceaccounts", account)
    label = "rbac.authorization.k8s.io/aggregate-to-edit"
    roles = root.ask("GET", f"{ROLES}/clusterroles?labelSelector={label}=true").body["items"]
    (name,) = (role["metadata"]["name"] for role in roles if "kcover" in role["metadata"]["name"])
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "ada"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": "ada", "namespace": "ml"}],
    }
    path = f"{ROLES}/namespaces/ml/rolebindings"
    assert root.ask("POST", path, binding).code == 201
    yield User(installed.plane, installed.plane.token("ml", "ada"))
    assert root.ask("DELETE", f"{path}/ada").code == 200


def request(name: str) -> dict[str, Any]:
    """As `kubectl kcover restart` writes it."""
    notes = {"kcover.io/need-recovery": "true", "kcover.io/restart": "InPlace"}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": "ml", "annotations": notes},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": "ml", "name": "llm-0"},
        "reason": "KcoverRestartRequested",
        "message": "kubectl kcover restart llm",
        "type": "Warning",
        "source": {"component": "kubectl-kcover"},
        "reportingComponent": "kubectl-kcover",
    }


def policy(rule: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "kcover.io/v1alpha1",
        "kind": "FaultPolicy",
        "metadata": {"name": "notifies"},
        "spec": {"notify": [rule]},
    }


def test_a_person_may_ask_for_a_restart_where_the_role_is_bound(
    installed: Installed, person: User
) -> None:
    written = person.ask("POST", EVENTS, request("llm-0.asked"))
    assert written.code == 201, written.message
    assert written.body["metadata"]["creationTimestamp"]
    other = User(installed.plane, installed.plane.token("ml", "default"))
    assert other.ask("POST", EVENTS, request("llm-0.other")).code == 403
    elsewhere = EVENTS.replace("/ml/", "/kcover/")
    assert person.ask("POST", elsewhere, request("llm-0.elsewhere")).code == 403


@pytest.mark.parametrize(
    ("rule", "code"),
    [
        ({"target": "oncall"}, 201),
        ({"target": "oncall", "phases": ["Failed"], "classes": ["hardware"]}, 201),
        ({"target": "oncall", "phases": ["Broken"]}, 422),
        ({"target": "oncall", "classes": ["luck"]}, 422),
        ({"phases": ["Failed"]}, 422),
    ],
)
def test_a_rule_of_a_policy_names_a_target_and_phases_that_there_are(
    person: User, rule: dict[str, Any], code: int
) -> None:
    made = person.ask("POST", f"{GROUP}/faultpolicies?dryRun=All", policy(rule))
    assert made.code == code, made.message


def test_an_address_in_a_policy_is_not_kept(person: User) -> None:
    rule = {"target": "oncall", "url": "http://169.254.169.254/"}
    made = person.ask("POST", f"{GROUP}/faultpolicies?dryRun=All", policy(rule))
    assert made.body["spec"]["notify"] == [{"target": "oncall"}]


def test_the_controller_notes_the_owner_and_who_was_notified(installed: Installed) -> None:
    controller = installed.controller()
    spec = {"job": {"kind": "Job", "name": "llm", "uid": "u"}}
    incident = {
        "apiVersion": "kcover.io/v1alpha1",
        "kind": "Incident",
        "metadata": {"name": "llm-owned"},
        "spec": spec,
    }
    made = controller.ask("POST", f"{GROUP}/incidents", incident)
    assert made.code == 201, made.message
    status = {"phase": "Recovered", "cause": "requested", "owner": "ada@example.com"}
    path = f"{GROUP}/incidents/llm-owned"
    written = controller.ask("PUT", f"{path}/status", {**made.body, "status": status})
    assert (written.code, written.body["status"]) == (200, status)
    noted = controller.merge(path, {"metadata": {"annotations": {NOTIFIED: "oncall:Recovered"}}})
    assert noted.code == 200, noted.message
    assert noted.body["metadata"]["annotations"] == {NOTIFIED: "oncall:Recovered"}
