"""The cluster that the tests use: that of $KUBECONFIG, or else the test bed of this checkout."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from testbed.driver import agents as real_agents
from testbed.driver import nodes
from testbed.driver.cluster import ROOT, Cluster, ClusterError, Namespace, made, titled
from testbed.driver.installed import Release, image_build, installed, provide_image
from testbed.driver.restarts import running
from tests.shown import shown

TESTBED = ROOT / "tools/testbed"
RULES = [
    "templates/admission/restart-in-place.yaml",
    "templates/admission/avoid-nodes.yaml",
]
RELEASE = "app.kubernetes.io/name=kcover-ebpf"


@contextmanager
def removed_afterwards() -> Iterator[None]:
    """Take the test bed down at the end, also if we are killed; one that was up before stays."""
    was_up = subprocess.run([TESTBED, "status"], capture_output=True, check=False).returncode == 0
    if was_up:
        yield
        return
    # The end of its input signals our end; it has its own process group, which Ctrl-C does not reach.
    command = ["sh", "-c", 'cat >/dev/null; exec "$0" down', str(TESTBED)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as end:
        yield
    assert end.returncode == 0, "tools/testbed down failed; its last lines are above"


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A running cluster with the job controllers that `tools/testbed up` installs; for `core` with none."""
    tests = [item for item in request.session.items if item.get_closest_marker("cluster")]
    if any("image" in getattr(test, "fixturenames", ()) for test in tests):
        image_build()  # meanwhile the cluster comes up, and other tests run
    controllers = ["--controllers=none"] if all(map(is_core, tests)) else []
    if chosen := os.environ.get("KUBECONFIG"):
        kubectl = Path(chosen).resolve().parent / "bin/kubectl"
        found = str(kubectl) if kubectl.exists() else shutil.which("kubectl")
        assert found is not None, "KUBECONFIG is set, but there is no kubectl on PATH"
        yield Cluster(Path(chosen).resolve(), Path(found))
        return
    with removed_afterwards():
        with shown(pytestconfig):
            code = subprocess.run([TESTBED, "up", *controllers], check=False).returncode
        assert code == 0, "tools/testbed up failed; its last lines are above"
        yield Cluster(ROOT / ".testbed/kubeconfig", ROOT / ".testbed/bin/kubectl")


def is_core(item: pytest.Item) -> bool:
    """Whether `make test` runs it."""
    return item.get_closest_marker("core") is not None


@pytest.fixture(scope="session")
def install(cluster: Cluster) -> Callable[[Iterable[str]], None]:
    """Installs job controllers of the test bed; a cluster of $KUBECONFIG is taken as it is."""

    def at_once(names: Iterable[str]) -> None:
        if "KUBECONFIG" not in os.environ and names:
            command = [str(TESTBED), "up", "--controllers", ",".join(sorted(names))]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"tools/testbed up: {done.stderr or done.stdout}"

    return at_once


@pytest.fixture(scope="module")
def image(cluster: Cluster) -> str:
    """The image of this checkout, on every node."""
    return provide_image(cluster)


@pytest.fixture(scope="module")
def release(cluster: Cluster, image: str) -> Iterator[Release]:
    """The chart with its defaults; one for the tests of a module."""
    with installed(cluster, image) as release:
        release.wait_until_ready()
        yield release


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """A namespace of the test's own, with the training program; deleted afterwards."""
    with nodes.all_uncordoned(cluster), made(titled(cluster, request.node.name)) as mine:
        yield mine


@pytest.fixture
def controller(namespace: Namespace, tmp_path: Path) -> Iterator[None]:
    """The controller, for this namespace alone; what it said is shown where the test fails."""
    with running(namespace, tmp_path / "controller.log") as program:
        yield
        print(program.log)


@pytest.fixture(scope="module")
def agents(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, real_agents.Agent]]:
    """The real agents of all nodes. Two that watch one node contradict each other: there must be no release."""
    _prepare_for_agents(cluster)
    with real_agents.running(cluster, tmp_path_factory.mktemp("agents")) as started:
        yield started


@pytest.fixture(scope="module")
def reading_agents(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, real_agents.Agent]]:
    """As the chart runs them: they read the logs of pods."""
    _prepare_for_agents(cluster)
    with real_agents.running(
        cluster,
        tmp_path_factory.mktemp("agents"),
        for_node=lambda node: ([f"--pod-logs={nodes.pod_logs(cluster, node)}"], {}),
    ) as started:
        yield started


def _prepare_for_agents(cluster: Cluster) -> None:
    release = cluster.get("daemonsets", "--all-namespaces", f"--selector={RELEASE}")
    assert not release, "uninstall the release of kcover-ebpf first: helm uninstall"
    cluster.ctl("apply", f"--filename={ROOT / 'charts/kcover-ebpf/crds'}")


@pytest.fixture(scope="module")
def restart_in_place(cluster: Cluster) -> Iterator[bool]:
    """The admission policies of the chart about restarts, without the rest of it.

    False where the cluster is too old for it.
    """
    if not cluster.arms_pods:
        yield False
        return
    helm = shutil.which("helm") or cluster.helm
    command = [helm, "template", "rule", str(ROOT / "charts/kcover-ebpf")]
    command += [
        "--set=admission.restartInPlace=true,admission.avoidNodes=true",
        "--kube-version=1.36.0",
        *(f"--show-only={rule}" for rule in RULES),
    ]
    policy = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    cluster.ctl("apply", "--filename=-", stdin=policy)
    try:
        _wait_for_rule(cluster)
        yield True
    finally:
        cluster.ctl("delete", "--filename=-", stdin=policy)


def _wait_for_rule(cluster: Cluster) -> None:
    """A policy is in force a moment after it was made."""
    container = {"name": "main", "image": "none"}
    labels = {"kcover.io/cascading-recovery": "true"}
    spec = {"restartPolicy": "Never", "containers": [container]}
    metadata = {"name": "asks", "labels": labels}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    command = ["create", "--dry-run=server", "--filename=-", "--output=json"]
    deadline = time.monotonic() + 30
    while "RestartAllContainers" not in cluster.ctl(*command, stdin=json.dumps(pod)):
        if time.monotonic() > deadline:
            raise ClusterError("pods do not get the rule RestartAllContainers")
        time.sleep(0.5)
