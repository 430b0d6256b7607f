"""The controller's verdict on a job that it watches: that of the job's open Incident. Pure."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kcover_ebpf.api.incident import Incident, Phase, Status, incident_of
from kcover_ebpf.api.job_kinds import Gang
from kcover_ebpf.errors import ObjectError
from kcover_ebpf.gang.gang_input import GangVerdict
from kcover_ebpf.gang.gang_snapshot import ReceivedReport
from kcover_ebpf.recovery import closing


def verdict_in(
    listed: Iterable[Mapping[str, Any]], gang: Gang, seen: Sequence[ReceivedReport], now_s: float
) -> GangVerdict | None:
    """The verdict of the open Incident; None if the job has none.

    `listed`: the Incidents of its namespace; `seen`: what its nodes reported; `now_s`: unix seconds.
    """
    fresh = [received for received in seen if not received.is_stale(now_s)]
    found = []
    for raw in listed:
        with contextlib.suppress(ObjectError):
            incident = incident_of(raw)
            status = incident.status
            if incident.gang == gang.id and status is not None and _is_open(status, fresh):
                found.append((not status.phase.is_over, status.last_s, incident, status))
    if not found:
        return None
    *_, incident, status = max(found, key=lambda pair: pair[:2])
    return _verdict(incident, status, f"{gang.namespace}/{gang.name}", now_s)


def _is_open(status: Status, fresh: Sequence[ReceivedReport]) -> bool:
    # a restarting job is a later attempt than the one that the Incident is about
    if status.is_closed or status.phase is Phase.RECOVERING:
        return False
    # the controller closes it for the same reason, but not at once
    return not fresh or closing.why_calm(status, fresh) is None


def _verdict(incident: Incident, status: Status, job: str, now_s: float) -> GangVerdict | None:
    if status.verdict is None:
        return None
    return GangVerdict(replace(status.verdict, time_s=now_s, job=job, incident=incident.name))
