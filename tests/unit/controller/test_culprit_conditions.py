"""The condition on a culprit's pod: when it is there, when it goes, and what a failed write costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kcover_ebpf.api.incident import Incident, JobRef, Phase, Status
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.controller.culprit_conditions import TYPE, CulpritConditions
from kcover_ebpf.errors import ApiError, Conflict, NotFound, Unreachable
from kcover_ebpf.model.verdict import Cause, Certainty, Culprit, Verdict, VerdictKind

NOW_S = 1_767_225_600.0
JOB = JobRef("Job", "j", "job-uid", "batch/v1")
DELETED = {"type": TYPE, "$patch": "delete"}


class FakeWriter:
    """Keeps the conditions of pods by name and uid, as an API server would."""

    def __init__(self) -> None:
        self.conditions: dict[tuple[str, str], dict[str, str]] = {}
        self.calls: list[tuple[str, str]] = []
        self.error: Exception | None = None

    def pod_condition(self, namespace: str, pod: str, uid: str, change: dict[str, str]) -> None:
        assert namespace == "ns"
        self.calls.append((pod, "delete" if change == DELETED else change["reason"]))
        if self.error is not None:
            raise self.error
        if change == DELETED:
            self.conditions.pop((pod, uid), None)
        else:
            self.conditions[pod, uid] = change


class Bed:
    def __init__(self) -> None:
        self.leads = True
        self.writer = FakeWriter()
        self.store = ObjectCache(lambda _: None, wall=lambda: NOW_S)
        self.culprits = self.leader()

    def leader(self) -> CulpritConditions:
        writer: Any = self.writer
        return CulpritConditions(self.store, writer, lambda: self.leads)

    def put(self, phase: Phase, name: str = "i", pod: str = "j-2", **more: Any) -> None:
        status = Status(
            Phase.OPEN,
            verdict=Verdict(
                kind=VerdictKind.HUNG,
                cause=Cause.STOPPED,
                certainty=Certainty.INFERRED,
                culprit=Culprit(rank=2, pod=pod, pod_uid=f"u-{pod}", node="n7"),
            ),
        ).enter(Phase.DECIDED, NOW_S - 60.0, "decided")
        status = replace(status.enter(phase, NOW_S - 30.0, "said"), **more)
        self.store.put(Incident("ns", name, JOB, {"a": name}, status=status, uid=f"u-{name}"))


@pytest.fixture
def bed() -> Bed:
    return Bed()


@pytest.mark.parametrize(
    "phase",
    [Phase.DECIDED, Phase.SHUTTING_DOWN, Phase.RECOVERING, Phase.OBSERVED, Phase.REFUSED, Phase.FAILED],
)  # fmt: skip
def test_culprit__its_pod_has_the_condition_while_the_incident_is_open(
    bed: Bed, phase: Phase
) -> None:
    bed.put(phase)
    bed.culprits.turn()
    bed.culprits.turn()
    assert bed.writer.conditions == {
        ("j-2", "u-j-2"): {
            "type": "kcover.io/Culprit",
            "status": "True",
            "reason": "HungStopped",
            "message": "incident i: inferred HUNG stopped: rank 2 (pod j-2, node n7)",
            "lastTransitionTime": "2025-12-31T23:59:00Z",
        }
    }
    assert len(bed.writer.calls) == 1


def test_culprit__a_suspicion_marks_no_pod(bed: Bed) -> None:
    bed.put(Phase.OPEN)
    bed.culprits.turn()
    assert bed.writer.calls == []


def test_culprit__the_condition_goes_when_the_incident_is_closed(bed: Bed) -> None:
    bed.put(Phase.OBSERVED)
    bed.culprits.turn()
    bed.put(Phase.OBSERVED, closed_s=NOW_S)
    bed.culprits.turn()
    assert bed.writer.conditions == {}
    bed.put(Phase.RECOVERING)
    bed.culprits.turn()
    bed.put(Phase.RECOVERED)
    bed.culprits.turn()
    assert bed.writer.conditions == {}


def test_culprit__another_rank_is_named_and_the_first_one_is_not_any_more(bed: Bed) -> None:
    bed.put(Phase.OBSERVED)
    bed.culprits.turn()
    bed.put(Phase.OBSERVED, pod="j-3")
    bed.culprits.turn()
    assert list(bed.writer.conditions) == [("j-3", "u-j-3")]


def test_culprit__an_incident_that_was_deleted_leaves_no_condition(bed: Bed) -> None:
    bed.put(Phase.OBSERVED)
    bed.culprits.turn()
    bed.store.incidents.clear()
    bed.culprits.turn()
    assert bed.writer.conditions == {}


def test_culprit__what_could_not_be_written_is_written_later(bed: Bed) -> None:
    bed.put(Phase.OBSERVED)
    bed.writer.error = Unreachable("no answer")
    bed.culprits.turn()
    bed.writer.error = None
    bed.culprits.turn()
    assert len(bed.writer.conditions) == 1
    bed.put(Phase.OBSERVED, closed_s=NOW_S)
    bed.writer.error = Unreachable("no answer")
    bed.culprits.turn()
    bed.writer.error = None
    bed.culprits.turn()
    assert bed.writer.conditions == {}


@pytest.mark.parametrize(
    "error", [NotFound("gone"), Conflict("meanwhile"), ApiError("another pod of this name", 422)]
)
def test_culprit__a_pod_that_is_gone_is_not_asked_for_again(bed: Bed, error: Exception) -> None:
    bed.put(Phase.OBSERVED)
    bed.writer.error = error
    bed.culprits.turn()
    bed.culprits.turn()
    assert len(bed.writer.calls) == 1


def test_culprit__a_new_leader_removes_what_the_one_before_left(bed: Bed) -> None:
    bed.put(Phase.OBSERVED)
    bed.culprits.turn()
    bed.put(Phase.OBSERVED, closed_s=NOW_S - 10.0)
    bed.put(Phase.OBSERVED, name="old", pod="j-9", closed_s=NOW_S - 10_000.0)
    second = bed.leader()
    second.turn()
    second.turn()
    assert bed.writer.conditions == {}
    assert bed.writer.calls[1:] == [("j-2", "delete")]


def test_culprit__a_replica_that_does_not_lead_writes_nothing(bed: Bed) -> None:
    bed.put(Phase.OBSERVED)
    bed.leads = False
    bed.culprits.turn()
    assert bed.writer.calls == []
