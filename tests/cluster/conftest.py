"""The cluster that the tests use: that of $KUBECONFIG, or else the test bed of this checkout."""

import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import ROOT, TRAIN, Cluster, Namespace

TESTBED = ROOT / "tools/testbed"


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """A running cluster with the job controllers that `tools/testbed up` installs."""
    if chosen := os.environ.get("KUBECONFIG"):
        kubectl = ROOT / ".testbed/bin/kubectl"
        found = str(kubectl) if kubectl.exists() else shutil.which("kubectl")
        assert found is not None, "KUBECONFIG is set, but there is no kubectl on PATH"
        return Cluster(Path(chosen).resolve(), Path(found))
    done = subprocess.run([TESTBED, "up"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"tools/testbed up: {done.stderr or done.stdout}"
    return Cluster(ROOT / ".testbed/kubeconfig", ROOT / ".testbed/bin/kubectl")


@pytest.fixture(scope="session")
def install(cluster: Cluster) -> Callable[[str], None]:
    """Installs a job controller of the test bed; a cluster of $KUBECONFIG is taken as it is."""

    def once(name: str) -> None:
        if "KUBECONFIG" not in os.environ:
            command = [str(TESTBED), "up", "--controllers", name]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"tools/testbed up: {done.stderr or done.stdout}"

    return once


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """A namespace of the test's own, with the training program; deleted afterwards."""
    readable = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:40].strip("-")
    name = f"{readable}-{uuid.uuid4().hex[:6]}"
    cluster.ctl("create", "namespace", name)
    try:
        mine = Namespace(cluster, name)
        mine.ctl("create", "configmap", "train", f"--from-file={TRAIN}")
        yield mine
    finally:
        # Not waited for: the ranks have 30 s to end, and nobody else looks into this namespace.
        cluster.ctl("delete", "namespace", name, "--wait=false")
