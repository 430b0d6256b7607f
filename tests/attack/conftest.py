"""The chart as its users install it, a victim that trains, and for each test a tenant with its own namespace."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from testbed.attacks import meters
from testbed.attacks.stage import JOB, Condition, Stage, Tenant, Victim, arrive
from testbed.driver import kinds, nodes
from testbed.driver.cluster import Cluster, made, titled
from testbed.driver.installed import installed, provide_image
from testbed.driver.restarts import policy
from tests.attack import record
from tests.cluster.conftest import cluster, removed_afterwards

__all__ = ["cluster", "removed_afterwards"]
STATE = "/var/lib/kcover-ebpf"
NODES = ("node1", "node2")
VALUES = (
    # the victim hangs in every test
    "controller.tenants.maxRestarts=1000",
    "controller.tenants.minBackoffSeconds=0",
)


@pytest.fixture(scope="session")
def stage(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One release and one victim for all attacks; each agent's state is on its own small disk."""
    image = provide_image(cluster)
    names = [node["metadata"]["name"] for node in cluster.get("nodes")]
    with ExitStack() as stack:
        for name in names:
            nodes.inside(cluster, name, "mkdir", "-p", STATE)
            nodes.inside(cluster, name, "mount", "-t", "tmpfs", "-o", "size=8m", "state", STATE)
            stack.callback(nodes.inside, cluster, name, "umount", "--lazy", STATE)
        release = stack.enter_context(installed(cluster, image, *VALUES))
        release.wait_until_ready()
        space = stack.enter_context(made(titled(cluster, "victim")))
        policy(space)
        kinds.start(space, JOB)
        yield Stage(release, Victim(space), tmp_path_factory.mktemp("stage"))


@pytest.fixture
def tenant(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Tenant]:
    """Who attacks."""
    with made(titled(cluster, request.node.name)) as mine:
        yield arrive(mine)


class Peace:
    """The victim as it was before the attack."""

    def __init__(self, stage: Stage, attack: str) -> None:
        self._stage, self._attack = stage, attack
        meters.forget_peaks(stage.cluster)
        stage.victim.wait_until_learned()
        self._before: Condition = stage.victim.condition()
        self._lags = meters.lag_counts(stage.cluster)

    def assert_kept(self, seconds: float = 0.0) -> None:
        """The victim is as it was, and stays so for a while."""
        end = time.monotonic() + seconds
        while True:
            assert self._stage.victim.condition() == self._before
            if time.monotonic() > end:
                return
            time.sleep(1.0)

    def assert_recovers(self) -> None:
        """It was left alone; its own hang is mended while the attack lasts; our pods are in bounds."""
        self.assert_kept()
        recovery = self._stage.victim.survives_a_hang()
        print(f"the victim's own hang: {recovery}")
        assert self._stage.victim.condition().shut == self._before.shut
        uses = self._stage.check_bounded()
        lag = meters.lag_between(self._lags, meters.lag_counts(self._stage.cluster))
        print(f"99% of {lag.passes} passes were over within {lag.p99_s} s of when they were due")
        record.write(self._attack, recovery, uses, lag)


@pytest.fixture
def peace(stage: Stage, tenant: Tenant, request: pytest.FixtureRequest) -> Iterator[Peace]:
    """The victim before the attack; nodes that are cordoned afterwards are uncordoned for the next one."""
    with nodes.all_uncordoned(stage.cluster):
        yield Peace(stage, request.node.name)


@contextmanager
def full_disks(stage: Stage) -> Iterator[None]:
    """No room is left where the agents keep their state."""
    file = f"{STATE}/ballast"
    try:
        for node in NODES:
            with suppress(AssertionError):  # it ends with "no space left"
                nodes.inside(stage.cluster, node, "dd", "if=/dev/zero", f"of={file}", "bs=4k")
        yield
    finally:
        for node in NODES:
            nodes.inside(stage.cluster, node, "rm", "-f", file)
