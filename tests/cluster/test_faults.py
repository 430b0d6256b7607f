"""Real faults in real jobs: real agents name the pod, the real controller restarts the whole job, or lets it work."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest

from testbed import skips
from testbed.driver.cluster import JOBS, Cluster, Namespace
from testbed.driver.kinds import (
    KINDS,
    process,
    rank_of,
    rank_pods,
    start,
    wait_for_training,
    wait_until_learned,
    with_checkpoints,
)
from testbed.driver.restarts import counters, incidents, policy, row_of, wait_for_phase, ways
from tests.cluster import scenarios_drill as drills
from tests.cluster import scenarios_frozen as frozen
from tests.cluster import scenarios_lost as lost
from tests.cluster.crowd import Book, Crowd, asked_for, crowd
from tests.cluster.cuts import cut

pytestmark = [
    pytest.mark.needs("root", "bpf"),
    pytest.mark.timeout(600, func_only=True),
    pytest.mark.usefixtures("reading_agents"),
]
FOUR = KINDS["pytorchjob"]
TWO = KINDS["job"]
OVER = ("Recovered", "Failed", "Refused", "Observed")
BOOK = Book()


@pytest.fixture(scope="module")
def faults(
    request: pytest.FixtureRequest,
    cluster: Cluster,
    restart_in_place: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Crowd]:
    """All faults that this run asks for, a few at a time."""
    chosen = {
        name: (BOOK | frozen.BOOK | lost.BOOK | drills.BOOK)[name] for name in asked_for(request)
    }
    with crowd(cluster, chosen, tmp_path_factory.mktemp("faults")) as started:
        yield started


def restarts(namespace: Namespace, selector: str) -> dict[str, int]:
    """Restarts of each pod's first container, by uid."""
    return {
        pod["metadata"]["uid"]: pod["status"]["containerStatuses"][0]["restartCount"]
        for pod in namespace.pods(selector)
    }


def limited(text: str) -> str:
    """An example whose ranks may use little memory."""
    return text.replace("{requests: {cpu: 20m}}", "{requests: {cpu: 20m}, limits: {memory: 640Mi}}")


def dies_with_its_job(
    number: int, cause: str, change: Callable[[str], str], namespace: Namespace
) -> None:
    """A rank that gets this signal takes its job along, and no other."""
    if not namespace.cluster.arms_pods:
        skips.skip("restart-in-place", "without it the job of a rank that dies has failed")
    policy(namespace)
    start(namespace, FOUR, change)
    beside = "batch.kubernetes.io/job-name=beside"
    namespace.apply((JOBS / "job.yaml").read_text().replace("demo", "beside"))
    namespace.wait_for_steps(beside, 2, 3)
    wait_until_learned(namespace, FOUR)
    row = row_of(FOUR.api_version, FOUR.kind)
    before, other = counters(namespace, row, "demo"), restarts(namespace, beside)
    old = restarts(namespace, FOUR.selector)
    victim = rank_pods(namespace, FOUR)[-1]
    rank = rank_of(namespace, FOUR, victim)
    os.kill(process(victim), number)
    incident = wait_for_phase(namespace, OVER)
    status = incident["status"]
    assert status["phase"] == "Recovered", status["timeline"]
    assert (status["verdict"], status["cause"]) == ("CRASHED", cause)
    culprit = status["culprit"]
    assert (culprit["pod"], culprit["rank"]) == (victim["metadata"]["name"], rank)
    assert culprit["node"] == victim["spec"]["nodeName"]
    new = restarts(namespace, FOUR.selector)
    assert new.keys() == old.keys()
    assert all(new[uid] > old[uid] for uid in new)
    wait_for_training(namespace, FOUR)
    assert counters(namespace, row, "demo") == before
    assert restarts(namespace, beside) == other, "the job beside it was left alone"
    assert len(incidents(namespace)) == 1


def attended(text: str) -> str:
    """An example whose pods have another container beside the rank's."""
    old = "          volumes: ["
    assert old in text
    other = "{name: beside, image: localhost/kcover-train:1, command: [sleep, infinity]}"
    return text.replace(old, f"          - {other}\n{old}")


@BOOK.scenario()
def a_rank_is_killed(namespace: Namespace) -> None:
    dies_with_its_job(signal.SIGKILL, "killed", attended, namespace)


@BOOK.scenario()
def a_rank_takes_too_much_memory(namespace: Namespace) -> None:
    dies_with_its_job(signal.SIGUSR1, "oom_killed", limited, namespace)


@BOOK.scenario()
def two_pods_do_not_reach_each_other(namespace: Namespace) -> None:
    skips.require("nftables")
    policy(namespace, ways=["Replace"])
    start(namespace, FOUR)
    wait_until_learned(namespace, FOUR)
    one, other = rank_pods(namespace, FOUR)[1:3]
    cut(one, other["status"]["podIP"])
    cut(other, one["status"]["podIP"])
    incident = wait_for_phase(namespace, OVER)
    status = incident["status"]
    assert status["phase"] == "Recovered", status["timeline"]
    assert status["verdict"] == "LOST_LINK"
    ends = {entry["metadata"]["name"] for entry in (one, other)}
    named = status.get("culprit", {}).get("pod")
    assert named is None or named in ends
    said = " ".join(item["text"] for item in status["evidence"])
    assert one["status"]["podIP"] in said or other["status"]["podIP"] in said or named in ends
    assert ways(incident) == ["Replace"]
    wait_for_training(namespace, FOUR)


@BOOK.scenario()
def a_checkpoint_of_half_a_minute_is_left_alone(namespace: Namespace) -> None:
    policy(namespace)
    start(namespace, TWO, with_checkpoints(every=60, seconds=30))
    pods = restarts(namespace, TWO.selector)
    wait_until_learned(namespace, TWO)
    wait_for_training(namespace, TWO, steps=65)
    assert incidents(namespace) == []
    assert restarts(namespace, TWO.selector) == pods


@pytest.mark.parametrize("scenario", [*BOOK, *frozen.BOOK, *lost.BOOK, *drills.BOOK])
def test_a_fault_in_a_cluster_passes_its_scenario(scenario: str, faults: Crowd) -> None:
    faults.assert_passes(scenario)
