"""A job of each kind, under its own controller, has one rank stopped: named by real agents, restarted whole.

First in place, where the kind can, then with its pods replaced. Prints a line of times for each. For medians:

    KCOVER_ROUNDS=5 pytest -s tests/cluster/test_kinds.py -k 'pytorchjob or [job] or [jobset]'

goes each way five times, one job at a time, and Job and JobSet have four pods.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import pytest

from kcover_ebpf.recovery.restart.methods import at
from testbed.driver.cluster import Cluster, Namespace
from testbed.driver.kinds import (
    KINDS,
    Kind,
    process,
    rank_of,
    rank_pods,
    sized,
    start,
    wait_for_training,
    wait_until_learned,
)
from testbed.driver.restarts import (
    counters,
    incidents,
    moment,
    policy,
    row_of,
    stopped,
    wait_for_phase,
    ways,
)
from tests.cluster.crowd import AT_ONCE, Crowd, Scenario, asked_for, crowd

pytestmark = [
    pytest.mark.needs("root", "bpf"),
    pytest.mark.timeout(900, func_only=True),  # the controllers may have to be built
    pytest.mark.usefixtures("agents"),
]
CORE = {"job"}
"""The controllers of most others must be built first."""
ROUNDS = int(os.environ.get("KCOVER_ROUNDS", "1"))


@pytest.fixture(scope="module")
def kinds(
    request: pytest.FixtureRequest,
    cluster: Cluster,
    install: Callable[[Iterable[str]], None],
    restart_in_place: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Crowd]:
    """All kinds that this run asks for, a few at a time."""
    chosen = asked_for(request)
    install({KINDS[name].controller for name in chosen} - {""})
    scenarios = {name: Scenario(partial(restart_whole, name, restart_in_place)) for name in chosen}
    at_once = AT_ONCE if ROUNDS == 1 else 1
    with crowd(cluster, scenarios, tmp_path_factory.mktemp("kinds"), at_once) as started:
        yield started


@pytest.mark.parametrize(
    "scenario",
    [pytest.param(name, marks=[pytest.mark.core] * (name in CORE)) for name in KINDS],
)
def test_a_stopped_rank_restarts_its_whole_job(scenario: str, kinds: Crowd) -> None:
    kinds.assert_passes(scenario)


def restart_whole(name: str, restart_in_place: bool, namespace: Namespace) -> None:
    """Each way in turn, as far as the kind and the cluster know it."""
    kind = KINDS[name]
    change: Callable[[str], str] = str
    if ROUNDS > 1 and kind.file in {"job", "jobset"}:
        kind, change = replace(kind, pods=4), partial(sized, pods=4)
    chosen = [way for way in kind.ways if restart_in_place or way == "Replace"]
    start(namespace, kind, change)
    if kind.pods > 3:
        assert len({pod["spec"]["nodeName"] for pod in rank_pods(namespace, kind)}) == 2
    before = state(namespace, kind)
    taken: list[dict[str, Any]] = []
    for way in (way for way in chosen for _ in range(ROUNDS)):
        policy(namespace, ways=[way])
        wait_until_learned(namespace, kind)
        incident = hurt_and_check(namespace, kind, way, len(taken) + 1)
        taken.append(times(name, way, incident))
        assert state(namespace, kind) == before
    for way in chosen:
        of_way = [entry for entry in taken if entry["way"] == way]
        print(json.dumps({key: median_of(of_way, key) for key in of_way[0]}))


def median_of(taken: list[dict[str, Any]], key: str) -> object:
    """Of the figures of several rounds; what is no figure is the same in all of them."""
    values = [entry[key] for entry in taken]
    return values[0] if isinstance(values[0], str) else round(median(values), 2)


def hurt_and_check(namespace: Namespace, kind: Kind, way: str, count: int) -> dict[str, Any]:
    """One round; the `count`th incident of this namespace, which comes of it."""
    old = {pod["metadata"]["uid"]: restarts(pod) for pod in namespace.pods(kind.selector)}
    victim = rank_pods(namespace, kind)[-1]
    rank = rank_of(namespace, kind, victim)
    os.kill(process(victim), signal.SIGSTOP)
    incident = wait_for_phase(namespace, ("Recovered", "Failed", "Refused", "Observed"), count)
    assert incident["status"]["phase"] == "Recovered", incident["status"]["timeline"]
    assert ways(incident) == [way], incident["status"]["timeline"]
    culprit = incident["status"]["culprit"]
    assert culprit["pod"] == victim["metadata"]["name"]
    assert culprit["node"] == victim["spec"]["nodeName"]
    assert culprit.get("rank") == (rank if kind.numbered else None)
    pods = namespace.pods(kind.selector)
    assert len(pods) == kind.pods
    new = {pod["metadata"]["uid"]: restarts(pod) for pod in pods}
    if way == "InPlace":
        assert new.keys() == old.keys()
        assert all(new[uid] > old[uid] for uid in new)
    else:
        assert not new.keys() & old.keys()
    assert not stopped(pods)
    wait_for_training(namespace, kind)
    assert len(incidents(namespace)) == count, "it was acted on once"
    return incident


def times(name: str, way: str, incident: dict[str, Any]) -> dict[str, Any]:
    """Seconds from the verdict until all pods ran again, and until the ranks made progress."""
    decided = moment(incident, "Decided")
    back, over = moment(incident, "Recovering") - decided, moment(incident, "Recovered") - decided
    return {"kind": name, "way": way, "running_s": round(back, 2), "progress_s": round(over, 2)}


def restarts(pod: dict[str, Any]) -> int:
    """Restarts of a pod's containers."""
    return sum(
        container_status["restartCount"]
        for container_status in pod["status"].get("containerStatuses", ())
    )


def state(namespace: Namespace, kind: Kind) -> dict[str, object]:
    """What a restart must leave as it was: the job's own counters, and whatever holds it."""
    row = row_of(kind.api_version, kind.kind)
    (top,) = namespace.get(kind.plural, "demo")
    held = [top, *(namespace.get("workloads.kueue.x-k8s.io") if kind.queued else ())]
    marks = [item["metadata"].get("annotations", {}).get("kcover.io/suspended-by") for item in held]
    # of a list of parts, such as a TrainJob's, what failed counts; who is ready changes by the moment
    counted = {
        name: [item.get("failed") for item in value] if isinstance(value, list) else value
        for name, value in counters(namespace, row, "demo").items()
    }
    return {
        **counted,
        "suspended": bool(row.suspend and at(top, row.suspend)),
        "inactive": [at(item, ("spec", "active")) is False for item in held],
        "suspended by us": marks,
    }
