"""A GPU falls off the bus on one of four nodes: where every rank holds all GPUs, and where other faults hide it.

As in test_devices.py, the node with the GPUs is a virtual machine with a stub of the driver.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from testbed.driver import agents
from testbed.driver.cluster import ROOT, Cluster, Namespace, until
from testbed.driver.restarts import policy
from tests.cluster.devices import (
    check_cordoned,
    check_replaced,
    check_trains_elsewhere,
    check_uncordoned,
    declare_well,
    fatal,
    gpu_machine,
    gpu_node,
    holders,
    lose_gpu,
    report,
    spread,
)
from tests.cluster.guest_node import GuestNode
from tests.vm.conftest import GPU
from tests.vm.guest import gpu_slot

pytestmark = [pytest.mark.needs("root", "bpf"), pytest.mark.timeout(900, func_only=True)]
NODES = 4
BOARD = 64
"""So many faults the report of a node has room for."""
UNKNOWN_XIDS = 900
"""From here on no catalogue has a number: harmless as far as is known."""
SECOND_BUS = 0x7D
SECOND = f"0000:{SECOND_BUS:x}:00.0"


@pytest.fixture(scope="module")
def node(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuestNode]:
    """The fourth, with two GPUs; all have their agents."""
    cluster.grow(NODES - 1)
    cluster.ctl("apply", f"--filename={ROOT / 'charts/kcover-ebpf/crds'}")
    folder = tmp_path_factory.mktemp("agents")
    slot = gpu_slot(SECOND_BUS, "second")
    with (
        agents.running(cluster, folder),
        gpu_machine(*slot, driver_options=f"second={SECOND}") as machine,
        gpu_node(cluster, machine) as found,
    ):
        yield found


@pytest.mark.usefixtures("controller")
def test_a_lost_gpu_that_several_ranks_hold_names_the_node_and_no_rank(
    cluster: Cluster, namespace: Namespace, node: GuestNode
) -> None:
    policy(namespace)
    pods = 2 * len(cluster.get("nodes"))
    uids = {pod["metadata"]["uid"] for pod in spread(namespace, node, pods)}
    assert len(uids) >= 2
    until(
        lambda: all(holders(namespace, node, gpu) >= uids for gpu in (GPU, SECOND)),
        "the agent knows that all hold both GPUs",
    )
    lose_gpu(node.guest)
    until(lambda: fatal(cluster, node) == [(GPU, "xid_79", uids)], "the agent reports", 180)
    status = check_replaced(namespace, node, GPU)
    assert not {"rank", "pod", "pid"} & status["culprit"].keys()
    said = [item["text"] for item in status["evidence"]]
    assert any("fallen off the bus" in text for text in said), said
    assert any(f"{len(uids)} processes of the job have {GPU} open" in text for text in said), said
    check_cordoned(cluster, node, "xid_79")
    check_trains_elsewhere(namespace, node, pods)
    declare_well(cluster, node)
    check_uncordoned(cluster, node)


@pytest.mark.usefixtures("namespace")
def test_a9_a_lost_gpu_is_reported_though_harmless_faults_fill_the_board(
    cluster: Cluster, node: GuestNode
) -> None:
    before = fatal(cluster, node)
    numbers = range(UNKNOWN_XIDS, UNKNOWN_XIDS + BOARD)
    node.guest.python(f"for number in {numbers!r}: say(f'xid {{number}} {GPU} pid=1, name=x')")
    until(lambda: len(board(cluster, node)) == BOARD, "the board of faults is full")
    assert fatal(cluster, node) == before
    node.guest.python(f"say('xid 79 {SECOND} GPU has fallen off the bus.')")
    lost = (SECOND, "xid_79", set[str]())
    until(lambda: lost in fatal(cluster, node), "the lost GPU is reported")
    assert len(board(cluster, node)) == BOARD


def board(cluster: Cluster, node: GuestNode) -> list[dict[str, Any]]:
    """The faults that the node reports."""
    return list(report(cluster, node.name).get("devices", ()))
