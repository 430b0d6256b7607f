"""A device of a pod fails, of a kind that a JobKind describes: it moves to a spare, the other restarts in place.

The fault is made up, orders are really carried out. Prints seconds from the verdict: until all pods ran again, and
until all ranks had trained a step. Kinds that kcover-ebpf knows: test_ways.py.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import yaml

from kcover_ebpf.kube.client import connect
from testbed.driver.cluster import ROOT, Cluster, Namespace
from testbed.driver.fake_agent import FakeAgent
from testbed.driver.kinds import Kind, rank_pods, wait_for_training
from testbed.driver.nodes import all_uncordoned
from testbed.driver.restarts import (
    moment,
    policy,
    running,
    wait_for_phase,
    ways,
)
from tests.cluster import training_controller
from tests.cluster.spares import DEVICE, one_device_a_node, spare, until_placed

pytestmark = [pytest.mark.needs("root"), pytest.mark.timeout(600, func_only=True)]
NODES = 3
TRAINING = Kind("training", "", "acme.example/v1", "Training", f"{training_controller.LABEL}=demo")


@pytest.fixture(scope="module")
def bed(cluster: Cluster) -> Cluster:
    """Three nodes."""
    cluster.grow(NODES)
    cluster.ctl("apply", f"--filename={ROOT / 'charts/kcover-ebpf/crds'}")
    return cluster


def test_a_spare_gives_way_to_the_pod_that_moves(
    bed: Cluster, namespace: Namespace, restart_in_place: bool, tmp_path: Path
) -> None:
    """Two pods and a placeholder have the only three devices; the kind is one that a JobKind describes."""
    if not restart_in_place:
        pytest.skip("a cluster older than 1.36 does not restart in place")
    key, _, value = TRAINING.selector.partition("=")
    session = connect(str(bed.kubeconfig))
    with (
        all_uncordoned(bed),  # once the controller has ended, which writes to nodes, too
        one_device_a_node(bed),
        training_controller.described(bed),
        training_controller.running(namespace),
        running(namespace, tmp_path / "controller.log"),
        FakeAgent(session, namespace.name, {key: value}, "Training") as fake,
    ):
        policy(namespace, ways=["Hybrid"], avoid={"mode": "Hard"})
        objects = list(yaml.safe_load_all((Path(__file__).parent / "training.yaml").read_text()))
        (container,) = objects[-1]["spec"]["template"]["spec"]["containers"]
        container["resources"] |= {"limits": {DEVICE: "1"}}
        namespace.apply(yaml.safe_dump_all(objects))
        wait_for_training(namespace, TRAINING)
        with spare(namespace):
            kept_free = until_placed(namespace)
            victim = rank_pods(namespace, TRAINING)[-1]
            fake.break_device(victim["metadata"]["name"], "0000:5d:00.0")
            incident = wait_for_phase(namespace, ("Recovering", "Recovered", "Failed", "Refused"))
            fake.fault = None
            assert ways(incident) == ["Hybrid"], incident["status"]["timeline"]
            assert incident["status"]["phase"] in ("Recovering", "Recovered"), incident["status"]
            wait_for_training(namespace, TRAINING, steps=1)
            trained_s = time.time()
            incident = wait_for_phase(namespace, ("Recovered", "Failed"))
            moved = rank_pods(namespace, TRAINING)[-1]
            assert moved["spec"]["nodeName"] == kept_free
            decided = moment(incident, "Decided")
            running_s = round(moment(incident, "Recovering") - decided, 2)
            taken = {"running_s": running_s, "step_s": round(trained_s - decided, 2)}
            print(json.dumps({"kind": "Training", "way": "Hybrid with a spare", **taken}))
