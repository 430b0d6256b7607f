"""An API server of one test, with the chart, a node and a job that the test plays; its accounts are written down."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from testbed.driver.control_plane import ControlPlane, running
from tests.chart.played_job import NODE, TEAM, PlayedJob, made
from tests.chart.release import CHART, FULLNAME, RELEASE, Helm, Installed, make_pod
from tests.kernel.pods import kubelet_root

HOME = "kcover"
PROGRAM = Path(sys.executable).with_name("kcover-ebpf")
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.fixture
def plane(programs: dict[str, Path], tmp_path: Path) -> Iterator[ControlPlane]:
    with running(tmp_path, programs["kube-apiserver"], audited=HOME) as plane:
        yield plane


def prepare(plane: ControlPlane) -> None:
    """A node, and the namespaces of the release and of the job."""
    root = plane.admin()
    ready = {"conditions": [{"type": "Ready", "status": "True", "reason": "test"}]}
    made(root.ask("POST", "/api/v1/nodes", {"metadata": {"name": NODE}, "status": ready}))
    for name in (HOME, TEAM):
        made(root.ask("POST", "/api/v1/namespaces", {"metadata": {"name": name}}))
        accounts = f"/api/v1/namespaces/{name}/serviceaccounts"
        made(root.ask("POST", accounts, {"metadata": {"name": "default"}}))


@pytest.fixture
def installed(plane: ControlPlane, programs: dict[str, Path]) -> Installed:
    prepare(plane)
    return install(plane, programs)


def install(plane: ControlPlane, programs: dict[str, Path]) -> Installed:
    """The chart."""
    helm = Helm(programs["helm"], plane.kubeconfig)
    # a restart in place uses fewer permissions: pods are to be replaced
    full = f"--set=fullnameOverride={FULLNAME}"
    helm("install", RELEASE, str(CHART), f"--namespace={HOME}", full)
    return Installed(plane, HOME)


@pytest.fixture
def played(plane: ControlPlane) -> Iterator[PlayedJob]:
    with kubelet_root() as groups:
        made_one = PlayedJob(plane.admin(), groups)
        yield made_one
        for leader in made_one.leaders:
            leader.kill()
            leader.wait()
            assert leader.stdout is not None
            leader.stdout.close()


def start(
    stack: ExitStack,
    installed: Installed,
    folder: Path,
    component: str,
    *more: str,
    program: Path = PROGRAM,
) -> Path:
    """The real program, as the chart's account, bound to a pod on the node; returns its log."""
    plane, account = installed.plane, f"{FULLNAME}-{component}"
    pod = make_pod(plane, HOME, NODE, account)
    config = plane.kubeconfig_of(component, plane.token(HOME, account, pod))
    command = [str(program), component, f"--kubeconfig={config}", f"--namespace={HOME}", *more]
    log = folder / f"{component}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(command, stderr=file, stdout=subprocess.DEVNULL)
    stack.callback(process.wait, 30)
    stack.callback(process.terminate)
    return log
