"""The nodes that new pods of a job avoid: noted on its incident, and lifted again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.fault_policy import Avoidance, AvoidMode, FaultPolicy
from kcover_ebpf.api.incident import (
    Incident,
    JobRef,
    Phase,
    RestartAction,
    RestartMethod,
    Status,
    object_of,
    status_of,
)
from kcover_ebpf.api.node_health import NodeHealth, ReceivedHealth
from kcover_ebpf.controller.api_writer import ApiWriter
from kcover_ebpf.controller.avoidance import NodeAvoidance
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.facts.health import Result
from kcover_ebpf.model.verdict import Cause, Culprit, Verdict, VerdictKind
from kcover_ebpf.recovery.restart.machine import RestartContext
from tests.unit.support.guard_inputs import world
from tests.unit.support.judged import judged

NOW_S = 1_767_225_600.0


class FakeIncidents:
    """Keeps the labels and annotations of one incident."""

    def __init__(self, made: Incident) -> None:
        self.raw = object_of(made) | {"status": status_of(made.status or Status(Phase.OPEN))}
        self.raw["metadata"] |= {"uid": made.uid, "resourceVersion": "1", "annotations": {}}

    def merge_patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        assert path.endswith("/incidents/i")
        metadata, patch = self.raw["metadata"], body["metadata"]
        assert patch["resourceVersion"] == metadata["resourceVersion"]
        for part in ("labels", "annotations"):
            values = metadata[part] | patch[part]
            metadata[part] = {key: value for key, value in values.items() if value is not None}
        metadata["resourceVersion"] = str(int(metadata["resourceVersion"]) + 1)
        return self.raw


class Bed:
    def __init__(self, cause: Cause = Cause.DEVICE, **culprit: Any) -> None:
        self.now_s = NOW_S
        action = RestartAction(RestartMethod.REPLACE, "Suspend", 1, NOW_S)
        status = Status(
            Phase.SHUTTING_DOWN,
            verdict=Verdict(VerdictKind.DEVICE_FAULT, cause, culprit=Culprit(**culprit)),
            action=action,
        ).enter(Phase.SHUTTING_DOWN, NOW_S, "")
        made = Incident("ns", "i", JobRef("Job", "j", "u"), {"a": "b"}, status=status, uid="iu")
        made = replace(made, resource_version="1")
        self.server = FakeIncidents(made)
        self.cache = ObjectCache(lambda _: None, wall=lambda: self.now_s)
        self.cache.put(made)
        writer = ApiWriter(self.server, lambda *_: None, lambda: True)  # type: ignore[arg-type]
        self.avoidance = NodeAvoidance(self.cache, writer)
        self.context = RestartContext(status, world(), FaultPolicy(), "i", "ns/i")

    @property
    def incident(self) -> Incident:
        return self.cache.incidents["ns", "i"]

    def begin(self, mode: AvoidMode = AvoidMode.SOFT) -> Incident:
        policy = FaultPolicy(avoid=Avoidance(mode, 100))
        return self.avoidance.begin(self.incident, self.context, policy)

    @property
    def written(self) -> tuple[str | None, str | None]:
        metadata = self.server.raw["metadata"]
        nodes = metadata["annotations"].get("kcover.io/avoid-nodes")
        return metadata["labels"].get("kcover.io/avoid"), nodes


@pytest.mark.parametrize("mode", [AvoidMode.SOFT, AvoidMode.HARD])
def test_avoidance__the_node_of_a_faulty_device_is_avoided_for_a_time(mode: AvoidMode) -> None:
    bed = Bed(node="n1", device="gpu-0")
    assert bed.begin(mode).avoids == ("n1",)
    assert bed.written == (mode.value, "n1")
    assert bed.incident.avoids_until_s == NOW_S + 100
    version = bed.server.raw["metadata"]["resourceVersion"]
    bed.begin(mode)
    assert bed.server.raw["metadata"]["resourceVersion"] == version, "it is written once"
    bed.now_s += 99
    bed.avoidance.lift(bed.incident)
    assert list(bed.incident.avoids) == ["n1"]
    bed.now_s += 2
    bed.avoidance.lift(bed.incident)
    assert list(bed.incident.avoids) == []
    assert bed.server.raw["metadata"]["labels"].get("kcover.io/avoid") is None


NOTHING: dict[str, tuple[Bed, AvoidMode]] = {
    "the policy wants none": (Bed(node="n1", device="gpu-0"), AvoidMode.OFF),
    "a program that hangs anywhere": (Bed(Cause.STOPPED, node="n1", pod="p"), AvoidMode.HARD),
    "no one knows which node": (Bed(device="gpu-0"), AvoidMode.HARD),
}


@pytest.mark.parametrize("case", NOTHING)
def test_avoidance__nothing_is_avoided_without_a_reason(case: str) -> None:
    bed, mode = NOTHING[case]
    assert bed.begin(mode).avoids == ()
    assert bed.written == (None, None)


def test_avoidance__a_second_node_is_avoided_with_the_first() -> None:
    bed = Bed(Cause.DRIVER_STUCK, node="n1")
    bed.begin()
    status = judged(bed.context.status, culprit=Culprit(node="n2", device="gpu-1"))
    bed.context = replace(bed.context, status=status)
    assert bed.begin().avoids == ("n1", "n2")


@pytest.mark.parametrize(
    ("result", "rounds", "after_s", "lifted"),
    [
        (Result.PASS, 3, 10.0, True),
        (Result.PASS, 2, 10.0, False),
        (Result.PASS, 9, -10.0, False),
        (Result.FAIL, 3, 10.0, False),
    ],
)
def test_avoidance__inspections_that_were_clean_since_lift_it(
    result: Result, rounds: int, after_s: float, lifted: bool
) -> None:
    bed = Bed(node="n1", device="gpu-0")
    bed.begin()
    bed.now_s += 50
    health = NodeHealth(
        node="n1",
        time_s=bed.now_s,
        expires_after_s=600,
        boot_id="b",
        result=result,
        since_s=NOW_S,
        clean_rounds=rounds,
        clean_since_s=NOW_S + after_s,
    )
    bed.cache.healths["n1"] = ReceivedHealth(health, bed.now_s)
    bed.avoidance.lift(bed.incident)
    assert (bed.incident.avoids == ()) is lifted


def test_avoidance__the_time_is_written_for_people() -> None:
    bed = Bed(node="n1", device="gpu-0")
    bed.begin()
    text = bed.server.raw["metadata"]["annotations"]["kcover.io/avoid-until"]
    assert rfc3339.from_text(text) == NOW_S + 100
