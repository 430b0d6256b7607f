"""What `trace` found on several nodes of one job, as one trace. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kcover_ebpf.trace import grouping
from kcover_ebpf.trace.records import Line, Row, Stack

_OTHERS_WAIT = ("HUNG", "DEADLOCK", "LOST_LINK")
FAULTS = ("DEVICE_FAULT", "CRASHED", "LOST_LINK", "DEADLOCK", "HUNG")
_WEAK = ("missing_rank", "wait_cycle", "blocked_unknown")
_AT_WORK = ("computing", "loading", "checkpoint")
_ENOUGH = 3
_STALL_S = 5.0


def merge(traces: Sequence[Sequence[Line]]) -> dict[str, dict[str, Any]]:
    """Fields of the records `threads`, `stacks` and `verdict` from those of each node."""
    threads: list[Any] = []
    stacks: list[Any] = []
    blind: list[str] = []
    edges: list[Any] = []
    for trace in traces:
        table = next((line for line in reversed(trace) if line.event == "threads"), None)
        threads += table.fields["threads"] if table else []
        for line in trace:
            if line.event == "stacks":
                stacks += line.fields["stacks"]
                blind += [each for each in line.blind if each not in blind]
            if line.conclusion is not None:
                edges += line.conclusion.edges
    verdict = _worst(traces)
    if verdict.get("verdict") not in FAULTS or verdict.get("culprit") is None:
        verdict = _odd_one(traces, verdict) or verdict
    elif verdict.get("verdict") in _OTHERS_WAIT:
        verdict["victims"] = _victims(traces, verdict)
    _join(edges)
    said = [each for trace in traces for line in trace for each in _unobserved(line)]
    verdict |= {"edges": edges, "unobserved": list(dict.fromkeys(_about_all(said, traces)))}
    return {
        "threads": {"threads": threads},
        "stacks": {"stacks": stacks, "unobserved": blind},
        "verdict": verdict,
    }


def _victims(traces: Sequence[Sequence[Line]], verdict: dict[str, Any]) -> list[int]:
    culprit = verdict["culprit"]
    named = culprit.get("rank") if isinstance(culprit, dict) else None
    ranks = {row.rank for trace in traces for row in _leads(trace) if row.state != "R"}
    return sorted(each for each in ranks if each is not None and each != named)


def _join(edges: list[Any]) -> None:
    # the other end of a connection is held by a rank of another node
    held = {(each.get("local"), each.get("remote")): each.get("from") for each in edges}
    for each in edges:
        if each.get("to") is None:
            each["to"] = held.get((each.get("remote"), each.get("local")))


def _unobserved(line: Line) -> list[str]:
    said = line.conclusion.verdict.get("unobserved", []) if line.conclusion else []
    return [str(each) for each in said] if isinstance(said, list) else []


def _about_all(said: list[str], traces: Sequence[Sequence[Line]]) -> list[str]:
    # what one node cannot see of the others is seen by them
    return said if len(traces) < 2 else [each for each in said if "not on this host" not in each]


def _worst(traces: Sequence[Sequence[Line]]) -> dict[str, Any]:
    found = [dict(line.conclusion.verdict) for trace in traces for line in trace if line.conclusion]
    at_work = [each for each in found if each.get("cause") in _AT_WORK]
    if len(at_work) > 1:
        # each node names the one its own ranks wait for, but there are several
        found = [_no_culprit(each) if each.get("verdict") == "UNKNOWN" else each for each in found]
    return max(found, key=_weight, default={})


def _no_culprit(verdict: dict[str, Any]) -> dict[str, Any]:
    text = "ranks of several nodes are at work"
    headline = f"WORKING  {verdict.get('cause')}: {text}"
    nobody: dict[str, Any] = {
        "verdict": "WORKING",
        "culprit": None,
        "victims": [],
        "headline": headline,
    }
    return (
        verdict | nobody | {"next_step": "trace again in a minute", "reasons": [], "evidence": []}
    )


def _weight(verdict: dict[str, Any]) -> tuple[int, bool, bool, int]:
    kind = verdict.get("verdict")
    named = verdict.get("culprit") is not None
    kinds = {each.get("kind") for each in verdict.get("evidence", []) if isinstance(each, dict)}
    rank = FAULTS.index(kind) if kind in FAULTS else -1
    certain = named and verdict.get("cause") not in _WEAK
    return (1 if rank >= 0 else 0, certain, named, len(kinds))


def _odd_one(traces: Sequence[Sequence[Line]], verdict: dict[str, Any]) -> dict[str, Any] | None:
    """The one lead that waits where no other does, if all wait and at least three can be compared."""
    rows = [row for trace in traces for row in _leads(trace)]
    if len(rows) < _ENOUGH or any((row.since_s or 0.0) < _STALL_S for row in rows):
        return None
    leads = {(row.pid, row.tid): row for row in rows}
    stacks = [each for trace in traces for each in _stacks(trace) if (each.pid, each.tid) in leads]
    placed = grouping.together(stacks, grouping.stack_key)
    if len(stacks) < len(rows) or len(placed) != 2 or len(placed[0]) != 1 or len(placed[1]) < 2:
        return None
    odd = placed[0][0]
    row = leads[odd.pid, odd.tid]
    others = sorted(each.rank for each in rows if each.rank is not None and each is not row)
    who = f"rank {row.rank}" if row.rank is not None else f"pid {row.pid}"
    place = (odd.python or odd.native or odd.kernel or ("elsewhere",))[0]
    culprit = {"rank": row.rank, "pid": row.pid, "tid": row.tid, "pod": row.pod}
    none = dict.fromkeys(("host", "node", "device"))
    text = f"{who} waits in {place}; all {len(rows) - 1} others wait in a different place"
    return verdict | {
        "verdict": "HUNG",
        "cause": "blocked_unknown",
        "culprit": none | culprit,
        "victims": others,
        "evidence": [
            {"kind": "stack", "text": text},
            {"kind": "peers", "text": "every rank waits"},
        ],
        "headline": f"HUNG  {who} blocked_unknown: waits where no other rank waits",
        "reasons": [f"- {text} [stack]", "- every rank waits [peers]"],
        "doubt": ["the nodes were inspected one by one; only their stacks were compared"],
        "next_step": f"compare the frames of {who} with those of its peers",
    }


def _leads(trace: Sequence[Line]) -> list[Row]:
    table = next((line for line in reversed(trace) if line.event == "threads"), None)
    return [row for row in table.rows if row.lead and row.role == "rank"] if table else []


def _stacks(trace: Sequence[Line]) -> list[Stack]:
    return [each for line in trace if line.event == "stacks" for each in line.stacks]
