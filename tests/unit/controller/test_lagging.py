"""The sentence about a rack in the verdict on a gang."""

from __future__ import annotations

from kcover_ebpf.api.nodes import rack_of
from kcover_ebpf.controller.lagging import with_lags
from kcover_ebpf.facts.host import CollectiveLag, LaggingHost
from kcover_ebpf.gang.gang_input import GangVerdict
from kcover_ebpf.ids import Endpoint
from kcover_ebpf.model.collective_counts import CollectiveCounts
from kcover_ebpf.model.rank_snapshot import SocketSnapshot
from kcover_ebpf.model.verdict import Cause, Verdict, VerdictKind
from kcover_ebpf.recovery.nodes.others import kept_of_node
from tests.unit.report_builders import rank, report

RACKS = {"n0": "r0", "n1": "r0", "n2": "r1", "n3": "r1"}
HUNG = GangVerdict(Verdict(VerdictKind.HUNG, Cause.NOT_IN_COLLECTIVE))


def connected(number: int):
    ends = Endpoint(f"10.0.0.{number // 2}", 40_000), Endpoint("10.0.0.9", 1)
    return rank(number, sockets=(SocketSnapshot(*ends, "ESTABLISHED"),))


def reports(*lagging: int):
    places = tuple(LaggingHost(f"10.0.0.{node}", 2, (0, 1)) for node in lagging)
    lag = CollectiveLag(2, 2 * len(lagging), 8, "AllReduce", places)
    counts = CollectiveCounts(1.0, lags=(lag,))
    return [
        report(
            f"n{node}",
            connected(2 * node),
            connected(2 * node + 1),
            collectives=counts if node == 0 else None,
        )
        for node in range(4)
    ]


def test_lagging__a_rack_that_is_behind_is_evidence() -> None:
    said = with_lags(HUNG, reports(2, 3), RACKS.get)
    assert [evidence.text for evidence in said.evidence] == [
        "all of rack r1 (4 ranks on 2 nodes) is 2 all-reduces behind"
    ]


def test_lagging__nothing_is_said_of_what_is_no_incident_or_of_ranks_here_and_there() -> None:
    working = GangVerdict(Verdict(VerdictKind.WORKING, Cause.TRAINING))
    assert with_lags(working, reports(2, 3), RACKS.get) is working
    assert with_lags(HUNG, [report("n0", rank(0))], RACKS.get) is HUNG


def test_rack_of__a_node_keeps_the_label_of_its_switch() -> None:
    labels = {"network.topology.nvidia.com/leaf": "s17", "kubernetes.io/hostname": "n"}
    assert rack_of(labels) == "s17"
    assert kept_of_node({"metadata": {"name": "n", "labels": labels}})["metadata"]["rack"] == "s17"
    assert "rack" not in kept_of_node({"metadata": {"name": "n"}})["metadata"]
