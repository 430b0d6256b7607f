"""The tables, stacks and connections that the nodes of one job showed, as those of one trace. Pure; judges nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kcover_ebpf.trace.records import Line, TracedConnection


def threads(traces: Sequence[Sequence[Line]]) -> list[Any]:
    """The last table of each node."""
    tables = [
        next((line for line in reversed(trace) if line.event == "threads"), None)
        for trace in traces
    ]
    return [row for table in tables if table is not None for row in table.fields["threads"]]


def stacks(traces: Sequence[Sequence[Line]]) -> tuple[list[Any], list[str]]:
    """The stacks of all nodes, and what was not observable."""
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
