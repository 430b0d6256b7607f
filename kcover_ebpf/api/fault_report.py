"""What an agent says about one job on its node, and what a controller hears: `FaultReport`.

The schema, with a sentence about each field, is charts/kcover-ebpf/crds. Ages are seconds before
`time_s`, so that the clocks of nodes need not agree (docs/decisions/0005).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum
from typing import Any

from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.codec import Codec, wire
from kcover_ebpf.api.log_report import ContainerLog
from kcover_ebpf.api.order import Verb
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import ObjectError
from kcover_ebpf.facts.python_stacks import PythonFrame
from kcover_ebpf.model.collective_counts import CollectiveCounts, Recordings
from kcover_ebpf.model.rank_snapshot import RankSnapshot
from kcover_ebpf.model.silence_summary import SilenceSummary
from kcover_ebpf.model.verdict import Verdict

API_VERSION = "kcover.io/v1alpha1"


@dataclass(frozen=True, slots=True)
class ReportedJob:
    """The gang as its pods name it; `selector` is understood by `job_kinds.selects`."""

    name: str
    selector: Mapping[str, str]
    kind: str | None = None


@dataclass(frozen=True, slots=True)
class PodRef:
    """A watched pod of the gang on this node."""

    name: str
    uid: str
    devices: tuple[str, ...] = ()
    """PCI addresses of the devices it holds."""


REPORT = Codec(
    {
        Verdict: {
            "kind": wire("verdict"),
            "since_s": wire("ageS", ago=True),
            "acts_at_s": wire("actsInS"),
            "evidence": wire("evidence", lenient=True),
        }
        | dict.fromkeys(("job", "incident", "time_s", "victims", "waits"), wire(None)),
        RankSnapshot: {"thread_read": wire("inspected")},
        PythonFrame: {"is_library": wire("library")},
    }
)
"""The form of a report, wherever it goes: the judge's own types know nothing of JSON."""


@dataclass(frozen=True, slots=True)
class ReportedDeviceFault:
    """An announced fault of a device that has not been cleared."""

    device: str
    fault: str
    text: str
    uuid: str | None = None
    serial: str | None = None
    """Of the board, by NVML; None where it was never read."""
    slot: str | None = None
    """Of the chassis, as the firmware numbers it; None where it does not."""
    fatal: bool = False
    """The jobs that hold the device are lost."""
    unfit: bool = False
    """No job can use the device before it was reset or replaced: what decisions about the node go by."""
    age_s: float | None = None
    pods: tuple[str, ...] = ()
    """uids of pods that hold it."""


@dataclass(frozen=True, slots=True)
class OverPod:
    """A pod of the node of which something is over its bound: that is not kept, or not whole."""

    namespace: str
    name: str
    uid: str
    what: tuple[str, ...]
    """Words of `over_bounds.OF_PODS`; a newer agent may know others."""


class AckResult(Enum):
    """How an order ended."""

    DONE = "Done"
    PARTIAL = "Partial"
    REFUSED = "Refused"


@dataclass(frozen=True, slots=True)
class Ack:
    """An order that was carried out."""

    order: str
    verb: Verb
    result: AckResult
    processes: int | None = None
    text: str | None = None
    bundle: str | None = None
    """Path on the node of the evidence that was kept."""
    pods: tuple[str, ...] = ()
    """Of a KillTerminating: uids of the pods whose containers ran here and of which no process computes any more: each
    is gone, or a SIGKILL is pending for it, which it sees before its next instruction."""


@dataclass(frozen=True, slots=True)
class FaultReport:
    """What one node sees of one job, or of itself (`job` is None)."""

    node: str
    time_s: float = field(metadata=wire("time", time=True))
    """Unix seconds, by the clock of the node."""
    sequence: int
    agent: str | None = None
    expires_after_s: int = field(default=90)
    job: ReportedJob | None = None
    pods: tuple[PodRef, ...] = ()
    suspicious: bool = False
    """The job has stalled: no rank here has made progress for longer than ever while healthy, and one would have
    shown it. A snapshot in a report that is not suspicious: it is unknown whether its ranks make progress."""
    trained: bool = False
    resumed_age_s: float | None = None
    """Since a rank here that was stopped or frozen was resumed; None if none was, and from agents that do not say."""
    verdict: Verdict | None = None
    """Of this node alone; its times are seconds after `time_s`."""
    ranks: tuple[RankSnapshot, ...] = ()
    knows_waits: bool = False
    """Waits were seen to end while the ranks here trained, so that one that never was is new."""
    knows_cadence: bool = False
    """The thresholds of the ranks here rest on steps that were seen."""
    silences: SilenceSummary | None = None
    """What the ranks here recovered from by themselves; None from agents that keep no record."""
    lossy: bool = False
    """A link between ranks here loses packets, and others get through."""
    collectives: CollectiveCounts | None = None
    """None while NCCL was not asked, or has not answered yet."""
    recorders: Recordings | None = None
    """None where no rank here has one, or none was asked."""
    logs: tuple[ContainerLog, ...] = ()
    """What the logs of its containers show; while the job has a fault, and a while after."""
    devices: tuple[ReportedDeviceFault, ...] = ()
    over: tuple[OverPod, ...] = ()
    """In the report of a node about itself: those of the last minutes."""
    acks: tuple[Ack, ...] = field(default=(), metadata=wire("acks", lenient=True))

    @property
    def is_urgent(self) -> bool:
        """True where the ranks have stalled, or the node has found a fault by other means than silence."""
        return self.suspicious or (self.verdict is not None and self.verdict.kind.is_fault)


def report_of(api: Mapping[str, Any]) -> FaultReport:
    """The report in a FaultReport object; raises `ObjectError`."""
    metadata = api.get("metadata")
    name = metadata.get("name", "?") if isinstance(metadata, Mapping) else "?"
    try:
        return REPORT.decode(FaultReport, api.get("spec"), "spec")
    except ObjectError as error:
        raise ObjectError(f"FaultReport {name}: {error}") from error


def written_s(metadata: Mapping[str, Any]) -> float | None:
    """When the object was written last, by the API server's clock, to the second; None if it does not say."""
    found = []
    writers = metadata.get("managedFields")
    for writer in writers if isinstance(writers, list) else ():
        try:
            found.append(rfc3339.from_text(str(writer["time"])))
        except (ValueError, KeyError, TypeError):
            continue
    return max(found, default=None)


def object_of(
    report: FaultReport, namespace: str, name: str, owners: tuple[PodRef, ...] = ()
) -> dict[str, Any]:
    """The FaultReport object; it is owned by pods, so it goes when the last of them does."""
    metadata: dict[str, Any] = {"name": name, "namespace": namespace}
    if owners:
        metadata["ownerReferences"] = [
            {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid} for pod in owners
        ]
    return {
        "apiVersion": API_VERSION,
        "kind": "FaultReport",
        "metadata": metadata,
        "spec": REPORT.encode(report),
    }
