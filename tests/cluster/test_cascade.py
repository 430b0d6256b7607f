"""Restarts by the real controller that are broken off, refused or led astray; test_kinds.py has those that work."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from testbed import skips
from testbed.driver.cluster import ROOT, Cluster, Namespace, until
from testbed.driver.restarts import (
    counters,
    hang,
    incidents,
    policy,
    recover,
    row_of,
    running,
    stopped,
    wait_for_phase,
    ways,
)
from tests.cluster import scenarios_guards as guards
from tests.cluster import scenarios_notified as notified
from tests.cluster.crowd import Book, Crowd, Scenario, asked_for, crowd
from tests.cluster.faked_job import (
    JOB,
    ask_for_recovery,
    break_rank,
    check_acted_once,
    faked,
    started,
    uids,
)
from tests.cluster.relay import Relay

pytestmark = pytest.mark.timeout(600, func_only=True)
OVER = ("Recovered", "Failed", "Refused", "Observed")
BOOK = Book()


@pytest.fixture(scope="module")
def restarts(
    request: pytest.FixtureRequest, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Crowd]:
    """All scenarios that this run asks for, a few at a time."""
    cluster.ctl("apply", f"--filename={ROOT / 'charts/kcover-ebpf/crds'}")
    chosen = {name: (BOOK | guards.BOOK | notified.BOOK)[name] for name in asked_for(request)}
    with crowd(cluster, chosen, tmp_path_factory.mktemp("restarts"), at_once=5) as begun:
        yield begun


@BOOK.scenario(brings_controller=True)
def an_api_server_that_is_away_for_a_minute_delays_and_doubles_nothing(
    namespace: Namespace,
) -> None:
    policy(namespace, ways=["Replace"])
    started(namespace)
    old = uids(namespace)
    with (
        tempfile.TemporaryDirectory() as folder,
        Relay(namespace.cluster.kubeconfig, Path(folder)) as relay,
        running(namespace, Path(folder) / "log", relay.kubeconfig),
        faked(namespace, kubeconfig=relay.kubeconfig) as fake,
    ):
        break_rank(namespace, fake)
        wait_for_phase(namespace, ("ShuttingDown",))
        relay.cut()
        time.sleep(60)
        relay.mend()
        recover(namespace, fake)
    check_acted_once(namespace, old)


def killed_at_every_step(way: str, namespace: Namespace) -> None:
    """Each step is written before it is taken; as soon as it can be read, the controller is killed."""
    if way == "InPlace" and not namespace.cluster.arms_pods:
        skips.skip("restart-in-place", "use Kubernetes 1.36 or newer")
    policy(namespace, ways=[way])
    started(namespace, in_place=way == "InPlace")
    old = uids(namespace)
    seen: list[str] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        running(namespace, Path(folder) / "log") as program,
        faked(namespace) as fake,
    ):
        break_rank(namespace, fake)
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline:
            status = incidents(namespace)[-1].get("status", {}) if incidents(namespace) else {}
            if status.get("phase") in OVER:
                break
            if status.get("phase") == "Recovering":
                fake.fault = None
            step = status.get("action", {}).get("step", status.get("phase"))
            if step and step not in seen:
                seen.append(step)
                program.end(signal.SIGKILL)
                # its lease runs out after a while; that is another test's matter
                program.start(lease=f"after-{step.lower()}")
    assert status.get("phase") == "Recovered", (seen, status)
    assert len(seen) >= 3, f"it was killed at {seen} only"
    check_acted_once(namespace, old, way)
    assert not stopped(namespace.pods(JOB.selector))


BOOK["a_controller_killed_at_every_step_of_replacing"] = Scenario(
    partial(killed_at_every_step, "Replace"), brings_controller=True
)
BOOK["a_controller_killed_at_every_step_in_place"] = Scenario(
    partial(killed_at_every_step, "InPlace"), brings_controller=True
)


@BOOK.scenario(brings_controller=True)
def a_controller_killed_between_decision_and_deletion_is_followed_by_one_that_acts_once(
    namespace: Namespace,
) -> None:
    policy(namespace, ways=["Replace"], approval="Manual")
    started(namespace)
    old = uids(namespace)
    with (
        tempfile.TemporaryDirectory() as folder,
        running(namespace, Path(folder) / "log") as program,
        faked(namespace) as fake,
    ):
        break_rank(namespace, fake)
        name = wait_for_phase(namespace, ("Decided",))["metadata"]["name"]
        program.end(signal.SIGKILL)
        patch = '--patch={"spec":{"approved":true}}'
        namespace.ctl("patch", "incident", name, "--type=merge", patch)
        time.sleep(2)
        assert uids(namespace) == old, "no controller is there to act"
        # the same lease: it has to run out first
        program.start()
        recover(namespace, fake)
    check_acted_once(namespace, old)


@BOOK.scenario(brings_controller=True)
def a_report_that_was_not_renewed_is_not_acted_on(namespace: Namespace) -> None:
    """As of a node that lost its power while it reported a hang, and of a controller that comes later."""
    policy(namespace)
    started(namespace)
    old = uids(namespace)
    with faked(namespace) as fake:
        break_rank(namespace, fake)
        until(
            lambda: any(report.get("suspicious") for report in reports(namespace)),
            "a hang is reported",
        )
    time.sleep(15)
    assert reports(namespace), "they are still there"
    with (
        tempfile.TemporaryDirectory() as folder,
        running(namespace, Path(folder) / "log") as program,
    ):
        until(lambda: "leading" in program.log, "the controller leads")
        time.sleep(10)
        assert [ways(incident) for incident in incidents(namespace)] in ([], [[]])
    assert uids(namespace) == old


def reports(namespace: Namespace) -> list[dict[str, Any]]:
    return [item["spec"] for item in namespace.items("faultreports")]


@BOOK.scenario()
def a_job_whose_incident_is_deleted_under_way_is_let_go(namespace: Namespace) -> None:
    policy(namespace, ways=["Replace"])
    started(namespace)
    with faked(namespace) as fake:
        nodes = {pod["spec"]["nodeName"] for pod in namespace.pods(JOB.selector)}
        fake.deaf |= nodes  # so that the old pods stay for their grace period
        break_rank(namespace, fake)
        wait_for_phase(namespace, ("ShuttingDown",))
        namespace.wait("job/demo", "jsonpath={.spec.suspend}=true", 60)
        fake.silent |= nodes
        namespace.ctl("delete", "incidents,faultreports", "--all")
        namespace.wait("job/demo", "jsonpath={.spec.suspend}=false", 60)


@BOOK.scenario()
def a_node_that_does_not_stop_its_ranks_leads_to_replacing(namespace: Namespace) -> None:
    policy(namespace)
    started(namespace, in_place=True)
    with faked(namespace) as fake:
        pods = namespace.pods(JOB.selector)
        fake.deaf.add(pods[0]["spec"]["nodeName"])
        break_rank(namespace, fake)
        incident = recover(namespace, fake)
    assert ways(incident) == ["Replace"], incident["status"]["timeline"]
    assert not stopped(namespace.pods(JOB.selector))


@BOOK.scenario()
def a_job_is_restarted_in_place_and_the_one_beside_it_is_not(namespace: Namespace) -> None:
    policy(namespace)
    started(namespace, in_place=True, trains=True)
    row = row_of(JOB.api_version, JOB.kind)
    before, old = counters(namespace, row, "demo"), uids(namespace)
    started(namespace, "beside")
    others = uids(namespace, "beside")
    namespace.wait_for_steps(JOB.selector, JOB.pods, 3)
    with faked(namespace) as fake:
        hang(namespace.pods(JOB.selector)[-1])
        break_rank(namespace, fake)
        recover(namespace, fake)
    check_acted_once(namespace, old, "InPlace" if namespace.cluster.arms_pods else "Replace")
    restarts = [pod["status"]["containerStatuses"][0]["restartCount"] for pod in namespace.pods()]
    assert restarts.count(0) == JOB.pods
    assert uids(namespace, "beside") == others
    assert counters(namespace, row, "demo") == before
    namespace.wait_for_steps(JOB.selector, JOB.pods, 3)
    until(lambda: reported_about(namespace) >= {"Job", "Pod"}, "Events")


def reported_about(namespace: Namespace) -> set[str]:
    """Kinds of what our Events are about."""
    ours = [event for event in namespace.get("events") if event["reason"].startswith("Kcover")]
    return {entry["involvedObject"]["kind"] for entry in ours}


@BOOK.scenario()
def an_event_that_asks_for_a_recovery_is_a_trigger(namespace: Namespace) -> None:
    # no agent takes part
    policy(namespace, ways=["Replace"])
    started(namespace)
    pod, old = namespace.pods(JOB.selector)[0], uids(namespace)
    ask_for_recovery(namespace, pod)
    incident = wait_for_phase(namespace, ("Recovering", "Recovered"))
    assert ways(incident) == ["Replace"]
    assert not old & uids(namespace)


CORE = {
    "a_job_is_restarted_in_place_and_the_one_beside_it_is_not",
    "a_controller_killed_between_decision_and_deletion_is_followed_by_one_that_acts_once",
    "a_job_that_is_not_armed",
}


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(name, marks=[pytest.mark.core] * (name in CORE))
        for name in [*BOOK, *guards.BOOK, *notified.BOOK]
    ],
)
def test_a_restart_in_a_cluster_passes_its_scenario(scenario: str, restarts: Crowd) -> None:
    restarts.assert_passes(scenario)
