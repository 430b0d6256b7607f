"""Jobs of each kind, under their own controllers, brought back by each way: what it takes, and what it spends.

In place after a hang; hybrid and replaced after the fault of a device, with room elsewhere; and the same with a spare,
where a placeholder has that room. The fault is made up, orders are really carried out. Each rank notes its steps in a
folder that outlives it, as a checkpoint would, so that the job continues at the step before. Prints a line for each
cell of the table in docs/cluster.md; `KCOVER_ROUNDS=3` goes each way three times, for medians. The controller of batch
Jobs waits 10 s before it makes an evicted pod again, and twice as long each time: a spare is tried with a fresh job.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from testbed import skips
from testbed.driver.cluster import ROOT, Cluster, Namespace, until
from testbed.driver.kinds import KINDS, Kind, rank_pods
from testbed.driver.nodes import all_uncordoned
from testbed.driver.restarts import (
    counters,
    moment,
    policy,
    row_of,
    stopped,
    wait_for_phase,
    ways,
)
from tests.cluster.brought_back import IGNORES, Trained, events, of_jobs, place, restarts, training
from tests.cluster.spares import DEVICE, one_device_a_node, spare, until_placed

pytestmark = [pytest.mark.needs("root"), pytest.mark.timeout(900, func_only=True)]
ROUNDS = int(os.environ.get("KCOVER_ROUNDS", "1"))
NODES = 3
FULL = ("InPlace", "Replace", "Hybrid", "Spare")


def _of_runtime(objects: list[dict[str, Any]]) -> None:
    """The same of the Jobs that a TrainingRuntime describes."""
    for entry in objects[0]["spec"]["template"]["spec"]["replicatedJobs"]:
        entry["template"]["spec"] |= {"podFailurePolicy": {"rules": IGNORES}}
    # they replace those of the container
    objects[-1]["spec"]["trainer"]["resourcesPerNode"] |= {"limits": {DEVICE: "1"}}


def _two_pods(objects: list[dict[str, Any]]) -> None:
    for replica in objects[-1]["spec"]["pytorchReplicaSpecs"].values():
        replica |= {"restartPolicy": "OnFailure", "replicas": 1}


def _as_it_is(_: list[dict[str, Any]]) -> None:
    pass


@dataclass(frozen=True)
class Row:
    """One kind of the table."""

    change: Callable[[list[dict[str, Any]]], None]
    ways: tuple[str, ...] = FULL


ROWS = {
    "job": Row(of_jobs),
    "jobset": Row(of_jobs),
    "trainjob": Row(_of_runtime),
    "pytorchjob": Row(_two_pods),
    "mpijob": Row(_as_it_is),
    # its own scheduler's default actions preempt nothing, so that a placeholder would stay
    "volcano": Row(_as_it_is, ("InPlace", "Replace", "Hybrid")),
    "raycluster": Row(_as_it_is),
    # its pods are always restarted by their kubelets, which its controller answers by a restart of the group
    "lws": Row(_as_it_is, ("Replace", "Spare")),
}


@pytest.fixture(scope="module")
def bed(
    cluster: Cluster, install: Callable[[Iterable[str]], None], request: pytest.FixtureRequest
) -> Iterator[Cluster]:
    """Three nodes with a device each, and the controllers of the kinds that this run asks for."""
    chosen = {
        str(item.callspec.params["name"])
        for item in request.session.items
        if hasattr(item, "callspec") and "name" in item.callspec.params
    }
    install({KINDS[name].controller for name in chosen} - {""})
    cluster.grow(NODES)
    cluster.ctl("apply", f"--filename={ROOT / 'charts/kcover-ebpf/crds'}")
    with one_device_a_node(cluster):
        yield cluster


@pytest.mark.parametrize(
    ("name", "has_spare"),
    [
        pytest.param(name, has_spare, id=f"{name}-{'spare' if has_spare else 'without'}")
        for name, row in ROWS.items()
        for has_spare in sorted({way == "Spare" for way in row.ways})
    ],
)
def test_a_job_is_brought_back_by_each_way_of_its_kind(
    name: str,
    has_spare: bool,
    bed: Cluster,
    namespace: Namespace,
    restart_in_place: bool,
    tmp_path: Path,
) -> None:
    if not restart_in_place:
        pytest.skip("a cluster older than 1.36 does not restart in place")
    kind = KINDS[name]
    if not bed.serves(kind.plural):
        skips.skip(kind.controller, "the cluster of $KUBECONFIG does not have it")
    chosen = [way for way in ROWS[name].ways if (way == "Spare") is has_spare]
    kind = replace(kind, pods=2) if name == "pytorchjob" else kind
    with training(bed, namespace, kind, ROWS[name].change, tmp_path) as trained:
        row = row_of(kind.api_version, kind.kind)
        before = counters(namespace, row, "demo")
        with spare(namespace) if has_spare else nullcontext():
            for way in chosen:
                print(json.dumps(_cell(bed, trained, way)))
        assert counters(namespace, row, "demo") == before


def _cell(bed: Cluster, trained: Trained, way: str) -> dict[str, Any]:
    """One cell of the table: medians of all rounds, in seconds after the fault."""
    taken = []
    for _ in range(ROUNDS):
        with all_uncordoned(bed):
            taken.append(_round(trained, way))
        # the next round may use the node again
        trained.namespace.ctl("label", "incidents", "--all", "kcover.io/avoid-")
    said = sorted({reason for entry in taken for reason in entry["said"]})
    figures = {
        key: round(median(entry[key] for entry in taken), 1) for key in ("running_s", "step_s")
    }
    return {"kind": trained.kind.file, "way": way, "rounds": ROUNDS, **figures, "said": said}


def _round(trained: Trained, way: str) -> dict[str, Any]:
    namespace, kind, fake = trained.namespace, trained.kind, trained.fake
    count = len(namespace.items("incidents")) + 1
    method = _method(kind, way)
    policy(namespace, ways=[method], avoid={"mode": "Hard" if way == "Spare" else "Soft"})
    kept_free = until_placed(namespace) if way == "Spare" else None
    trained.steps.wait_for(3)
    time.sleep(2)
    old = {pod["metadata"]["uid"]: restarts(pod) for pod in namespace.pods(kind.selector)}
    victim, heard = rank_pods(namespace, kind)[-1], set(events(namespace))
    fault_s = time.time()
    if way == "InPlace":
        fake.break_rank(victim["metadata"]["name"])
    else:
        fake.break_device(victim["metadata"]["name"], "0000:5d:00.0")
    incident = wait_for_phase(namespace, ("Recovering", "Recovered", "Failed", "Refused"), count)
    fake.fault = fake.device = None
    assert incident["status"]["phase"] in ("Recovering", "Recovered"), incident["status"]
    assert ways(incident) == [method], incident["status"]["timeline"]
    gap = until(lambda: trained.steps.gap(fault_s), "the job trains at the step before")
    assert gap.before < gap.after <= gap.before + 2, gap
    incident = wait_for_phase(namespace, ("Recovered", "Failed"), count)
    assert incident["status"]["phase"] == "Recovered", incident["status"]["timeline"]
    _check_pods(trained, method, old, victim, kept_free)
    fresh = {reason for uid, reason in events(namespace).items() if uid not in heard}
    running_s = moment(incident, "Recovering") - fault_s
    return {"running_s": running_s, "step_s": gap.end_s - fault_s, "said": fresh}


def _method(kind: Kind, way: str) -> str:
    if way != "Spare":
        return way
    return "Hybrid" if "Hybrid" in ROWS[kind.file].ways else "Replace"


def _check_pods(
    trained: Trained, method: str, old: dict[str, int], victim: dict[str, Any], kept: str | None
) -> None:
    """Who stayed, who moved, and where to."""
    namespace, kind = trained.namespace, trained.kind
    pods = namespace.pods(kind.selector)
    new = {pod["metadata"]["uid"]: pod for pod in pods}
    assert len(pods) == kind.pods
    stayed = old.keys() & new.keys()
    if method == "InPlace":
        assert stayed == old.keys()
    if method == "Hybrid":
        assert old.keys() - stayed == {victim["metadata"]["uid"]}
        (moved,) = [new[uid] for uid in new.keys() - stayed]
        assert moved["spec"]["nodeName"] != victim["spec"]["nodeName"]
        assert place(moved) == place(victim)
    if method == "Replace":
        assert not stayed
    assert all(restarts(new[uid]) == old[uid] + 1 for uid in stayed)
    nodes = {pod["spec"]["nodeName"] for pod in rank_pods(namespace, kind)}
    assert kept is None or kept in nodes
    until(lambda: not stopped(namespace.pods(kind.selector)), "no rank is stopped")
