"""One verdict of a job whose nodes were traced at once: judged as the controller judges their agents' reports.

Each node sends the snapshot of its ranks as a report. What the client knows by itself, which node it asked and which
pods are there, is not taken from the report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kcover_ebpf.api.fault_report import REPORT, FaultReport
from kcover_ebpf.api.pods import Pod
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import ObjectError
from kcover_ebpf.gang.gang_input import GangInput, GangVerdict
from kcover_ebpf.gang.gang_judge import merge
from kcover_ebpf.gang.gang_snapshot import ReceivedReport
from kcover_ebpf.settings import Policy

NO_SNAPSHOT = "its agent is of an older version, which sends no snapshot of its ranks"


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """What the run over the pods of one node found."""

    node: str
    report: FaultReport
    age_s: float
    """Since it came."""


def report_in(fields: Mapping[str, Any]) -> FaultReport | None:
    """The report in a record `verdict`; None where there is none that can be read."""
    try:
        return REPORT.decode(FaultReport, fields.get("report"), "report")
    except ObjectError:
        return None


def judged(
    name: str, answers: Sequence[NodeAnswer], pods: Sequence[Pod], now_s: float
) -> GangVerdict:
    """The verdict; `pods`: all that are running, also on nodes without an answer; `now_s`: unix seconds."""
    seen = []
    for answer in answers:
        report = replace(answer.report, node=answer.node, time_s=now_s - answer.age_s)
        # nodes that were sure sooner were traced for a shorter time; their snapshot is of the same run
        seen.append(ReceivedReport(report, now_s, delay_s=answer.age_s))
    return merge(GangInput(name, seen, pods, {}, Policy(), now_s, unwatched=True))
