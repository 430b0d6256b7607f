"""Joins the traces of a job's nodes into one, judged as the controller judges their agents' reports. Pure.

Each node sends the snapshot of its ranks as a report. What the client itself knows (which node it asked, which pods
exist) is not taken from the report. Tables, stacks and connections are concatenated.
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
from kcover_ebpf.trace.records import Line, TracedConnection

NO_SNAPSHOT = "its agent is of an older version, which sends no snapshot of its ranks"


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """What the run over the pods of one node found."""

    node: str
    report: FaultReport
    age_s: float
    """Seconds since the answer arrived."""


def report_in(fields: Mapping[str, Any]) -> FaultReport | None:
    """The report in a record `verdict`; None if it has none, or an invalid one."""
    try:
        return REPORT.decode(FaultReport, fields.get("report"), "report")
    except ObjectError:
        return None


def judged(
    name: str, answers: Sequence[NodeAnswer], pods: Sequence[Pod], now_s: float
) -> GangVerdict:
    """The verdict; `pods`: all running ones, also on nodes without an answer; `now_s`: unix seconds."""
    seen = []
    for answer in answers:
        report = replace(answer.report, node=answer.node)
        # nodes with an early verdict were traced for a shorter time; their snapshot is from the same run
        seen.append(ReceivedReport(report, now_s, delay_s=answer.age_s))
    return merge(GangInput(name, seen, pods, {}, Policy(), now_s, unwatched=True))


def threads(traces: Sequence[Sequence[Line]]) -> list[Any]:
    """The last thread table of each node."""
    tables = [
        next((line for line in reversed(trace) if line.event == "threads"), None)
        for trace in traces
    ]
    return [row for table in tables if table is not None for row in table.fields["threads"]]


def stacks(traces: Sequence[Sequence[Line]]) -> tuple[list[Any], list[str]]:
    """The stacks of all nodes, and what could not be observed."""
    found = [line for trace in traces for line in trace if line.event == "stacks"]
    blind = dict.fromkeys(text for line in found for text in line.blind)
    return [stack for line in found for stack in line.fields["stacks"]], list(blind)


def edges(traces: Sequence[Sequence[Line]]) -> list[TracedConnection]:
    """The connections of all nodes; those between two nodes with the rank at the other end."""
    found = [
        connection
        for trace in traces
        for line in trace
        if line.conclusion is not None
        for connection in line.conclusion.edges
    ]
    owners = {(connection.local, connection.remote): connection.owner for connection in found}
    return [
        connection
        if connection.peer is not None
        else replace(connection, peer=owners.get((connection.remote, connection.local)))
        for connection in found
    ]
