"""A gang on four nodes whose ranks wait for their devices: what is concluded from four agents that each see one rank.

The ranks spin in a stub of libcuda over memory that they share, so there is no traffic between them; they are
connected to rank 0 only. Each agent has its relay to the API server.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from array import array
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from testbed import skips
from testbed.driver.agents import Agent
from testbed.driver.cluster import JOBS, ROOT, Cluster, Namespace, home, until
from testbed.driver.kinds import KINDS, replaced, sized, wait_until_learned
from testbed.driver.restarts import incidents, moment, policy, running, wait_for_phase, ways
from testbed.driver.victims import JOB, incident_verdict, ranks
from testbed.workloads import gpu_styles
from tests.cluster.relay import Relay

pytestmark = [
    pytest.mark.needs("root", "bpf", "gcc"),
    pytest.mark.timeout(900, func_only=True),
    pytest.mark.usefixtures("restart_in_place"),
]
NODES = 4
OVER = ("Recovered", "Failed", "Refused", "Observed")
PROGRAM = "testbed/faults/far_rank.py"
INDEX = "batch.kubernetes.io/job-completion-index"
APART = f"""      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
          - {{topologyKey: kubernetes.io/hostname, labelSelector: {{matchLabels: {{{JOB.replace("=", ": ")}}}}}}}
"""


@dataclass(frozen=True)
class FarJob:
    """One rank a node; what they share is in `folder`."""

    namespace: Namespace
    folder: Path
    agents: dict[str, Agent]
    relays: dict[str, Relay]

    def pod(self, rank: int) -> dict[str, Any]:
        (found,) = self.namespace.pods(f"{JOB},{INDEX}={rank}")
        return found

    def node(self, rank: int) -> str:
        name: str = self.pod(rank)["spec"]["nodeName"]
        return name

    def stop(self, rank: int) -> None:
        """SIGSTOP."""
        self._forget_first_steps()
        pids = ranks(self.namespace, program=PROGRAM)
        os.kill(pids[self.pod(rank)["metadata"]["name"]], signal.SIGSTOP)

    def harm(self, rank: int, how: str) -> None:
        """Have it do so instead of its next launch."""
        self._forget_first_steps()
        new = self.folder / "fault.new"
        new.write_text(f"{how} {rank}")
        new.rename(self.folder / "fault")

    def _forget_first_steps(self) -> None:
        for path in self.folder.glob("first-*"):
            path.unlink()

    def steps(self) -> int:
        """So many steps have all ranks launched."""
        words = array("I", (self.folder / "memory").read_bytes())
        return min(words[:NODES])

    def lives(self) -> dict[str, int]:
        """Restarts of each pod, by uid."""
        return {
            pod["metadata"]["uid"]: sum(
                container_status["restartCount"]
                for container_status in pod["status"].get("containerStatuses", ())
            )
            for pod in self.namespace.pods(JOB)
        }

    def assert_recovered(self, incident: dict[str, Any], rank: int) -> None:
        """The whole job trains again, and it was reported."""
        status = incident["status"]
        assert status["phase"] == "Recovered", status["timeline"]
        firsts = [float(path.read_text()) for path in self.folder.glob("first-*")]
        assert len(firsts) == NODES
        after_s = moment(incident, "Recovered") - max(firsts)
        print(f"rank {rank}: reported as recovered {after_s:.1f} s after the last first step")
        steps = self.steps()
        until(lambda: self.steps() > steps + 5, "all ranks train")


@pytest.fixture(scope="module")
def four(cluster: Cluster) -> Cluster:
    """The cluster with four nodes: the test bed gets what is missing."""
    cluster.grow(NODES)
    if len(cluster.get("nodes")) > NODES:
        skips.skip("testbed", f"use a test bed of {NODES} nodes")
    cluster.ctl("apply", f"--filename={ROOT / 'charts/kcover-ebpf/crds'}")
    return cluster


@contextmanager
def watched(
    cluster: Cluster, folder: Path, late_s: float
) -> Iterator[tuple[dict[str, Agent], dict[str, Relay]]]:
    """An agent for each node, behind a relay."""
    agents, relays = dict[str, Agent](), dict[str, Relay]()
    with ExitStack() as stack:
        for node in cluster.get("nodes"):
            name = node["metadata"]["name"]
            mine = folder / f"behind-{name}"
            mine.mkdir()
            relays[name] = stack.enter_context(Relay(cluster.kubeconfig, mine, late_s))
            agents[name] = Agent(name, mine, relays[name].kubeconfig, home(cluster))
            agents[name].start()
            stack.callback(agents[name].kill)
        yield agents, relays


def shared(folder: Path) -> Path:
    """What all ranks see: the program, the stub's library, memory."""
    found = folder / "shared"
    for text in (PROGRAM, "testbed/driver/fake_ras_server.py"):
        (found / text).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / text, found / text)
    (found / "memory").write_bytes(bytes(4096))
    gpu_styles.build(gpu_styles.CUDA, found)
    return found


def manifest(folder: Path, *, ras: bool) -> str:
    """The example Job with a rank on each node."""
    rank = f"{{name: RANK, valueFrom: {{fieldRef: {{fieldPath: \"metadata.annotations['{INDEX}']\"}}}}}}"
    changes = {
        "env: [": f'env: [{rank}, {{name: RAS, value: "{int(ras)}"}}, ',
        "MASTER_ADDR": "MASTER",
        "/train/train.py]": f"{folder / PROGRAM}, {folder}]",
        "mountPath: /train": f"mountPath: {folder}",
        "configMap: {name: train}": f"hostPath: {{path: {folder}}}",
        "      restartPolicy: Never\n": f"      restartPolicy: Never\n{APART}",
    }
    return replaced(sized((JOBS / "job.yaml").read_text(), NODES), changes)


@contextmanager
def job(
    cluster: Cluster,
    namespace: Namespace,
    folder: Path,
    *,
    ras: bool = True,
    late_s: float = 0.0,
    thresholds: dict[str, str] | None = None,
) -> Iterator[FarJob]:
    """A gang that trains under four agents and a controller, whose agents know its cadence."""
    ours = shared(folder)
    policy(namespace, thresholds=thresholds or {})
    with (
        watched(cluster, folder, late_s) as (agents, relays),
        running(namespace, folder / "controller.log"),
    ):
        namespace.apply(manifest(ours, ras=ras))
        far = FarJob(namespace, ours, agents, relays)
        until(lambda: far.steps() > 3, "all ranks train", 300)
        wait_until_learned(namespace, KINDS["job"], 300)
        steps = far.steps()
        until(lambda: far.steps() > steps + 100, "their cadence was learned", 300)
        assert incidents(namespace) == []
        yield far


@pytest.mark.parametrize(
    ("how", "patience", "causes"),
    [
        # it waits for its device, as an evaluation does that the others have no part in
        pytest.param("skip", {"quiet_cap": "60s"}, {"not_in_collective"}, id="skip"),
        # until then it may resemble a wait of the healthy job
        pytest.param(
            *("lock", {"storage_patience": "60s"}, {"not_in_collective", "blocked_lock"}), id="lock"
        ),
    ],
)
def test_ras_names_the_rank_that_never_launched(
    four: Cluster,
    namespace: Namespace,
    tmp_path: Path,
    how: str,
    patience: dict[str, str],
    causes: set[str],
) -> None:
    with job(four, namespace, tmp_path, thresholds=patience) as far:
        node, pod = far.node(2), far.pod(2)["metadata"]["name"]
        far.harm(2, how)
        incident = wait_for_phase(namespace, OVER, timeout_s=300)
        far.assert_recovered(incident, 2)
    status = incident["status"]
    assert status["verdict"] == "HUNG"
    assert status["cause"] in causes
    culprit = status["culprit"]
    assert (culprit["rank"], culprit["pod"], culprit["node"]) == (2, pod, node)


def test_without_ras_no_rank_is_named_or_touched(
    four: Cluster, namespace: Namespace, tmp_path: Path
) -> None:
    with job(four, namespace, tmp_path, ras=False) as far:
        lives = far.lives()
        far.harm(2, "skip")
        until(lambda: incident_verdict(namespace), "a verdict")
        time.sleep(30)
        (incident,) = incidents(namespace)
        status = incident["status"]
        assert (status["verdict"], status["cause"]) == ("HUNG", "device_wait")
        assert not {"rank", "pod", "node"} & status.get("culprit", {}).keys()
        assert ways(incident) == []
        assert far.lives() == lives


@pytest.mark.parametrize("rank", [0, 3])
def test_reports_that_come_up_to_two_seconds_late_name_the_stopped_rank(
    four: Cluster, namespace: Namespace, tmp_path: Path, rank: int
) -> None:
    with job(four, namespace, tmp_path, late_s=2.0) as far:
        node, pod = far.node(rank), far.pod(rank)["metadata"]["name"]
        far.stop(rank)
        incident = wait_for_phase(namespace, OVER, timeout_s=300)
        far.assert_recovered(incident, rank)
        assert len(incidents(namespace)) == 1
    status = incident["status"]
    assert (status["verdict"], status["cause"]) == ("HUNG", "stopped")
    culprit = status["culprit"]
    assert (culprit["rank"], culprit["pod"], culprit["node"]) == (rank, pod, node)


def test_a_node_without_api_server_that_trains_on_is_left_alone(
    four: Cluster, namespace: Namespace, tmp_path: Path
) -> None:
    with job(four, namespace, tmp_path) as far:
        lives, steps = far.lives(), far.steps()
        relay = far.relays[far.node(3)]
        relay.cut()
        time.sleep(120)
        assert far.steps() > steps + 50
        assert incidents(namespace) == []
        relay.mend()
        wait_until_learned(namespace, KINDS["job"])
        assert incidents(namespace) == []
        assert far.lives() == lives


def test_a_stopped_rank_whose_agent_is_dead_does_not_block_its_gang_for_ever(
    four: Cluster, namespace: Namespace, tmp_path: Path
) -> None:
    with job(four, namespace, tmp_path, ras=False, thresholds={"quiet_cap": "60s"}) as far:
        node, lives = far.node(0), far.lives()
        far.agents[node].kill()
        far.stop(0)
        seen = until(lambda: incident_verdict(namespace), "a verdict", 200)
        assert any(f"node {node} did not report" in item for item in seen["unobserved"]), seen
        incident = wait_for_phase(namespace, (*OVER, "Recovering"), timeout_s=300)
        assert ways(incident)
        assert not {"rank", "pod", "node"} & incident["status"].get("culprit", {}).keys()
        until(lambda: not far.lives().items() & lives.items(), "every rank was restarted")
