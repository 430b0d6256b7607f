"""A job on two nodes as its agents report it: short builders for tests of the merged judgement."""

from __future__ import annotations

from dataclasses import replace

from kcover_ebpf.api.fault_report import (
    FaultReport,
    PodRef,
    ReportedJob,
)
from kcover_ebpf.api.pods import Container, ContainerKind, Pod
from kcover_ebpf.gang.gang_input import GangInput, NodeState
from kcover_ebpf.gang.gang_snapshot import ReceivedReport
from kcover_ebpf.ids import Endpoint
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.rank_snapshot import RankSnapshot, SocketSnapshot
from kcover_ebpf.model.roles import Role
from kcover_ebpf.model.verdict import Cause, Culprit, Evidence, EvidenceKind, Verdict, VerdictKind
from kcover_ebpf.settings import Policy

NOW_S = 50_000.0
COLLECTIVE = tuple(f"libtorch.so+{number:x}" for number in range(0x100, 0x120))
LOCK = tuple(f"python3.11+{number:x}" for number in range(0x900, 0x920))
SELECTOR = {"batch.kubernetes.io/job-name": "j"}


def rank(number: int, state: State = State.FUTEX, age_s: float = 6.0, **more) -> RankSnapshot:
    """A rank that waits in a collective, as it did while healthy, unless others are named."""
    known = state is State.FUTEX
    values = {
        "pod_uid": f"uid-{number}",
        "pid": 100 + number // 2,
        "tid": 100 + number // 2,
        "rank": number,
        "world_size": 4,
        "role": Role.RANK,
        "state": state,
        "text": state.value,
        "age_s": age_s,
        "threshold_s": 2.0,
        "sent_age_s": age_s,
        "received_age_s": age_s,
        "stack": COLLECTIVE if known else (),
        "known_wait": known,
    }
    return RankSnapshot(**{**values, **more})


def report(
    node: str, *ranks: RankSnapshot, arrived_s: float = NOW_S - 0.5, **more
) -> ReceivedReport:
    """What a node says; suspicious unless others are named."""
    values = {"suspicious": True, "trained": True} | more
    made = FaultReport(
        node=node,
        time_s=arrived_s,
        sequence=1,
        job=ReportedJob("j", SELECTOR, "Job"),
        pods=tuple(
            PodRef(f"j-{rank_snapshot.rank}", rank_snapshot.pod_uid) for rank_snapshot in ranks
        ),
        ranks=ranks,
    )
    return ReceivedReport(replace(made, **values), arrived_s)


def pod(number: int, phase: str = "Running") -> Pod:
    """The pod of a rank; even ranks are on node a, odd ones on node b."""
    main = Container("main", ContainerKind.MAIN, restarts_pod=True, started_s=NOW_S - 300)
    return Pod(
        "ns", f"j-{number}", f"uid-{number}", "ab"[number % 2], phase, NOW_S - 310, None,
        {}, {}, (), (main,), True,
    )  # fmt: skip


def case(*received: ReceivedReport, pods: int = 4, **more) -> GangInput:
    """Everything about the job."""
    nodes = {name: NodeState(name) for name in "ab"}
    made = GangInput(
        "ns/j", received, tuple(pod(number) for number in range(pods)), nodes, Policy(), NOW_S
    )
    return replace(made, **more)


def local(
    kind: VerdictKind, cause: Cause, number: int, age_s: float, evidence: EvidenceKind
) -> Verdict:
    """A node's own verdict about one of its ranks, in a report that came half a second ago."""
    culprit = Culprit(rank=number, pid=100, pod_uid=f"uid-{number}")
    said = (Evidence(evidence, f"rank {number} {cause.value}"),)
    return Verdict(kind, cause, since_s=NOW_S - 0.5 - age_s, culprit=culprit, evidence=said)


def wire(number: int, peer: int, **more) -> SocketSnapshot:
    """One connection between two ranks."""
    ends = sorted((number, peer))
    port = 4000 + ends[0] * 10 + ends[1]
    local, remote = (Endpoint(f"10.0.0.{other_number}", port) for other_number in (number, peer))
    return SocketSnapshot(local, remote, "ESTABLISHED", **more)
