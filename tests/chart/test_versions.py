"""Half of an upgrade, without nodes: an agent of one version with a controller of the other, by either's definitions.

Agent and controller are the real programs, with the accounts and the admission of this version's chart; the job's
controller and the kubelet are played. What a kubelet and a hang add is in `tests/cluster/test_upgrade.py`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.driver.control_plane import ControlPlane, running
from testbed.skips import PREVIOUS
from tests.chart.played_job import NODE, TEAM, PlayedJob, made, until
from tests.chart.release import CHART, FULLNAME, RELEASE, Helm, Installed, make_pod
from tests.chart.test_least_privilege import HOME, replaced
from tests.chart.test_older_definitions import DEFINITIONS
from tests.kernel.pods import kubelet_root

pytestmark = [
    pytest.mark.needs("root", "bpf", "cgroup2", "previous"),
    pytest.mark.timeout(600, func_only=True),
]
ROOT = Path(__file__).resolve().parents[2]


def previous() -> Path:
    return Path(os.environ[PREVIOUS])


@contextmanager
def cluster_of(folder: Path, programs: dict[str, Path], definitions: str) -> Iterator[Installed]:
    """An API server with this version's chart, and the definitions of this version (`new`) or of the one before."""
    with running(folder, programs["kube-apiserver"], audited=HOME) as plane:
        root = plane.admin()
        ready = {"conditions": [{"type": "Ready", "status": "True", "reason": "test"}]}
        made(root.ask("POST", "/api/v1/nodes", {"metadata": {"name": NODE}, "status": ready}))
        for name in (HOME, TEAM):
            made(root.ask("POST", "/api/v1/namespaces", {"metadata": {"name": name}}))
            accounts = f"/api/v1/namespaces/{name}/serviceaccounts"
            made(root.ask("POST", accounts, {"metadata": {"name": "default"}}))
        kept = bodies(previous()) if definitions == "old" else []
        for body in kept:
            made(root.ask("POST", DEFINITIONS, body))
        helm = Helm(programs["helm"], plane.kubeconfig)
        full = f"--set=fullnameOverride={FULLNAME}"
        helm("install", RELEASE, str(CHART), f"--namespace={HOME}", full)
        # helm installs definitions that are not there, and an upgrade does not
        for name in {body["metadata"]["name"] for body in bodies(ROOT)}:
            if kept and name not in {body["metadata"]["name"] for body in kept}:
                made(root.ask("DELETE", f"{DEFINITIONS}/{name}"))
        yield Installed(plane, HOME)


def bodies(checkout: Path) -> list[dict[str, Any]]:
    """The definitions of a checkout."""
    files = sorted((checkout / "charts/kcover-ebpf/crds").glob("*.yaml"))
    return [body for file in files for body in yaml.safe_load_all(file.read_text())]


def start(
    stack: ExitStack, plane: ControlPlane, folder: Path, version: str, component: str, *more: str
) -> Path:
    """A program of a version, as the chart's account; returns its log."""
    account = f"{FULLNAME}-{component}"
    pod = make_pod(plane, HOME, NODE, account)
    config = plane.kubeconfig_of(component, plane.token(HOME, account, pod))
    program = (previous() if version == "old" else ROOT) / ".venv/bin/kcover-ebpf"
    command = [str(program), component, f"--kubeconfig={config}", f"--namespace={HOME}", *more]
    log = folder / f"{component}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(command, stderr=file, stdout=subprocess.DEVNULL)
    stack.callback(process.wait, 30)
    stack.callback(process.terminate)
    return log


@pytest.mark.parametrize("definitions", ["old", "new"])
@pytest.mark.parametrize(("agent", "controller"), [("new", "old"), ("old", "new"), ("new", "new")])
def test_a_job_is_recovered(
    programs: dict[str, Path], tmp_path: Path, agent: str, controller: str, definitions: str
) -> None:
    """It has lost a rank: reported, decided, ended, replaced, recovered."""
    with ExitStack() as stack:
        installed = stack.enter_context(cluster_of(tmp_path, programs, definitions))
        played = PlayedJob(installed.plane.admin(), stack.enter_context(kubelet_root()))
        stack.callback(end, played)
        lease, state = f"--lease={FULLNAME}-controller", f"--state-dir={tmp_path / 's'}"
        plane = installed.plane
        logs = [
            start(stack, plane, tmp_path, controller, "controller", lease),
            start(stack, plane, tmp_path, agent, "agent", f"--node={NODE}", state),
        ]
        try:
            played.make_job()
            played.make_pods("a")
            until(lambda: len(played.reported()) == 2, "the agent reports both pods")
            time.sleep(3.0)
            (rank,) = next(iter(played.pods.values())).pids()
            os.kill(rank, signal.SIGKILL)
            replaced(played)
        except AssertionError:
            print(*(log.read_text()[-3000:] for log in logs), sep="\n---\n")
            print(played.incident())
            raise


def end(played: PlayedJob) -> None:
    """No process of it is left."""
    for leader in played.leaders:
        leader.kill()
        leader.wait()
        assert leader.stdout is not None
        leader.stdout.close()
