"""Finds ranks that ended and were restarted by their kubelets without any report: read from their pods afterwards.

A report describes the present. If a rank dies while its node has no agent, or is restarted before a controller leads,
no report mentions it by then. The last state of its container still does.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence

from kcover_ebpf.api.job_kinds import must_train, with_ranks
from kcover_ebpf.api.pods import ContainerEnd, Pod
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.diagnosis.failures.exits import cause_of_signal
from kcover_ebpf.model.verdict import Cause, Culprit, Evidence, EvidenceKind, Verdict, VerdictKind
from kcover_ebpf.tunables.recovery import (
    END_AFTER_INCIDENT_S,
    END_BEFORE_INCIDENT_S,
    END_RAN_S,
    END_RECORDED_S,
    END_REPORTED_S,
    ENDS_TOGETHER_S,
)

Span = tuple[float, float]
"""Unix seconds by the controller's clock: from the fault of an incident until its last change."""
_REQUESTED = (signal.SIGINT, signal.SIGTERM)
_WHOLE_POD = "RestartingAllContainers"
"""Reason that the kubelet gives if a rule of a container had the whole pod restarted. Kubernetes 1.36 then leaves out
both times, and reports every container, whether it had failed or not, as killed (measured)."""


@dataclass(frozen=True, slots=True)
class _Ended:
    pod: Pod
    end: ContainerEnd
    at_s: float

    @property
    def signal(self) -> int:
        """Number of the signal; 0 if it ended by itself, or if that is unknown."""
        by_signal = 128 < self.end.code < 128 + signal.NSIG and self.end.reason != _WHOLE_POD
        return self.end.code - 128 if by_signal else 0

    @property
    def cause(self) -> Cause:
        if self.end.reason == _WHOLE_POD:
            return Cause.UNKNOWN
        if self.end.reason == "OOMKilled":
            return Cause.OOM_KILLED
        return cause_of_signal(self.signal) if self.signal else Cause.EXITED


def unreported(
    job: str, pods: Sequence[Pod], incidents: Sequence[Span], now_s: float
) -> Verdict | None:
    """The newest crash that none of the job's incidents covers; None if there is none.

    Only containers that run again count: one that was not restarted can still be reported.
    """
    by_time = sorted(
        (
            ended
            for pod in pods
            if must_train(pod) and pod.deleted_s is None
            for ended in _ended(pod)
            if END_REPORTED_S <= now_s - ended.at_s < END_RECORDED_S
            and not any(
                began_s - END_BEFORE_INCIDENT_S <= ended.at_s <= last_s + END_AFTER_INCIDENT_S
                for began_s, last_s in incidents
            )
        ),
        key=lambda ended: -ended.at_s,
    )
    together = list(_together(by_time))
    return _verdict(job, together, now_s) if together else None


def _ended(pod: Pod) -> Iterator[_Ended]:
    for container in with_ranks(pod):
        end = container.last_end
        if container.started_s is None or end is None or end.code == 0:
            continue
        # the kubelet restarts a whole pod at once
        at_s = container.started_s if end.reason == _WHOLE_POD else end.time_s
        ended = None if at_s is None else _Ended(pod, end, at_s)
        # a container that ends at once has started no rank; the drain of a node sends SIGTERM
        if (
            ended
            and ended.signal not in _REQUESTED
            and (end.ran_s is None or end.ran_s >= END_RAN_S)
        ):
            yield ended


def _together(ended: Sequence[_Ended]) -> Iterator[_Ended]:
    """The newest end, and those before it that are close enough to each other to be one crash."""
    previous_ended: _Ended | None = None
    for earlier in ended:
        if previous_ended is not None and previous_ended.at_s - earlier.at_s > ENDS_TOGETHER_S:
            return
        yield earlier
        previous_ended = earlier


def _verdict(job: str, together: Sequence[_Ended], now_s: float) -> Verdict:
    """A rank killed by a signal did not end because of a lost peer; of several such ranks none is named."""
    by_signal = [ended for ended in together if ended.signal]
    first = min(by_signal or together, key=lambda ended: ended.at_s)
    alike = by_signal or [ended for ended in together if ended.at_s - first.at_s <= 1.0]
    pod = first.pod
    culprit = None
    if {ended.pod.uid for ended in alike} == {pod.uid}:
        culprit = Culprit(pod=pod.name, pod_uid=pod.uid, node=pod.node or None)
    return Verdict(
        job=job,
        incident="",
        kind=VerdictKind.CRASHED,
        cause=first.cause,
        time_s=now_s,
        since_s=min(ended.at_s for ended in together),
        culprit=culprit,
        evidence=tuple(_evidence(ended) for ended in reversed(together)),
    )


def _evidence(ended: _Ended) -> Evidence:
    pod, end = ended.pod, ended.end
    if end.reason == _WHOLE_POD:
        text = f"the kubelet has restarted pod {pod.name}, because a container of it had failed"
    else:
        how = f"exit code {end.code}" + (f" ({end.reason})" if end.reason else "")
        text = f"the kubelet says that the container of pod {pod.name} ended with {how}, and runs again"
    return Evidence(EvidenceKind.EVENT, text, ended.pod.node or None)
