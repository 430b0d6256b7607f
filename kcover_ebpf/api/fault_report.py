"""What an agent reports about one job on its node, as a controller reads it: `FaultReport`.

The schema, with a sentence about each field, is in charts/kcover-ebpf/crds. Ages are seconds before `time_s`, so
that the clocks of nodes need not agree (docs/decisions/0005). Times of the verdict are unix seconds by the node's
clock here, and relative to `time_s` only in the JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum
from typing import Any, TypeVar, cast

from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.codec import Codec, wire
from kcover_ebpf.api.log_report import ContainerLog
from kcover_ebpf.api.order import Verb
from kcover_ebpf.dataclass import dataclass, replace
from kcover_ebpf.errors import ObjectError
from kcover_ebpf.facts.python_stacks import PythonFrame
from kcover_ebpf.model.collective_counts import CollectiveCounts, Recordings
from kcover_ebpf.model.rank_snapshot import RankSnapshot
from kcover_ebpf.model.silence_summary import SilenceSummary, StartWait
from kcover_ebpf.model.verdict import Verdict

API_VERSION = "kcover.io/v1alpha1"


@dataclass(frozen=True, slots=True)
class ReportedJob:
    """The gang as its pods identify it; `selector` is evaluated by `job_kinds.selects`."""

    name: str
    selector: Mapping[str, str]
    kind: str | None = None


@dataclass(frozen=True, slots=True)
class PodRef:
    """A watched pod of the gang on this node."""

    name: str
    uid: str
    devices: tuple[str, ...] = ()
    """PCI addresses of the devices it uses."""


_T = TypeVar("_T")


class _ReportCodec(Codec):
    """Writes the times of a report's verdict relative to the report's own time, and reads them back."""

    def encode(self, value: object) -> dict[str, Any]:
        if type(value) is FaultReport and value.verdict is not None:
            value = replace(value, verdict=_rounded(value.verdict.shifted(-value.time_s)))
        return super().encode(value)

    def read(self, kind: type[_T], data: object) -> _T:
        found: Any = super().read(kind, data)
        if type(found) is FaultReport and found.verdict is not None:
            found = replace(found, verdict=found.verdict.shifted(found.time_s))
        return cast("_T", found)


def _rounded(relative_verdict: Verdict) -> Verdict:
    deadline_s, acts_at_s = relative_verdict.deadline_s, relative_verdict.acts_at_s
    return replace(
        relative_verdict,
        since_s=round(relative_verdict.since_s, 3),
        deadline_s=None if deadline_s is None else round(deadline_s, 1),
        acts_at_s=None if acts_at_s is None else round(acts_at_s, 1),
    )


REPORT = _ReportCodec(
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
"""JSON form of a report, wherever it is sent: the judge's own types have no JSON metadata."""


@dataclass(frozen=True, slots=True)
class PodPorts:
    """All TCP ports on which ranks, their children and their launchers listen in one pod."""

    pod_uid: str
    ports: tuple[int, ...] = ()
    """In ascending order, at most 64: a pod with more is not reported."""


@dataclass(frozen=True, slots=True)
class ReportedDeviceFault:
    """An announced fault of a device that has not been cleared."""

    device: str
    fault: str
    text: str
    uuid: str | None = None
    serial: str | None = None
    """Serial number of the board, from NVML; None if it was never read."""
    slot: str | None = None
    """Chassis slot, as the firmware numbers it; None if it does not."""
    fatal: bool = False
    """True if the jobs that use the device are lost."""
    unfit: bool = False
    """True if no job can use the device before it is reset or replaced; decisions about the node depend on this."""
    age_s: float | None = None
    pods: tuple[str, ...] = ()
    """Uids of the pods that use it."""


@dataclass(frozen=True, slots=True)
class OverPod:
    """A pod of the node that exceeded a bound: the excess is dropped or truncated."""

    namespace: str
    name: str
    uid: str
    what: tuple[str, ...]
    """Exceeded bounds, from `over_bounds.OF_PODS`; a newer agent may use other words."""


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
    """Path on the node of the evidence that was saved; None: none was."""
    pods: tuple[str, ...] = ()
    """For KillTerminating: uids of pods whose containers ran here and have no running process any more.

    Each process is gone, or a SIGKILL is pending for it, which takes effect before its next instruction.
    """


@dataclass(frozen=True, slots=True)
class FaultReport:
    """What one node observes of one job, or of itself (`job` is None)."""

    node: str
    time_s: float = field(metadata=wire("time", time=True))
    """Time of the report (unix seconds, clock of the node)."""
    sequence: int
    agent: str | None = None
    expires_after_s: int = field(default=90)
    job: ReportedJob | None = None
    pods: tuple[PodRef, ...] = ()
    suspicious: bool = False
    """True once no rank on this node has made progress for longer than its longest healthy gap.

    Ranks attached while this is False: progress unknown.
    """
    trained: bool = False
    start_wait: StartWait | None = None
    """How its ranks wait for others before the first step; None while one of them does not, and from agents that do not
    report it."""
    resumed_age_s: float | None = None
    """Seconds since a stopped or frozen rank here was resumed; None if none was, or from agents that do not report
    it.
    """
    verdict: Verdict | None = None
    """Verdict of this node alone, by the clock of `time_s`."""
    ranks: tuple[RankSnapshot, ...] = ()
    knows_waits: bool = False
    """True if waits were seen to end while the ranks here trained, so that a new kind of wait is suspicious."""
    knows_cadence: bool = False
    """True if the thresholds of the ranks here are based on observed steps."""
    silences: SilenceSummary | None = None
    """Silences that the ranks here recovered from by themselves; None from agents that keep no record."""
    lossy: bool = False
    """True if a link between ranks here loses packets while others do not."""
    listens: tuple[PodPorts, ...] = ()
    """Ports of the pods whose ranks have snapshots here; a pod whose connections were not all read is left out."""
    collectives: CollectiveCounts | None = None
    """Collective counts from NCCL; None while it was not asked, or has not answered yet."""
    recorders: Recordings | None = None
    """Records of flight recorders; None if no rank here has one, or none was asked."""
    logs: tuple[ContainerLog, ...] = ()
    """Findings in the logs of its containers, while the job has a fault and for a while after."""
    devices: tuple[ReportedDeviceFault, ...] = ()
    over: tuple[OverPod, ...] = ()
    """Pods that exceeded a bound in the last minutes; only in a node's report about itself."""
    acks: tuple[Ack, ...] = field(default=(), metadata=wire("acks", lenient=True))

    @property
    def is_urgent(self) -> bool:
        """True if the ranks have stalled, or the node has found a fault by other means than silence."""
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
    """When the object was last written, by the API server's clock, to the second; None if unknown."""
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
    """The FaultReport object; it is owned by pods, so it is deleted with the last of them."""
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
