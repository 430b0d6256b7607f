"""Events in order of time, and one track for each rank: as moments, and as a file for Perfetto. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.model.roles import Role
from kcover_ebpf.views.rank_grid import NodeRanks

_US = 1_000_000
_INCIDENT_TRACK = 0


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """An event, or the start of a state."""

    time_s: float
    """Time of the event (unix seconds)."""
    source: str
    """One of incident, device, network, log, kernel, rank."""
    text: str
    where: str = ""
    """Name of the node, pod or device."""
    is_first: bool = False
    """True for the earliest sign of the fault."""


def in_order(events: Iterable[TimelineEvent]) -> tuple[TimelineEvent, ...]:
    """Sorted by time, without duplicates."""
    return tuple(sorted(dict.fromkeys(events), key=lambda event: event.time_s))


def chrome_trace(
    events: Sequence[TimelineEvent], nodes: Sequence[tuple[NodeRanks, float]]
) -> dict[str, Any]:
    """The JSON object form of Chrome's trace events, which Perfetto opens.

    One process per node, one track per rank with the state that it was in, and another track with the incident's
    moments. `nodes`: with the unix seconds of their report. Source: the Trace Event Format of the Chromium project.
    """
    found: list[dict[str, Any]] = [_named("process_name", 0, 0, "incident")]
    found += [
        {
            "ph": "i",
            "s": "g",
            "name": event.text,
            "cat": event.source,
            "pid": 0,
            "tid": _INCIDENT_TRACK,
            "ts": round(event.time_s * _US),
            "args": {"where": event.where},
        }
        for event in events
    ]
    for number, (node_ranks, time_s) in enumerate(nodes, start=1):
        found.append(_named("process_name", number, 0, node_ranks.node))
        found += _tracks(number, node_ranks, time_s)
    return {"displayTimeUnit": "ms", "traceEvents": found}


def _tracks(number: int, node_ranks: NodeRanks, time_s: float) -> Iterable[dict[str, Any]]:
    for rank in node_ranks.ranks:
        if rank.role is not Role.RANK:
            continue
        name = f"rank {rank.rank}" if rank.rank is not None else f"process {rank.pid}"
        yield _named("thread_name", number, rank.pid, name)
        age_s = max(0.0, rank.age_s)
        yield {
            "ph": "X",
            "name": rank.state.text,
            "cat": "rank",
            "pid": number,
            "tid": rank.pid,
            "ts": round((time_s - age_s) * _US),
            "dur": round(age_s * _US),
            "args": {"call": rank.text, "rank": rank.rank},
        }


def _named(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}
