"""The condition on a culprit's pod at a real API server: what the controller may change of a status, and what not."""

from __future__ import annotations

import itertools
from typing import Any

from kcover_ebpf.controller.culprit_conditions import TYPE
from testbed.driver.cluster import until
from testbed.driver.control_plane import ControlPlane, User
from tests.chart.release import CHART, FULLNAME, RELEASE, Helm, make_pod

KIND = "application/strategic-merge-patch+json"
MARK = {"type": TYPE, "status": "True", "reason": "HungStopped", "message": "incident i"}
READY = {"type": "Ready", "status": "True"}
PATH = "/api/v1/namespaces/ml/pods/default-n1"


def patched(user: User, uid: str, **status: Any) -> int:
    body = {"metadata": {"uid": uid}, "status": status}
    return user.ask("PATCH", f"{PATH}/status", body, KIND).code


def types(root: User) -> set[str]:
    conditions = root.ask("GET", PATH).body["status"].get("conditions", ())
    return {condition["type"] for condition in conditions}


def test_the_controller_changes_its_condition_of_a_pod_and_nothing_else(
    fresh_plane: ControlPlane, fresh_helm: Helm
) -> None:
    root = fresh_plane.admin()
    assert root.ask("POST", "/api/v1/nodes", {"metadata": {"name": "n1"}}).code == 201
    for name in ("kcover", "ml"):
        assert root.ask("POST", "/api/v1/namespaces", {"metadata": {"name": name}}).code == 201
        accounts = f"/api/v1/namespaces/{name}/serviceaccounts"
        root.ask("POST", accounts, {"metadata": {"name": "default"}})
    fresh_helm(
        "install", RELEASE, str(CHART), "--namespace=kcover", f"--set=fullnameOverride={FULLNAME}",
        "--set=controller.culpritCondition=true",
    )  # fmt: skip
    account = f"{FULLNAME}-controller"
    own = make_pod(fresh_plane, "kcover", "n1", account)
    controller = User(fresh_plane, fresh_plane.token("kcover", account, own))
    uid = make_pod(fresh_plane, "ml", "n1", "default")["metadata"]["uid"]
    # a policy holds some time after it was made; what changes nothing is never refused
    number = itertools.count()
    until(
        lambda: (
            patched(controller, uid, conditions=[READY | {"message": str(next(number))}]) == 403
        ),
        "the policy holds",
    )
    assert patched(controller, uid, phase="Failed") == 403
    assert patched(controller, uid, podIP="10.9.9.9") == 403
    assert patched(controller, uid, hostIP="10.9.9.9") == 403
    assert patched(controller, uid, startTime="2026-11-21T12:00:00Z") == 403
    assert patched(root, uid, hostIP="10.1.1.1", hostIPs=[{"ip": "10.1.1.1"}]) == 200
    assert patched(controller, uid, hostIP=None, hostIPs=None) == 403
    assert patched(controller, uid, conditions=[MARK, READY | {"message": "mine"}]) == 403
    assert patched(controller, uid, conditions=[MARK]) == 200
    assert TYPE in types(root)
    assert patched(root, uid, conditions=[READY]) == 200, "others are not concerned"
    assert patched(controller, uid, conditions=[{**READY, "$patch": "delete"}]) == 403
    assert patched(controller, "another-uid", conditions=[MARK]) == 422
    assert patched(controller, uid, conditions=[{"type": TYPE, "$patch": "delete"}]) == 200
    assert TYPE not in types(root)
    assert "Ready" in types(root)
