"""A kind that kcover-ebpf has never seen, with its own controller: described by a JobKind, found and restarted whole.

The controller has the permissions of the chart: first without `controller.jobKinds`, and then with it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.driver.cluster import ROOT, Cluster, Namespace, home, until
from testbed.driver.kinds import Kind as ExampleKind
from testbed.driver.kinds import process, wait_for_training, wait_until_learned
from testbed.driver.restarts import moment, policy, running, stopped, wait_for_phase, ways
from tests.cluster import training_controller

pytestmark = [
    pytest.mark.needs("root", "bpf"),
    pytest.mark.timeout(600, func_only=True),
    pytest.mark.usefixtures("agents"),
]
FOLDER = Path(__file__).parent
NAME = "trainings.acme.example"
SELECTOR = "acme.example/training=demo"
TRAINING = ExampleKind("training", "", "acme.example/v1", "Training", SELECTOR)
LEASE = "--lease=custom-kcover-ebpf-controller"
"""The one that the chart's account may take."""
ALLOWED = [{"group": "acme.example", "resources": ["trainings"]}]
ALLOWED += [{"group": "acme.example", "resources": ["crews"], "readOnly": True}]  # type: ignore[dict-item]


@pytest.fixture
def described(cluster: Cluster) -> Iterator[None]:
    """The invented kind, and what the operator says about it."""
    with training_controller.described(cluster):
        yield


def _allow(cluster: Cluster, kinds: list[dict[str, Any]]) -> None:
    """The permissions of the chart's controller, with these kinds."""
    helm = shutil.which("helm") or cluster.helm
    command = [helm, "template", "custom", str(ROOT / "charts/kcover-ebpf")]
    command += [
        f"--namespace={home(cluster)}",
        f"--set-json=controller.jobKinds={json.dumps(kinds)}",
    ]
    command += ["--show-only=templates/controller/rbac.yaml"]
    command += ["--show-only=templates/serviceaccounts.yaml", "--kube-version=1.36.0"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    cluster.ctl("apply", "--filename=-", stdin=text)


@pytest.fixture
def account(cluster: Cluster, tmp_path: Path) -> Path:
    """A kubeconfig with a token of the chart's controller."""
    _allow(cluster, [])
    name = "custom-kcover-ebpf-controller"
    token = cluster.ctl("create", "token", name, f"--namespace={home(cluster)}").strip()
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


def ready(cluster: Cluster) -> dict[str, Any]:
    (kind,) = cluster.get("jobkinds", NAME)
    return next(iter(kind.get("status", {}).get("conditions", ())), {})


def until_ready(cluster: Cluster, reason: str) -> dict[str, Any]:
    return until(
        lambda: found if (found := ready(cluster)).get("reason") == reason else None,
        f"the JobKind is {reason}",
    )


@pytest.mark.usefixtures("described")
def test_a_kind_that_no_one_knows_is_refused_without_permission_and_restarted_with_it(
    namespace: Namespace, account: Path, restart_in_place: bool, tmp_path: Path
) -> None:
    cluster = namespace.cluster
    with (
        running(namespace, tmp_path / "controller.log", kubeconfig=account, options=[LEASE]),
        training_controller.running(namespace),
    ):
        policy(namespace, ways=["Replace"])
        namespace.apply((FOLDER / "training.yaml").read_text())
        wait_for_training(namespace, TRAINING)
        said = until_ready(cluster, "Forbidden")
        assert "may not get trainings.acme.example, patch trainings" in said["message"]
        assert said["status"] == "False"
        events = until(lambda: _events(cluster), "an Event says that it is refused")
        assert "controller.jobKinds" in events[0]["message"]
        wait_until_learned(namespace, TRAINING)
        victim = _hang(namespace)
        incident = wait_for_phase(namespace, ("Refused", "Failed", "Recovered"))
        assert incident["status"]["phase"] == "Refused"
        assert "may not get trainings.acme.example" in incident["status"]["message"]
        os.kill(victim, signal.SIGCONT)

        _allow(cluster, ALLOWED)
        cluster.ctl("annotate", "jobkind", NAME, "example.com/now=1")
        until_ready(cluster, "Permitted")
        wait_until_learned(namespace, TRAINING)
        count = 1
        for way in ["InPlace", "Replace"] if restart_in_place else ["Replace"]:
            policy(namespace, ways=[way])
            count += 1
            _restart(namespace, way, count)
    (training,) = namespace.get(NAME, "demo")
    assert training["spec"]["mode"] == "Active"
    assert "failures" not in training.get("status", {})
    assert "kcover.io/suspended-by" not in training["metadata"].get("annotations", {})


def _events(cluster: Cluster) -> list[dict[str, Any]]:
    found = cluster.get(
        "events", "--namespace=default", "--field-selector=reason=KcoverJobKindRefused"
    )
    return [event for event in found if event["involvedObject"]["name"] == NAME]


def _hang(namespace: Namespace) -> int:
    pids = [process(pod) for pod in namespace.pods(SELECTOR)]
    os.kill(pids[-1], signal.SIGSTOP)
    return pids[-1]


def _restart(namespace: Namespace, way: str, count: int) -> None:
    old = {pod["metadata"]["uid"] for pod in namespace.pods(SELECTOR)}
    _hang(namespace)
    incident = wait_for_phase(namespace, ("Recovered", "Failed", "Refused"), count)
    assert incident["status"]["phase"] == "Recovered", incident["status"]["timeline"]
    assert ways(incident) == [way]
    job = incident["spec"]["job"]
    assert (job["kind"], job["name"]) == ("Training", "demo")
    pods = namespace.pods(SELECTOR)
    assert len(pods) == 2
    assert ({pod["metadata"]["uid"] for pod in pods} == old) is (way == "InPlace")
    assert not stopped(pods)
    wait_for_training(namespace, TRAINING)
    wait_until_learned(namespace, TRAINING)
    decided = moment(incident, "Decided")
    taken = {
        name: round(moment(incident, name) - decided, 2) for name in ("Recovering", "Recovered")
    }
    print(json.dumps({"kind": "Training", "way": way, **taken}))
