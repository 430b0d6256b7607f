"""What the GPUs of the ranks are used for, as evidence: one clock with silence, and never alone a reason to act."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.api.fault_report import REPORT, FaultReport
from kcover_ebpf.diagnosis.clock.certainty import certainty_of
from kcover_ebpf.diagnosis.decisions import decide
from kcover_ebpf.diagnosis.evidence import evidence
from kcover_ebpf.facts.devices import GpuSeen, GpuUse
from kcover_ebpf.gang.rank_report import carrying
from kcover_ebpf.ids import Pid
from kcover_ebpf.model.rank_snapshot import GpuSnapshot
from kcover_ebpf.model.verdict import Cause, Certainty, Culprit, Evidence, EvidenceKind, VerdictKind
from kcover_ebpf.settings import Act
from tests.unit.support.gpu_ranks import Gpu
from tests.unit.support.report_builders import NOW_S, rank
from tests.unit.support.scripted_job import Stage

LOW = GpuSnapshot(("0000:5d:00.0",), GpuUse.LOW_POWER, 12.0, 150.0)
IDLE = GpuSnapshot(("0000:5e:00.0",), GpuUse.IDLE, 9.0, 71.0)
WORKING = GpuSnapshot(("0000:5f:00.0",), GpuUse.WORKING, 90.0, 640.0)


@pytest.mark.parametrize(
    ("kinds", "enough"),
    [
        ({EvidenceKind.GPU}, False),
        ({EvidenceKind.GPU, EvidenceKind.TIME, EvidenceKind.SINK, EvidenceKind.PEERS}, False),
        ({EvidenceKind.GPU, EvidenceKind.STATE}, True),  # as time and a state
    ],
)
def test_certainty__an_idle_gpu_is_silence(kinds: set[EvidenceKind], enough: bool) -> None:
    said = [Evidence(kind, "text") for kind in kinds]
    found = certainty_of(VerdictKind.HUNG, Cause.BLOCKED_LOCK, Culprit(1), said)
    assert (found is Certainty.PROVEN) is enough


def test_gpus__the_gpu_of_the_culprit_is_shown_apart() -> None:
    culprit = rank(0, pid=7, gpu=IDLE)
    others = {1: LOW, 2: LOW, 3: WORKING, 4: None}
    ranks = [culprit, *(rank(at, pid=10 + at, gpu=gpu) for at, gpu in others.items())]
    (one,) = evidence.gpus(ranks, culprit)
    assert one.kind is EvidenceKind.GPU
    assert one.text == (
        "GPU 0000:5e:00.0 of rank 0 has been idle for 9.0 s (71 W); "
        "the GPUs of 2 of 3 other ranks are busy at low power"
    )
    assert [gpu.text for gpu in evidence.gpus(ranks)] == [
        "the GPUs of 1 of 4 ranks are idle; the GPUs of 2 of 4 ranks are busy at low power"
    ]


def test_gpus__that_work_or_changed_a_moment_ago_are_no_evidence() -> None:
    just = replace(LOW, use_age_s=4.9)
    unknown = replace(LOW, use=GpuUse.UNKNOWN)
    assert (
        evidence.gpus(
            [rank(at, pid=at, gpu=gpu) for at, gpu in enumerate((just, WORKING, unknown))]
        )
        == []
    )


def read(stage: Stage, use: GpuUse, since_ns: int) -> None:
    for proc in stage.procs.values():
        stage.feed(GpuSeen(stage.now_ns, Pid(proc.pid), ("0000:5d:00.0",), use, since_ns))


def test_gpu_evidence__ranks_that_wait_for_their_devices_with_gpus_at_low_power_are_reported_only() -> (
    None
):
    gpu = Gpu()
    gpu.spend(300)
    gpu.stuck = set(range(8))
    since_ns = gpu.stage.now_ns
    for _ in range(90):
        read(gpu.stage, GpuUse.LOW_POWER, since_ns)
        gpu.spend(1)
    verdict = gpu.stage.verdicts[-1]
    assert (verdict.kind, verdict.cause) == (VerdictKind.HUNG, Cause.DEVICE_WAIT)
    assert [
        other_evidence.text
        for other_evidence in verdict.evidence
        if other_evidence.kind is EvidenceKind.GPU
    ] == ["the GPUs of 8 of 8 ranks are busy at low power"]
    assert decide(verdict, Act.RESTART).act is Act.SNAPSHOT


def test_carrying__a_report_carries_it() -> None:
    gpu = Gpu()
    gpu.spend(20)
    read(gpu.stage, GpuUse.MEMORY_HELD, gpu.stage.now_ns)
    pods = {Pid(proc.pid): "uid" for proc in gpu.stage.procs.values()}
    report = carrying(FaultReport("n", NOW_S, 1), gpu.stage.job.snapshot(), pods)
    again = REPORT.decode(FaultReport, REPORT.encode(report))
    assert again.ranks[0].gpu is not None
    assert (again.ranks[0].gpu.use, again.ranks[0].gpu.devices) == (
        GpuUse.MEMORY_HELD,
        ("0000:5d:00.0",),
    )
    newer = REPORT.encode(report)
    newer["ranks"][0]["gpu"]["use"] = "of a newer agent"
    assert REPORT.decode(FaultReport, newer).ranks[0].gpu == replace(
        again.ranks[0].gpu, use=GpuUse.UNKNOWN
    )
