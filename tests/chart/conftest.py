"""An API server with the chart installed in it; no node runs. Programs are those of the test bed."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.cluster import build, versions
from testbed.driver.control_plane import ControlPlane, User, running
from tests.chart.release import CHART, FULLNAME, RELEASE, Helm, Installed
from tests.shown import shown

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def programs(pytestconfig: pytest.Config) -> dict[str, Path]:
    """Kubernetes and helm: of this checkout's test bed, or built where the cache has none."""
    folder = ROOT / ".testbed/bin"
    if (folder / "kube-apiserver").exists() and (folder / "helm").exists():
        return {path.name: path.resolve() for path in folder.iterdir()}
    with shown(pytestconfig):
        found = build.kubernetes(versions.kubernetes(None), print, ("kube-apiserver", "kubectl"))
        helm = build.program(versions.program("helm"), print)
    return {path.name: path for path in (*found, helm)}


@pytest.fixture(scope="session")
def kubectl(programs: dict[str, Path]) -> Path:
    return programs["kubectl"]


@pytest.fixture(scope="session")
def plane(
    programs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """One for all tests that share an installed release."""
    with running(tmp_path_factory.mktemp("plane"), programs["kube-apiserver"]) as plane:
        yield plane


@pytest.fixture(scope="session")
def root(plane: ControlPlane) -> User:
    """A cluster administrator: RBAC refuses it nothing."""
    return plane.admin()


@pytest.fixture
def fresh_plane(programs: dict[str, Path], tmp_path: Path) -> Iterator[ControlPlane]:
    """One that no other test has seen."""
    with running(tmp_path, programs["kube-apiserver"]) as plane:
        yield plane


@pytest.fixture(scope="session")
def helm(programs: dict[str, Path], plane: ControlPlane) -> Helm:
    return Helm(programs["helm"], plane.kubeconfig)


@pytest.fixture
def fresh_helm(programs: dict[str, Path], fresh_plane: ControlPlane) -> Helm:
    return Helm(programs["helm"], fresh_plane.kubeconfig)


@pytest.fixture(scope="session")
def installed(plane: ControlPlane, helm: Helm) -> Installed:
    """The chart with its defaults in namespace `kcover`, nodes n1 and n2, and a namespace `ml`."""
    root = plane.admin()
    for node in ("n1", "n2"):
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}
        assert root.ask("POST", "/api/v1/nodes", body).code == 201
    for name in ("kcover", "ml"):
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        assert root.ask("POST", "/api/v1/namespaces", body).code == 201
        # What the controller-manager would do, which does not run here.
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        root.ask("POST", f"/api/v1/namespaces/{name}/serviceaccounts", account)
    helm("install", RELEASE, str(CHART), "--namespace=kcover", f"--set=fullnameOverride={FULLNAME}")
    found = Installed(plane, "kcover")
    _wait_until_in_force(found)
    return found


def _wait_until_in_force(found: Installed) -> None:
    """A policy is in force a moment after it was made: seconds, on a busy machine."""
    path = (
        "/apis/kcover.io/v1alpha1/namespaces/ml/faultreports/asks.n2?fieldManager=test&dryRun=All"
    )
    body: dict[str, Any] = {"apiVersion": "kcover.io/v1alpha1", "kind": "FaultReport"}
    body |= {
        "metadata": {"name": "asks.n2"},
        "spec": {"node": "n2", "sequence": 1, "time": "2026-11-21T12:00:00Z"},
    }
    forger, deadline = found.agent("n1"), time.monotonic() + 60
    while "denied" not in (
        said := forger.ask("PATCH", path, body, "application/apply-patch+yaml").message
    ):
        assert time.monotonic() < deadline, f"no policy refuses a forged report: {said}"
        time.sleep(0.2)
