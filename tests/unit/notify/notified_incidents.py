"""Incidents of which messages are made."""

from __future__ import annotations

from dataclasses import replace

from kcover_ebpf.api.incident import Incident, JobRef, Lost, Phase, Status
from kcover_ebpf.model.verdict import Cause, Culprit, FailureClass, Verdict, VerdictKind

JOB = JobRef("PyTorchJob", "llm", "ju", "kubeflow.org/v1")
BEGUN = Status(
    Phase.OPEN,
    verdict=Verdict(
        kind=VerdictKind.HUNG,
        cause=Cause.STOPPED,
        since_s=1_700_000_000.0,
        culprit=Culprit(rank=2, pod="llm-2", node="n7", device="0000:5d:00.0"),
    ),
    failure=FailureClass.HARDWARE,
    lost=Lost(detect_s=2.0, shut_down_s=10.5),
    owner="ada@example.com",
)


def status(phase: Phase = Phase.RECOVERED, text: str = "the ranks are making progress", **more):
    return replace(BEGUN, **more).enter(phase, 1_700_000_013.0, text)


def incident(name: str = "llm-1", namespace: str = "ml", **more) -> Incident:
    return Incident(namespace, name, JOB, {"k": "v"}, policy="p", uid=f"uid-{name}", **more)
