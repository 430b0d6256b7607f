"""Each component, with its own token: what it needs is allowed, and everything else is refused.

Twice: by the rules that the API server says apply to it, and by trying every verb on every resource
that the API server has. Tries are dry runs on a name that does not exist: authorization comes
before the object is searched for, so 403 means refused and anything else means allowed.
"""

import itertools
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.driver.control_plane import ControlPlane, User
from tests.chart.permissions import AGENT, AT_HOME, CONTROLLER, Permission
from tests.chart.release import Installed, make_pod

RESTART = Path(__file__).resolve().parents[2] / "kcover_ebpf/recovery/restart/methods.toml"


EVERYWHERE = {"agent": AGENT, "controller": CONTROLLER}
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
NOTHING = "kcover-rbac-test"
# A review of itself, which every account may ask for.
OF_ITSELF = {"authentication.k8s.io", "authorization.k8s.io"}


def user_of(installed: Installed, component: str) -> User:
    return installed.agent("n1") if component == "agent" else installed.controller()


def reported_rules(user: User, namespace: str) -> set[Permission]:
    """What the API server says this user may do in a namespace."""
    path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
    answer = user.ask("POST", path, {"spec": {"namespace": namespace}})
    assert answer.code == 201, answer.message
    assert not answer.body["status"]["incomplete"]
    return {
        Permission(*combination)
        for rule in answer.body["status"]["resourceRules"]
        for combination in itertools.product(rule["verbs"], rule["apiGroups"], rule["resources"])
    }


@pytest.mark.parametrize("namespace", ["home", "ml"])
@pytest.mark.parametrize("component", ["agent", "controller"])
def test_the_rules_are_what_is_needed_and_no_more(
    installed: Installed, component: str, namespace: str
) -> None:
    of_default = User(installed.plane, installed.plane.token("ml", "default"))
    at_home = namespace == "home"
    place = installed.namespace if at_home else namespace
    mine = reported_rules(user_of(installed, component), place) - reported_rules(of_default, place)
    expected = EVERYWHERE[component] | (AT_HOME[component] if at_home else set())
    assert mine == expected
    assert not any("*" in part for permission in mine for part in permission)


def resources(root: User) -> Iterator[tuple[Permission, str, bool]]:
    """Every resource and subresource of the API server: its name, its path, is it namespaced."""
    for name, version in group_versions(root):
        base = f"/apis/{name}/{version}" if name else f"/api/{version}"
        for resource in root.ask("GET", base).body["resources"]:
            yield Permission("", name, resource["name"]), base, resource["namespaced"]


def group_versions(root: User) -> Iterator[tuple[str, str]]:
    yield "", "v1"
    for group in root.ask("GET", "/apis").body["groups"]:
        yield group["name"], group["preferredVersion"]["version"]


def is_allowed(user: User, verb: str, base: str, name: str, namespace: str | None) -> bool:
    """Try it, without effect."""
    plural, _, sub = name.partition("/")
    place = base + (f"/namespaces/{namespace}" if namespace else "") + f"/{plural}"
    one = f"{place}/{NOTHING}" + (f"/{sub}" if sub else "")
    few = "?labelSelector=none%3Dnone"
    dry = "dryRun=All"
    tries: dict[str, tuple[str, str, object]] = {
        "get": ("GET", one, None),
        "list": ("GET", place + few, None),
        "watch": ("GET", f"{place}{few}&watch=true&timeoutSeconds=1", None),
        "create": ("POST", (one if sub else place) + f"?{dry}", {}),
        "update": ("PUT", f"{one}?{dry}", {}),
        "patch": ("PATCH", f"{one}?{dry}", {}),
        "delete": ("DELETE", f"{one}?{dry}", None),
        "deletecollection": ("DELETE", f"{place}{few}&{dry}", None),
    }
    method, path, body = tries[verb]
    kind = "application/merge-patch+json" if verb == "patch" else "application/json"
    return user.ask(method, path, body, kind).code != 403


@pytest.mark.timeout(300)
@pytest.mark.parametrize("component", ["agent", "controller"])
def test_every_verb_on_every_resource_is_tried(
    installed: Installed, plane: ControlPlane, component: str
) -> None:
    user, expected = user_of(installed, component), EVERYWHERE[component]
    tried, wrong = 0, []
    for (_, group, name), base, namespaced in resources(plane.admin()):
        if group in OF_ITSELF:
            continue
        for verb in VERBS:
            if "/" in name and verb in ("list", "watch", "deletecollection"):
                continue
            allowed = is_allowed(user, verb, base, name, "ml" if namespaced else None)
            tried += 1
            if allowed != (Permission(verb, group, name) in expected):
                wrong.append(f"{verb} {name}.{group}: {'allowed' if allowed else 'refused'}")
    assert wrong == []
    assert tried > 500


def test_the_lease_of_another_program_is_out_of_reach(installed: Installed) -> None:
    base = "/apis/coordination.k8s.io/v1"
    controller = installed.controller()
    assert not is_allowed(controller, "get", base, "leases", installed.namespace)
    assert not is_allowed(controller, "update", base, "leases", "kube-system")


def test_each_kind_of_the_table_can_be_restarted() -> None:
    table: dict[str, Any] = tomllib.loads(RESTART.read_text())
    for row in table["kind"]:
        verb = "patch" if row["method"] == "suspend" else "get"
        assert Permission(verb, row["group"], row["plural"]) in CONTROLLER
    queue = table["queue"]
    assert Permission("patch", queue["group"], queue["plural"]) in CONTROLLER


def test_a_refused_request_is_distinguished_from_one_that_is_allowed(
    installed: Installed, plane: ControlPlane
) -> None:
    make_pod(plane, "ml", "n1", "default")
    root, agent = plane.admin(), installed.agent("n1")
    assert is_allowed(root, "get", "/api/v1", "secrets", "ml")
    assert not is_allowed(agent, "get", "/api/v1", "secrets", "ml")
