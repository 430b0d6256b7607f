"""A job of each kind, under its own controller, has one rank stopped: named by real agents, restarted whole.

First in place, where the kind can, then with its pods replaced. Prints a line of times for each.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import pytest

from kcover_ebpf.cluster.restart import at
from tests.cluster.cluster import Cluster, Namespace
from tests.cluster.crowd import Crowd, Scenario, asked_for, crowd
from tests.cluster.kinds import (
    KINDS,
    Kind,
    process,
    rank_of,
    rank_pods,
    start,
    wait_for_training,
    wait_until_learned,
)
from tests.cluster.restarts import (
    counters,
    incidents,
    moment,
    policy,
    row_of,
    stopped,
    wait_for_phase,
    ways,
)

pytestmark = [
    pytest.mark.needs("root", "bpf"),
    pytest.mark.timeout(900, func_only=True),  # the controllers may have to be built
    pytest.mark.usefixtures("agents"),
]


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
    with crowd(cluster, scenarios, tmp_path_factory.mktemp("kinds")) as started:
        yield started


@pytest.mark.parametrize("scenario", KINDS)
def test_a_stopped_rank_restarts_its_whole_job(scenario: str, kinds: Crowd) -> None:
    kinds.wait(scenario)


def restart_whole(name: str, restart_in_place: bool, namespace: Namespace) -> None:
    """Each way in turn, as far as the kind and the cluster know it."""
    kind = KINDS[name]
    chosen = [way for way in kind.ways if restart_in_place or way == "Replace"]
    start(namespace, kind)
    if kind.pods > 3:
        assert len({pod["spec"]["nodeName"] for pod in rank_pods(namespace, kind)}) == 2
    before = state(namespace, kind)
    for count, way in enumerate(chosen, 1):
        policy(namespace, ways=[way])
        wait_until_learned(namespace, kind)
        hurt_and_check(namespace, name, way, count)
        assert state(namespace, kind) == before


def hurt_and_check(namespace: Namespace, name: str, way: str, count: int) -> None:
    """One round: the `count`th incident of this namespace comes of it."""
    kind = KINDS[name]
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
    print(json.dumps(times(name, way, incident)))


def times(name: str, way: str, incident: dict[str, Any]) -> dict[str, object]:
    """Seconds from the verdict until all pods ran again, and until the ranks made progress."""
    decided = moment(incident, "Decided")
    back, over = moment(incident, "Recovering") - decided, moment(incident, "Recovered") - decided
    return {"kind": name, "way": way, "running_s": round(back, 2), "progress_s": round(over, 2)}


def restarts(pod: dict[str, Any]) -> int:
    """Restarts of a pod's containers."""
    return sum(each["restartCount"] for each in pod["status"].get("containerStatuses", ()))


def state(namespace: Namespace, kind: Kind) -> dict[str, object]:
    """What a restart must leave as it was: the job's own counters, and whatever holds it."""
    row = row_of(kind.api_version, kind.kind)
    (top,) = namespace.get(kind.plural, "demo")
    held = [top, *(namespace.get("workloads.kueue.x-k8s.io") if kind.queued else ())]
    marks = [each["metadata"].get("annotations", {}).get("kcover.io/suspended-by") for each in held]
    # of a list of parts, such as a TrainJob's, what failed counts; who is ready changes by the moment
    counted = {
        name: [each.get("failed") for each in value] if isinstance(value, list) else value
        for name, value in counters(namespace, row, "demo").items()
    }
    return {
        **counted,
        "suspended": bool(row.suspend and at(top, row.suspend)),
        "inactive": [at(each, ("spec", "active")) is False for each in held],
        "held by us": marks,
    }
