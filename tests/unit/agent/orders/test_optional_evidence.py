"""What an operator has to want: checkpoints by the kubelet, and kernels of GPUs, which a stop waits for."""

from __future__ import annotations

import threading
import time

import pytest

from kcover_ebpf.agent.orders import optional_evidence
from kcover_ebpf.agent.orders.evidence_thread import EvidenceRequest
from kcover_ebpf.agent.orders.optional_evidence import OptionalEvidence, OptionalReadings
from kcover_ebpf.agent.orders.order_scope import checkpointed
from kcover_ebpf.api.job_kinds import Gang, GangId
from kcover_ebpf.api.order import Verb
from kcover_ebpf.api.pods import Pod, pod_of
from kcover_ebpf.errors import ApiError
from kcover_ebpf.model.traced import GpuKernel
from kcover_ebpf.tunables.agent import GPU_DUMP_WAIT_S

GANG = Gang(GangId.of("ml", {"job": "llm"}), "llm", "Job")
SPIN = GpuKernel(0, "spin", "active", pid=7)
CANNOT = "the kubelet answers 500: CRIU is not installed"


def request(verb: Verb = Verb.SNAPSHOT, *wanted: tuple[str, str]) -> EvidenceRequest:
    return EvidenceRequest(GANG, "llm-1", verb, (), {}, checkpointed=wanted)


class FakeKubelet:
    """Writes a checkpoint of llm-0, cannot write one of llm-1, and is never done with llm-2."""

    def __init__(self) -> None:
        self.never = threading.Event()

    def checkpoint(self, namespace: str, pod: str, container: str, _: float) -> tuple[str, ...]:
        if pod == "llm-1":
            raise ApiError(CANNOT)
        if pod == "llm-2":
            self.never.wait(20)
        return (f"/checkpoints/{namespace}-{pod}-{container}.tar",)


def read(evidence: OptionalEvidence, asked: EvidenceRequest) -> OptionalReadings:
    return evidence.begin(asked)({7: 3}, time.monotonic() + 0.3)


def test_optional_evidence__a_checkpoint_that_cannot_be_had_is_said_with_the_reason() -> None:
    kubelet = FakeKubelet()
    pods = [(f"llm-{number}", "main") for number in range(3)]
    try:
        found = read(OptionalEvidence(checkpoint=kubelet.checkpoint), request(Verb.SNAPSHOT, *pods))
    finally:
        kubelet.never.set()
    assert found.checkpoints == ("llm-0/main: /checkpoints/ml-llm-0-main.tar",)
    assert found.unobserved == [
        f"checkpoint of llm-1/main ({CANNOT})",
        "checkpoint of llm-2/main (the kubelet is still writing it to its folder checkpoints)",
    ]


def test_optional_evidence__what_is_not_wanted_is_neither_read_nor_missed() -> None:
    found = read(OptionalEvidence(), request(Verb.SNAPSHOT, ("llm-0", "main")))
    assert found == OptionalReadings()
    found = read(
        OptionalEvidence(checkpoint=FakeKubelet().checkpoint), request(Verb.STOP, ("llm-0", "main"))
    )
    assert found == OptionalReadings()


def test_optional_evidence__kernels_are_read_before_a_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits: list[float] = []

    class FakeKernels:
        def __init__(self, _: object, limit_s: float) -> None:
            limits.append(limit_s)

        def finish(self, *_: object) -> tuple[tuple[GpuKernel, ...], list[str]]:
            return (SPIN,), ["kernels of the GPU of pid 8 (no dump was written in time)"]

    monkeypatch.setattr(optional_evidence, "KernelReading", FakeKernels)
    evidence = OptionalEvidence(gpu_core_dumps=True)
    evidence.before_stop(request(Verb.STOP))
    found = read(evidence, request(Verb.STOP))
    assert [(kernel.name, kernel.rank) for kernel in found.kernels] == [("spin", 3)]
    assert found.unobserved == ["kernels of the GPU of pid 8 (no dump was written in time)"]
    assert limits == [GPU_DUMP_WAIT_S], "ranks that are stopped are not asked"
    assert read(evidence, request(Verb.STOP)) == OptionalReadings(), "each stop has its own"


def pods(**labels: str) -> list[Pod]:
    containers = [{"name": "main"}, {"name": "log"}]
    metadata = {"namespace": "ml", "name": "llm-0", "uid": "u", "labels": labels}
    return [pod_of({"metadata": metadata, "spec": {"containers": containers}, "status": {}})]


@pytest.mark.parametrize(
    ("label", "phase", "wanted"),
    [
        ("true", "Observed", (("llm-0", "main"), ("llm-0", "log"))),
        ("false", "Observed", ()),
        ("true", "ShuttingDown", ()),
    ],
)
def test_checkpointed__pods_that_ask_for_it_and_are_not_about_to_be_ended(
    label: str, phase: str, wanted: tuple[tuple[str, str], ...]
) -> None:
    assert checkpointed(pods(**{"kcover.io/checkpoint": label}), phase) == wanted
