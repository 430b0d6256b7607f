"""Real agents, one for each node, over a training that spans both: what they report and obey.

They run on this host, with the API server behind a relay that can be cut. The job is armed in one test only, so
that a controller that may be there leaves it alone.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from kcover_ebpf.agent.containers import Containers, is_stopped, processes
from kcover_ebpf.api.job_kinds import ARMING_LABEL
from kcover_ebpf.api.pods import Pod, pod_of
from kcover_ebpf.api.rfc3339 import from_text
from kcover_ebpf.archive.incident_archive import unpacked
from kcover_ebpf.output.archives import read_files
from testbed.driver import agents
from testbed.driver.agents import Agent
from testbed.driver.cluster import JOBS, ROOT, TRAIN, Cluster, Namespace, home, until
from testbed.driver.orders import answers
from testbed.driver.restarts import incidents, moment, policy, running, wait_for_phase, ways
from tests.cluster.relay import Relay

pytestmark = [pytest.mark.needs("root", "bpf"), pytest.mark.timeout(900, func_only=True)]

SELECTOR = "training.kubeflow.org/job-name=demo"


@dataclass
class WatchedJob:
    """A job of four ranks on two nodes, under the eyes of two agents."""

    namespace: Namespace
    relay: Relay
    agents: dict[str, Agent]

    def pods(self) -> list[Pod]:
        return [pod_of(pod) for pod in self.namespace.pods(SELECTOR)]

    def pids(self, pod: Pod) -> set[int]:
        return processes(Containers().of_work(pod))

    def specs(self) -> dict[str, dict[str, Any]]:
        """The reports, by node."""
        found = self.namespace.items("faultreports")
        return {entry["spec"]["node"]: entry["spec"] for entry in found if "job" in entry["spec"]}

    def verdict(self, node: str) -> dict[str, Any]:
        found: dict[str, Any] = self.specs().get(node, {}).get("verdict", {})
        return found

    def wait_for_training(self) -> None:
        until(
            lambda: all(self.verdict(node).get("cause") == "training" for node in self.agents),
            "both nodes say that the job trains",
            300,
        )

    def acks(self, order: str) -> dict[str, str]:
        cluster = self.namespace.cluster
        given = answers(cluster, home(cluster), self.specs().values())
        return {node: said[order] for node, said in given.items() if order in said}

    def order(self, incident: str, number: str, verb: str, seconds: float) -> None:
        now = datetime.now(UTC)
        body = {
            "status": {
                "phase": "ShuttingDown",
                "order": {
                    "id": number,
                    "verb": verb,
                    "selector": {"training.kubeflow.org/job-name": "demo"},
                    "createdBefore": (now + timedelta(seconds=1)).isoformat(),
                    "expires": (now + timedelta(seconds=seconds)).isoformat(),
                },
            }
        }
        patch = yaml.safe_dump(body)
        self.namespace.ctl(
            "patch",
            f"incident/{incident}",
            "--subresource=status",
            "--type=merge",
            f"--patch={patch}",
        )

    def incident(self, name: str) -> None:
        job = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "demo", "uid": "u"}
        made = {
            "apiVersion": "kcover.io/v1alpha1",
            "kind": "Incident",
            "metadata": {"name": name},
            "spec": {"job": job},
        }
        self.namespace.apply(yaml.safe_dump(made))


@pytest.fixture(scope="module")
def watched(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedJob]:
    folder = tmp_path_factory.mktemp("agents")
    cluster.ctl("apply", f"--filename={ROOT / 'charts/kcover-ebpf/crds'}")
    relay = Relay(cluster.kubeconfig, folder)
    name = f"agents-{os.getpid()}"
    cluster.ctl("create", "namespace", name)
    namespace = Namespace(cluster, name)
    try:
        namespace.ctl("create", "configmap", "train", f"--from-file={TRAIN}")
        manifest = (JOBS / "pytorchjob.yaml").read_text()
        namespace.apply(manifest.replace("kcover.io/cascading-recovery", "example.com/label"))
        with agents.running(cluster, folder, relay.kubeconfig) as started:
            namespace.wait_for_steps(SELECTOR, 4, 5, 300)
            yield WatchedJob(namespace, relay, started)
    finally:
        relay.cut()
        cluster.ctl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def victim(watched: WatchedJob) -> Iterator[tuple[Pod, int]]:
    """A worker's pod and the pid of its rank, which is let go afterwards."""
    watched.wait_for_training()
    pod = next(other_pod for other_pod in watched.pods() if "worker" in other_pod.name)
    pid = min(watched.pids(pod))
    yield pod, pid
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def test_a_stopped_rank_is_named_and_its_recovery_reported(
    watched: WatchedJob, victim: tuple[Pod, int]
) -> None:
    pod, pid = victim
    os.kill(pid, signal.SIGSTOP)
    verdict = until(
        lambda: (said := watched.verdict(pod.node)).get("verdict") == "HUNG" and said, "HUNG"
    )
    culprit = verdict["culprit"]
    assert verdict["cause"] == "stopped"
    assert (culprit["pod"], culprit["podUID"], culprit["pid"]) == (pod.name, pod.uid, pid)
    index = int(pod.labels["training.kubeflow.org/replica-index"])
    assert culprit["rank"] == index + 1
    ranks = {rank["pid"]: rank for rank in watched.specs()[pod.node]["ranks"]}
    assert ranks[pid]["state"] == "stopped"
    os.kill(pid, signal.SIGCONT)
    watched.wait_for_training()


def test_an_agent_that_was_killed_continues(watched: WatchedJob, victim: tuple[Pod, int]) -> None:
    pod, pid = victim
    agent = watched.agents[pod.node]
    before = watched.specs()[pod.node]["sequence"]
    agent.kill()
    os.kill(pid, signal.SIGSTOP)
    agent.start()
    until(lambda: watched.verdict(pod.node).get("verdict") == "HUNG", "HUNG")
    assert watched.specs()[pod.node]["sequence"] > before


def test_a_minute_without_an_api_server_delays_and_doubles_nothing(
    watched: WatchedJob, victim: tuple[Pod, int], tmp_path: Path
) -> None:
    pod, pid = victim
    namespace = watched.namespace
    policy(namespace, ways=["Replace"])
    namespace.ctl("label", "pytorchjob", "demo", f"{ARMING_LABEL}=true")
    old = {other_pod.uid for other_pod in watched.pods()}
    with running(namespace, tmp_path / "controller.log", watched.relay.kubeconfig) as program:
        until(lambda: "leading" in program.log, "the controller leads")
        watched.relay.cut()
        cut_s = time.time()
        os.kill(pid, signal.SIGSTOP)
        time.sleep(60)
        assert watched.verdict(pod.node)["verdict"] == "WORKING", "no agent could detect it"
        assert incidents(namespace) == []
        watched.relay.mend()
        incident = wait_for_phase(namespace, ("Recovered", "Failed", "Refused", "Observed"))
    status = incident["status"]
    assert status["phase"] == "Recovered", status["timeline"]
    assert (status["verdict"], status["culprit"]["pod"]) == ("HUNG", pod.name)
    # what was seen during the outage is reported with its age
    assert abs(from_text(status["since"]) - cut_s) < 10
    assert moment(incident, "Decided") >= cut_s + 60
    assert ways(incident) == ["Replace"]
    assert len(incidents(namespace)) == 1
    assert not old & {other_pod.uid for other_pod in watched.pods()}
    namespace.ctl("label", "pytorchjob", "demo", f"{ARMING_LABEL}-")


def test_a_stop_and_a_resume_are_obeyed_on_two_nodes(watched: WatchedJob) -> None:
    watched.wait_for_training()
    watched.incident("by-hand")
    pids = {pid for pod in watched.pods() for pid in watched.pids(pod)}
    watched.order("by-hand", "1", "Stop", 60)
    until(lambda: watched.acks("1") == dict.fromkeys(watched.agents, "Done"), "both acknowledge")
    assert all(is_stopped(pid) for pid in pids)
    # what we stopped ourselves is no fault
    assert {watched.verdict(node)["verdict"] for node in watched.agents} == {"WORKING"}
    watched.order("by-hand", "2", "Resume", 60)
    until(lambda: watched.acks("2") == dict.fromkeys(watched.agents, "Done"), "both acknowledge")
    assert not any(is_stopped(pid) for pid in pids)
    watched.order("by-hand", "3", "Stop", 15)
    until(lambda: watched.acks("3") == dict.fromkeys(watched.agents, "Done"), "both acknowledge")
    for agent in watched.agents.values():
        agent.kill()
        agent.start()
    until(lambda: not any(is_stopped(pid) for pid in pids), "the stop ends by itself")
    assert {pid for pod in watched.pods() for pid in watched.pids(pod)} == pids


def test_kill_ends_the_whole_gang_and_reports_go_with_the_pods(watched: WatchedJob) -> None:
    watched.wait_for_training()
    watched.incident("the-end")
    pods = watched.pods()
    pids = {pid for pod in pods for pid in watched.pids(pod)}
    watched.order("the-end", "4", "Stop", 60)
    until(lambda: watched.acks("4") == dict.fromkeys(watched.agents, "Done"), "both acknowledge")
    watched.order("the-end", "5", "Kill", 60)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "all are gone")
    watched.namespace.ctl("delete", "pytorchjob", "demo", "--wait=false")
    until(lambda: not watched.specs(), "the reports are gone")
    bundles = [
        path for agent in watched.agents.values() for path in agent.folder.glob("*/bundles/*")
    ]
    parts = [unpacked(read_files(path), str(path)).parts[0] for path in bundles]
    assert {part.node for part in parts} == set(watched.agents)
    assert all(part.report is not None and part.threads and part.stacks for part in parts)
