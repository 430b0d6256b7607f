"""The scorecard of a drill: was the fault detected, was the right culprit named, and when did the job train again.

Pure.
"""

from __future__ import annotations

from kcover_ebpf.api.drill import DrillFault, DrillOver, Injected
from kcover_ebpf.api.incident import Incident, Phase, Status
from kcover_ebpf.api.pods import Pod
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.model.verdict import VerdictKind


@dataclass(frozen=True, slots=True)
class Scorecard:
    """Seconds since the fault was injected, by the clocks of node and controller; fields are the keys of `-o json`."""

    fault: str
    pod: str
    node: str
    pid: int
    rank: int | None
    incident: str | None = None
    """Name of the incident; None if no incident reports the fault."""
    verdict: str | None = None
    cause: str | None = None
    failure: str | None = None
    """Class of the failure in the incident: hardware, program ..."""
    named_after_s: float | None = None
    """Seconds until a culprit was named; None if none was."""
    right: bool | None = None
    """Whether the culprit is the pod (and rank) that was hit, or one of two that may be, or the lost link one that ends
    at it; None if no culprit was named."""
    stopped_after_s: float | None = None
    """Seconds until all ranks were being shut down for a restart; None if they were not."""
    running_after_s: float | None = None
    training_after_s: float | None = None
    outcome: str = ""
    """Phase of the incident, with its message."""
    fault_end: str | None = None
    """How the injected fault ended; None if unknown."""

    @property
    def passed(self) -> bool:
        """True if the right pod was named, and the job was restarted or was not to be."""
        return self.right is True and not self.outcome.startswith(Phase.FAILED.value)


def score(
    injected: Injected,
    pod: Pod,
    incident: Incident | None,
    over: DrillOver | None,
) -> Scorecard:
    """The result of a fault in this pod.

    `incident`: the one that was created or changed since; None if there is none.
    """
    hit = Scorecard(
        fault=injected.fault.value,
        pod=pod.name,
        node=pod.node,
        pid=injected.pid,
        rank=injected.rank,
        fault_end=over.end.value if over is not None else None,
    )
    status = incident.status if incident is not None else None
    if incident is None or status is None:
        return hit
    right = _is_right(injected, pod, status)
    return Scorecard(
        fault=hit.fault,
        pod=hit.pod,
        node=hit.node,
        pid=hit.pid,
        rank=hit.rank,
        incident=incident.name,
        verdict=status.kind.value if status.kind is not None else None,
        cause=status.cause.value if status.cause is not None else None,
        failure=status.failure.value if status.failure is not None else None,
        named_after_s=_after(status, injected, Phase.OPEN) if right is not None else None,
        right=right,
        stopped_after_s=_after(status, injected, Phase.SHUTTING_DOWN),
        running_after_s=_after(status, injected, Phase.RECOVERING),
        training_after_s=_after(status, injected, Phase.RECOVERED),
        outcome=f"{status.phase.value}: {status.message}",
        fault_end=hit.fault_end,
    )


def _is_right(injected: Injected, pod: Pod, status: Status) -> bool | None:
    culprit = status.culprit
    if culprit is not None and None not in (culprit.or_rank, injected.rank):
        return injected.rank in (culprit.rank, culprit.or_rank)
    if culprit is not None and culprit.pod is not None:
        ranks = {culprit.rank, injected.rank}
        return culprit.pod == pod.name and (None in ranks or len(ranks) == 1)
    # if two pods cannot reach each other neither is the culprit: the ends of the link are named
    ends = f"({pod.address}:", f"([{pod.address}]:"
    is_at_end = any(end in item.text for item in status.evidence for end in ends)
    is_link = status.kind is VerdictKind.LOST_LINK and injected.fault is DrillFault.PARTITION
    return True if pod.address and is_link and is_at_end else None


def _after(status: Status, injected: Injected, phase: Phase) -> float | None:
    """Seconds from the fault until the phase was first entered; the clocks of two machines may differ a little."""
    times = [moment.time_s for moment in status.timeline if moment.phase == phase.value]
    after = [time_s - injected.time_s for time_s in times]
    later = [value for value in after if value > -1.0]
    return max(0.0, min(later)) if later else None
