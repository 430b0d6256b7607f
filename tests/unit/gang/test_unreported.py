"""A rank that ended and runs again, of which no report speaks: read from its pod, recorded, and never acted on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kcover_ebpf.api.fault_policy import FaultPolicy, Level
from kcover_ebpf.api.incident import Phase
from kcover_ebpf.api.pods import Container, ContainerEnd, ContainerKind, Pod
from kcover_ebpf.gang.unreported import Span, unreported
from kcover_ebpf.model.verdict import Cause, Culprit, Evidence, EvidenceKind, Verdict, VerdictKind
from tests.unit.support.kept_incidents import KEY, LABELS, NOW_S, World
from tests.unit.support.kept_policies import put_policy


def pod(index: int, end: ContainerEnd | None = None, **more: Any) -> Pod:
    main = Container(
        "train", ContainerKind.MAIN, restart_count=1, started_s=NOW_S - 60, last_end=end
    )
    made = Pod("ns", f"j-{index}", f"u{index}", f"n{index}", "Running", 1.0, None, LABELS, {}, (), (main,))  # fmt: skip
    return replace(made, **more)


def ended(
    code: int, ago_s: float = 62.0, ran_s: float | None = 500.0, reason: str = "Error"
) -> ContainerEnd:
    return ContainerEnd(code, NOW_S - ago_s, ran_s, reason)


def found(*pods: Pod, incidents: tuple[Span, ...] = ()) -> Verdict | None:
    return unreported("ns/j", pods, incidents, NOW_S)


KILLED = ended(137)


def test_unreported__a_killed_rank_that_runs_again_is_named_with_its_time() -> None:
    verdict = found(pod(0, KILLED), pod(1, ended(1, ago_s=61.0)))
    assert verdict is not None
    assert (verdict.kind, verdict.cause) == (VerdictKind.CRASHED, Cause.KILLED)
    assert verdict.since_s == NOW_S - 62.0
    assert verdict.culprit == Culprit(pod="j-0", pod_uid="u0", node="n0")
    assert [evidence.text for evidence in verdict.evidence] == [
        "the kubelet says that the container of pod j-0 ended with exit code 137 (Error), and runs again",
        "the kubelet says that the container of pod j-1 ended with exit code 1 (Error), and runs again",
    ]
    assert [evidence.node for evidence in verdict.evidence] == ["n0", "n1"]


@pytest.mark.parametrize(
    ("end", "cause"),
    [
        (ended(139), Cause.SEGFAULT),
        (ended(134), Cause.ABORTED),
        (ended(137, reason="OOMKilled"), Cause.OOM_KILLED),
        (ended(1), Cause.EXITED),
        (ended(255), Cause.EXITED),
    ],
)
def test_unreported__the_cause_is_that_of_the_exit_code(end: ContainerEnd, cause: Cause) -> None:
    verdict = found(pod(0, end), pod(1))
    assert verdict is not None
    assert verdict.cause is cause


def test_unreported__of_ranks_that_ended_alike_none_is_named() -> None:
    verdict = found(pod(0, ended(1)), pod(1, ended(1, ago_s=61.0)))
    assert verdict is not None
    assert verdict.culprit is None
    later = found(pod(0, ended(1, ago_s=66.0)), pod(1, ended(1, ago_s=61.0)))
    assert later is not None
    assert later.culprit is not None
    assert later.culprit.pod == "j-0", "one that ended seconds before the others is"


def test_unreported__the_newest_crash_comes_first() -> None:
    first, second = pod(0, ended(139, ago_s=300.0)), pod(1, KILLED)
    newest = found(first, second)
    assert newest is not None
    assert newest.culprit is not None
    assert newest.culprit.pod == "j-1"
    older = found(first, second, incidents=((newest.since_s, NOW_S),))
    assert older is not None, "an incident of one does not cover the other"
    assert older.culprit is not None
    assert older.culprit.pod == "j-0"


NO_CRASH: dict[str, tuple[Pod, ...]] = {
    "none ended": (pod(0), pod(1)),
    "it succeeded": (pod(0, ended(0)), pod(1)),
    "it was asked to end": (pod(0, ended(143)), pod(1, ended(130))),
    "its report may be under way": (pod(0, ended(137, ago_s=19.0)), pod(1)),
    "it is long ago": (pod(0, ended(137, ago_s=901.0)), pod(1)),
    "it had hardly started": (pod(0, ended(1, ran_s=3.0)), pod(1)),
    "when is not known": (pod(0, ContainerEnd(255)), pod(1)),
    "it does not run again, and is there to be reported": (
        pod(0, containers=(Container("train", ContainerKind.MAIN, last_end=KILLED),)),
        pod(1),
    ),
    "it is no rank": (
        pod(0, containers=(Container("log", ContainerKind.SIDECAR, started_s=1.0, last_end=KILLED),)),
        pod(1),
    ),
    "its pod is being deleted": (pod(0, KILLED, deleted_s=NOW_S), pod(1)),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_CRASH)
def test_unreported__anything_else_is_no_crash(name: str) -> None:
    assert found(*NO_CRASH[name]) is None


def test_unreported__pods_that_were_restarted_whole_are_dated_by_their_start_and_none_is_named() -> (
    None
):
    # as a kubelet 1.36 reports it of both pods after a rank of one was killed
    whole = ContainerEnd(137, reason="RestartingAllContainers")
    verdict = found(pod(0, whole), pod(1, whole))
    assert verdict is not None
    assert (verdict.cause, verdict.culprit) == (Cause.UNKNOWN, None)
    assert verdict.since_s == NOW_S - 60
    assert verdict.evidence[0].text.startswith("the kubelet has restarted pod j-")
    alone = found(pod(0, whole), pod(1))
    assert alone is not None
    assert alone.culprit == Culprit(pod="j-0", pod_uid="u0", node="n0")


@pytest.mark.parametrize(
    ("began_ago_s", "last_ago_s", "is_covered"),
    [(62.0, 40.0, True), (50.0, 40.0, True), (46.0, 40.0, False), (200.0, 73.0, False)],
)
def test_span__an_end_within_an_incident_is_explained_by_it(
    began_ago_s: float, last_ago_s: float, is_covered: bool
) -> None:
    span = (NOW_S - began_ago_s, NOW_S - last_ago_s)
    assert (found(pod(0, KILLED), pod(1), incidents=(span,)) is None) is is_covered


# ---- the controller


def test_unreported__it_is_recorded_once() -> None:
    world = World(pod(0, KILLED), pod(1))
    world.report(None)
    for _ in range(3):
        world.jobs.reconcile(KEY)
    (status,) = world.statuses
    assert status.phase is Phase.OBSERVED
    assert (status.kind, status.cause) == (VerdictKind.CRASHED, Cause.KILLED)
    assert status.since_s == NOW_S - 62.0
    assert status.nodes == ("n0", "n1")
    assert "recorded only" in status.message
    assert (status.action, status.order, status.restarts) == (None, None, ())


def test_unreported__a_stray_pod_and_a_job_that_is_ignored_are_not_recorded() -> None:
    stray = World(pod(0, KILLED), pod(1), strays=frozenset({"u0"}))
    ignored = World(pod(0, KILLED), pod(1))
    policy = FaultPolicy(action=Level.IGNORE)
    put_policy(ignored.store, "ns", "all", policy)
    for world in (stray, ignored):
        world.jobs.reconcile(KEY)
        assert world.statuses == []


def test_unreported__a_report_that_comes_late_is_acted_on_in_the_same_incident() -> None:
    world = World(pod(0, KILLED), pod(1))
    world.report(None)
    world.jobs.reconcile(KEY)
    (first,) = world.statuses
    assert "recorded only" in first.message
    crash = Verdict(
        VerdictKind.CRASHED, Cause.SEGFAULT, since_s=world.now_s - 62.0,
        evidence=(Evidence(EvidenceKind.EVENT, "rank 0 died by SIGSEGV"),),
        culprit=Culprit(rank=0, pod="j-0", pod_uid="u0", node="n0"),
    )  # fmt: skip
    world.report(crash)
    world.jobs.reconcile(KEY)
    (status,) = world.statuses
    assert status.cause is Cause.SEGFAULT
    assert "recorded only" not in status.message
