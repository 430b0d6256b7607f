"""Ranks that wait for a pod that does not run: it is named with its reason, soon, and only while both are true."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kcover_ebpf.api.fault_report import REPORT, FaultReport
from kcover_ebpf.api.pod_waits import PodWait
from kcover_ebpf.api.pods import Pod
from kcover_ebpf.gang.gang_input import GangInput
from kcover_ebpf.gang.gang_judge import merge
from kcover_ebpf.gang.gang_snapshot import ReceivedReport
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.silence_summary import StartWait
from kcover_ebpf.model.verdict import Cause, Certainty, VerdictKind
from tests.unit.support.report_builders import NOW_S, case, pod, rank, report

PULL = PodWait("ImagePullBackOff", "container main")
CREATING = PodWait("ContainerCreating", "container main")
NO_ROOM = PodWait("Unschedulable", "0/3 nodes are available")


def waiting(node: str, count: int, age_s: float = 3.0, **more) -> ReceivedReport:
    """What a node reports whose ranks wait for others before the first step."""
    first = "ab".index(node)
    ranks = [rank(number) for number in range(first, first + 2 * count, 2)]
    values: dict[str, Any] = {
        "suspicious": False,
        "trained": False,
        "start_wait": StartWait(age_s, count, 4),
    }
    made = report(node, *ranks, **values | more)
    return replace(made, report=replace(made.report, ranks=()))


def held(number: int, wait: PodWait | None, **more) -> Pod:
    made = pod(number, "Pending")
    containers = tuple(replace(container, started_s=None) for container in made.containers)
    return replace(made, containers=containers, wait=wait, ready=False, **more)


def gang(*seen: ReceivedReport, absent: Pod, count: int = 3) -> GangInput:
    return replace(case(*seen), pods=(*(pod(number) for number in range(count)), absent))


@pytest.mark.parametrize("wait", [PULL, NO_ROOM])
def test_merge__a_pod_with_an_obstacle_is_named_3_s_after_the_others_wait(
    wait: PodWait,
) -> None:
    node = "" if wait is NO_ROOM else "b"
    merged = merge(gang(waiting("a", 2), waiting("b", 1), absent=held(3, wait, node=node)))
    verdict, culprit = merged.verdict, merged.culprit
    assert (verdict.kind, verdict.cause) == (VerdictKind.UNKNOWN, Cause.MISSING_RANK)
    assert culprit is not None
    assert (culprit.pod, culprit.pod_uid, culprit.node) == ("j-3", "uid-3", node or None)
    pod_text, ranks_text = (evidence.text for evidence in verdict.evidence)
    assert pod_text == f"pod j-3 does not run: {wait.text}"
    assert ranks_text.startswith(
        "3 of 4 ranks have started and waited for 4 s before the first step"
    )
    assert (verdict.certainty, verdict.acts_at_s) == (Certainty.SUSPECTED, None)
    assert verdict.opens_incident


def test_merge__a_pod_that_is_being_started_is_given_the_grace_of_a_start() -> None:
    soon = gang(waiting("a", 2), waiting("b", 1), absent=held(3, CREATING))
    assert merge(soon).verdict.cause is Cause.STARTING
    late = gang(waiting("a", 2, 20.0), waiting("b", 1, 20.0), absent=held(3, CREATING))
    assert merge(late).verdict.evidence[0].text == (
        "pod j-3 does not run: ContainerCreating (container main)"
    )


SILENT = {
    "it has been there for a second": (
        gang(waiting("a", 2), waiting("b", 1), absent=held(3, PULL, created_s=NOW_S - 1)),
        Cause.STARTING,
    ),
    "it runs": (gang(waiting("a", 2), waiting("b", 1), absent=pod(3)), Cause.STARTING),
    "it has ended": (
        gang(waiting("a", 2), waiting("b", 1), absent=replace(held(3, PULL), phase="Failed")),
        Cause.STARTING,
    ),
    "it is being deleted": (
        gang(waiting("a", 2), waiting("b", 1), absent=held(3, PULL, deleted_s=NOW_S)),
        Cause.STARTING,
    ),
    "ranks of one node load": (
        gang(waiting("a", 2), waiting("b", 1, start_wait=None), absent=held(3, PULL)),
        Cause.STARTING,
    ),
    "the others train": (
        gang(waiting("a", 2, trained=True), waiting("b", 1, trained=True), absent=held(3, PULL)),
        Cause.TRAINING,
    ),
    "all ranks are here": (
        gang(waiting("a", 2), waiting("b", 2), absent=held(4, PULL), count=4),
        Cause.STARTING,
    ),
}


@pytest.mark.parametrize("name", SILENT)
def test_merge__no_pod_is_named(name: str) -> None:
    reported, cause = SILENT[name]
    verdict = merge(reported).verdict
    assert (verdict.kind, verdict.cause) == (VerdictKind.WORKING, cause)


def test_merge__a_silent_node_does_not_hide_a_pod_that_does_not_run() -> None:
    merged = merge(gang(waiting("a", 2), absent=held(3, PULL)))
    assert merged.culprit is not None
    assert merged.culprit.pod == "j-3"


@pytest.mark.parametrize("reports_wait", [True, False])
def test_merge__a_container_that_crashes_at_its_start_is_not_taken_for_a_pod_that_runs(
    reports_wait: bool,
) -> None:
    crashes = replace(held(3, PodWait("CrashLoopBackOff", "container main")), phase="Running")
    waits = [rank(number, age_s=40.0) for number in (0, 1, 2)]
    start_wait = StartWait(40.0, 1, 4) if reports_wait else None
    more: dict[str, Any] = {"trained": False, "start_wait": start_wait}
    seen = report("a", waits[0], waits[2], **more), report("b", waits[1], **more)
    verdict = merge(gang(*seen, absent=crashes)).verdict
    assert not verdict.kind.is_fault
    assert (verdict.cause is Cause.MISSING_RANK) is reports_wait
    assert "all 4 pods" not in str(verdict.evidence), "one of them does not run"


def test_merge__a_rank_that_is_stopped_is_a_fault_whatever_does_not_run() -> None:
    stopped = report("b", rank(1, State.STOPPED, 7.0), trained=False)
    merged = merge(gang(waiting("a", 2), stopped, absent=held(3, PULL)))
    assert (merged.verdict.kind, merged.verdict.cause) == (VerdictKind.HUNG, Cause.STOPPED)


def test_merge__on_one_node_the_pod_is_named_as_well() -> None:
    pods = tuple(replace(one, node="a") for one in (pod(0), pod(2), held(3, PULL)))
    merged = merge(replace(case(waiting("a", 2)), pods=pods))
    assert merged.culprit is not None
    assert merged.culprit.pod == "j-3"


def test_merge__of_many_pods_one_with_an_obstacle_is_named() -> None:
    pods = (pod(0), held(1, CREATING), held(2, PULL), held(3, NO_ROOM))
    merged = merge(replace(case(waiting("a", 1, 30.0)), pods=pods))
    assert merged.culprit is not None
    assert merged.culprit.pod == "j-2"
    assert [evidence.text.split(":")[0] for evidence in merged.evidence[:3]] == [
        "pod j-2 does not run",
        "pod j-3 does not run",
        "pod j-1 does not run",
    ]


def test_fault_report__the_wait_of_a_start_survives_the_wire() -> None:
    made = waiting("a", 2).report
    assert REPORT.decode(FaultReport, REPORT.encode(made)) == made
