"""Tenants against what reads them: each of these once cost the agent its interpreter lock, or all of its memory."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcover_ebpf.errors import ApiError, NotFound
from kcover_ebpf.kube.client import ApiClient, connect
from testbed.attacks.hostile import JOB_NAME, huge_policy, job, pod
from testbed.attacks.stage import JOB, OVER, Stage, Tenant, Victim, faults_of
from testbed.driver import nodes
from testbed.driver.cluster import Cluster, made, titled, until
from testbed.driver.fake_agent import processes
from testbed.driver.installed import NAMESPACE
from testbed.driver.kinds import start
from testbed.driver.orders import GROUP, ByHand, reports_of, without_controllers
from testbed.driver.restarts import hang, policy, stopped
from tests.attack import programs
from tests.attack.conftest import Peace, full_disks

pytestmark = pytest.mark.timeout(900, func_only=True)
CONTROLLERS = "--selector=app.kubernetes.io/component=controller"


def run(tenant: Tenant, name: str, program: str, ready: str, seconds: float = 240) -> None:
    """Start a job of one pod, and wait for a line of its log."""
    tenant.create(job(name, program, armed=False))
    (first,) = tenant.namespace.wait_for_pods(f"{JOB_NAME}={name}", 1)
    tenant.namespace.wait_for_log(first, ready, seconds)


def test_n1_a_log_of_blanks_and_tracebacks(peace: Peace, tenant: Tenant) -> None:
    run(tenant, "blanks", programs.BLANKS, "^written")
    peace.assert_kept(20)
    peace.assert_recovers()


def test_n2_a_flight_record_of_brackets(peace: Peace, tenant: Tenant) -> None:
    run(tenant, "records", programs.ring(programs.RECORDER_BOMB), "^asked")
    peace.assert_kept(20)
    peace.assert_recovers()


def test_n4_ranks_with_long_paths_of_descriptors(peace: Peace, tenant: Tenant) -> None:
    run(tenant, "links", programs.ring(programs.LONG_LINKS), "^silent")
    peace.assert_kept(20)
    peace.assert_recovers()


def test_n5_ranks_with_mappings_without_end(peace: Peace, tenant: Tenant) -> None:
    run(tenant, "maps", programs.ring(programs.MANY_MAPS), "^silent")
    peace.assert_kept(20)
    peace.assert_recovers()


def test_n8_a_pipe_in_the_place_of_a_log(
    peace: Peace, stage: Stage, tenant: Tenant, cluster: Cluster
) -> None:
    """A pod that may write to /var/log/pods; its evidence is asked for, then it is stopped and let go."""
    space = tenant.namespace
    pods = tenant.started_on("node1", "piped")
    until(lambda: reports_of(space), "the agent reports on the job")
    for body in pods:
        meta = body["metadata"]
        log = f"/var/log/pods/{space.name}_{meta['name']}_{meta['uid']}/main/0.log"
        nodes.inside(cluster, "node1", "sh", "-c", f"mkfifo {log}.new && mv {log}.new {log}")
    with without_controllers(stage.release, space):
        by_hand = ByHand(stage.controller(), space, "piped", {JOB_NAME: "piped"})
        by_hand.order("snapshot", "Snapshot", "Observed")
        by_hand.order("stop", "Stop")
        assert len(stopped(pods)) == len(pods)
        by_hand.order("resume", "Resume")
        assert not stopped(pods)
    peace.assert_recovers()


def test_n11_thousands_of_policies(peace: Peace, tenant: Tenant, cluster: Cluster) -> None:
    """Each of a size that is permitted: short texts take most memory."""
    names = {f"k{number}": str(number) for number in range(32)}
    expressions = [
        {
            "key": f"e{number}",
            "operator": "In",
            "values": [f"{value}{number}" for value in range(24)],
        }
        for number in range(32)
    ]
    path = f"{GROUP}/{tenant.namespace.name}/faultpolicies"

    def write(client: ApiClient, part: int) -> None:
        for number in range(part, 2000, 4):
            body = huge_policy(f"p{number}")
            body["spec"]["selector"] = {"matchLabels": names, "matchExpressions": expressions}
            client.create(path, body)

    writers = [
        threading.Thread(target=write, args=(connect(str(cluster.kubeconfig)), part))
        for part in range(4)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(tenant.namespace.items("faultpolicies")) == 2000
    peace.assert_kept(10)
    peace.assert_recovers()


def test_n12_pending_pods_with_megabytes_of_labels(
    peace: Peace, tenant: Tenant, cluster: Cluster
) -> None:
    """Two million labels, 8,000 of a pod: of 40,000 the API server takes a minute for one pod on busy cores."""
    client = connect(str(cluster.kubeconfig)).hurried(60.0)
    path = f"/api/v1/namespaces/{tenant.namespace.name}/pods"
    names = [f"labels-{index}" for index in range(300)]
    try:
        for name in names:
            labels = {f"{number:06x}": "" for number in range(8_000)}
            body = pod(name, labels={**labels, JOB_NAME: "labels"})
            body["spec"]["nodeSelector"] = {"example.org/none": "such"}
            client.create(path, body)
        peace.assert_kept(10)
        peace.assert_recovers()
    finally:
        # the server gives up on all of them in one request after a minute
        for name in names:
            with contextlib.suppress(NotFound):
                client.delete(f"{path}/{name}")


def test_n14_a_pod_is_not_deleted_by_force_while_its_rank_runs(
    peace: Peace, stage: Stage, cluster: Cluster
) -> None:
    """The agents' disks are full, and the policy asks for it: two ranks would write one checkpoint."""
    with made(titled(cluster, "forced")) as space:
        policy(space, ways=["Replace"], forceDelete=True)
        start(space, JOB)
        forced = Victim(space)
        forced.wait_until_learned()
        old = {body["metadata"]["uid"] for body in forced.pods()}
        with full_disks(stage):
            hang(forced.pods()[-1])

            def is_over() -> bool:
                listed = {body["metadata"]["uid"] for body in forced.pods()}
                for uid in old - listed:
                    assert not processes(uid), "its pod is gone, and it runs"
                return any(entry["status"].get("phase") in OVER for entry in faults_of(space))

            until(is_over, "the job is replaced", 180)
            (incident,) = faults_of(space)
            assert incident["status"]["phase"] == "Recovered", incident["status"]["timeline"]
            peace.assert_recovers()


def test_n16_a_policy_that_is_written_without_end(
    peace: Peace, tenant: Tenant, cluster: Cluster
) -> None:
    tenant.create(huge_policy("busy"))
    path, end = f"{GROUP}/{tenant.namespace.name}/faultpolicies/busy", threading.Event()
    written: list[int] = []

    def write(client: ApiClient, part: int) -> None:
        number = 0
        while not end.wait(0.05):
            number += 1
            notes = {f"example.org/note-{part}": str(number)}
            with contextlib.suppress(ApiError):
                client.merge_patch(path, {"metadata": {"annotations": notes}})
                written.append(part)

    writers = [
        threading.Thread(target=write, args=(connect(str(cluster.kubeconfig)), part))
        for part in range(3)
    ]
    for writer in writers:
        writer.start()
    began_s = time.monotonic()
    try:
        peace.assert_kept(20)
        peace.assert_recovers()
    finally:
        end.set()
        for writer in writers:
            writer.join()
    print(f"{len(written) / (time.monotonic() - began_s):.0f} writes a second")
    assert written


def test_n21_an_agent_that_is_killed_while_ranks_are_stopped(
    peace: Peace, stage: Stage, tenant: Tenant
) -> None:
    space = tenant.namespace
    pods = tenant.started_on("node1", "halted")
    until(lambda: reports_of(space), "the agent reports on the job")
    name = stage.agent_pod("node1")
    with without_controllers(stage.release, space):
        ByHand(stage.controller(), space, "halted", {JOB_NAME: "halted"}).order("stop", "Stop")
        assert len(stopped(pods)) == len(pods)
        began_s = time.monotonic()
        os.kill(agent_of(stage, name), signal.SIGKILL)
        until(lambda: not stopped(pods), "the ranks run again", 10)
        took_s = time.monotonic() - began_s
    print(f"ranks ran again {took_s:.2f} s after their agent was killed")
    # its restart was ours, and the next attack counts from none
    stage.release.ctl("delete", "pod", name, "--wait=true")
    until(lambda: stage.agent_pod("node1") != name, "another agent")
    stage.release.wait_until_ready()
    peace.assert_recovers()


def agent_of(stage: Stage, name: str) -> int:
    """The process of an agent's pod that started the others."""
    (body,) = stage.cluster.get("pods", name, f"--namespace={NAMESPACE}")
    ours = processes(body["metadata"]["uid"])
    parents = {
        pid: int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        for pid in ours
    }
    (first,) = [pid for pid, parent in parents.items() if parent not in ours]
    return first


@contextlib.contextmanager
def connections_cut(stage: Stage) -> Iterator[None]:
    """What the API server sends to the controllers over the connections they have now is dropped; new ones work."""
    cut: list[tuple[int, str]] = []
    try:
        for body in stage.cluster.get("pods", f"--namespace={NAMESPACE}", CONTROLLERS):
            (pid, *_) = processes(body["metadata"]["uid"])
            for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
                _, local, remote, state = line.split()[:4]
                if state == "01" and int(remote.partition(":")[2], 16) in (443, 6443):
                    port = str(int(local.partition(":")[2], 16))
                    rule(pid, "-A", port)
                    cut.append((pid, port))
        assert cut
        yield
    finally:
        for pid, port in cut:
            rule(pid, "-D", port)


def rule(pid: int, what: str, port: str) -> None:
    """Drop what comes to a port of a process's network, or no longer."""
    command = ["nsenter", f"--target={pid}", "--net", "iptables", what, "INPUT"]
    subprocess.run([*command, "-p", "tcp", "--dport", port, "-j", "DROP"], check=True)


@pytest.mark.needs("nftables")
def test_n22_watches_that_are_dead_and_open(peace: Peace, stage: Stage) -> None:
    """Nothing resets them: the kernel notices within 5 s, before the victim is recovered."""
    with connections_cut(stage):
        peace.assert_recovers()


def test_n29_a_pod_with_sixty_thousand_sockets(peace: Peace, tenant: Tenant) -> None:
    tenant.create(job("sockets", programs.SOCKETS, armed=False))
    (first,) = tenant.namespace.wait_for_pods(f"{JOB_NAME}=sockets", 1)
    tenant.namespace.wait(f"pod/{first}", "condition=Ready")
    until(
        lambda: tenant.namespace.ctl("logs", first).count("bound") == 4,
        "its sockets are bound",
        240,
    )
    print(tenant.namespace.ctl("logs", first))
    peace.assert_kept(20)
    peace.assert_recovers()
