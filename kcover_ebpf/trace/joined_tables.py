"""The tables, stacks and connections that the nodes of one job showed, as those of one trace. Pure; judges nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kcover_ebpf.trace.records import Line


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
    blind = dict.fromkeys(each for line in found for each in line.blind)
    return [stack for line in found for stack in line.fields["stacks"]], list(blind)


def edges(traces: Sequence[Sequence[Line]]) -> list[dict[str, Any]]:
    """The connections of all nodes; those between two nodes with the rank at the other end."""
    found = [
        dict(edge)
        for trace in traces
        for line in trace
        if line.conclusion is not None
        for edge in line.conclusion.edges
    ]
    owners = {(each.get("local"), each.get("remote")): each.get("from") for each in found}
    for each in found:
        if each.get("to") is None:
            each["to"] = owners.get((each.get("remote"), each.get("local")))
    return found
